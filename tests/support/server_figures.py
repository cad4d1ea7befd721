"""Statistics of a server of samples, made up."""

from mpload.telemetry.server_stats import ServerCounts, ServerStats, stats_by_server

__all__ = ["server_stats"]


def server_stats(num_requests: int) -> ServerStats:
    """Return the figures of a server that has answered so many requests, and failed as often."""
    counts = ServerCounts()
    for _ in range(num_requests):
        counts.answered(0, num_samples=16, num_bytes=1000, latency_seconds=0.01)
        counts.failed(0)
    return stats_by_server([""], counts.take())[""]
