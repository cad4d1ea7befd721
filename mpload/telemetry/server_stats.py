"""What each server of samples has done for a loader. Workers count it, and send it as counters by number."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpload.telemetry.latencies import Latencies, bucket_of
from mpload.units import format_bytes, format_count, format_counted, format_seconds

__all__ = ["ServerCounts", "ServerStats", "stats_by_server"]

_REQUESTS, _SAMPLES, _BYTES, _FAILURES = range(4)
_FIRST_BUCKET = 4
_NUM_COUNTERS = 256
"""Counters of a server: these four, and those of the buckets of a histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """What one server of samples has done for a loader."""

    num_requests: int = 0
    """Requests that it has answered."""
    num_samples: int = 0
    """Samples in the answers."""
    received_bytes: int = 0
    """Bytes of the answers."""
    num_failures: int = 0
    """Requests that failed: they could not be sent, or their answer was missing, broken or too late."""
    latencies: Latencies = field(default_factory=Latencies)
    """Times from sending a request until its answer began. A worker that receives another answer meanwhile notices
    the beginning later."""

    def since(self, earlier: "ServerStats") -> "ServerStats":
        """Return the difference from `earlier`."""
        return ServerStats(
            num_requests=self.num_requests - earlier.num_requests,
            num_samples=self.num_samples - earlier.num_samples,
            received_bytes=self.received_bytes - earlier.received_bytes,
            num_failures=self.num_failures - earlier.num_failures,
            latencies=self.latencies.since(earlier.latencies),
        )

    def metrics(self) -> dict[str, float]:
        """Return the figures by name, for logging. Names carry the unit."""
        return {
            "requests": self.num_requests,
            "samples": self.num_samples,
            "bytes": self.received_bytes,
            "failures": self.num_failures,
            "latency_p50_seconds": self.latencies.quantile_seconds(0.5),
        }

    def __str__(self) -> str:
        latency = f", p50 {format_seconds(self.latencies.quantile_seconds(0.5))}" if self.num_requests else ""
        failed = f", {format_count(self.num_failures)} failed" if self.num_failures else ""
        asked = f"{format_counted(self.num_samples, 'sample')} in {format_counted(self.num_requests, 'request')}"
        return f"{asked}{latency}{failed}, {format_bytes(self.received_bytes)}"


class ServerCounts:
    """Counts what servers do for a worker, until the counts are taken."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def answered(self, server: int, *, num_samples: int, num_bytes: int, latency_seconds: float) -> None:
        """Count an answer of the server with this number."""
        first = server * _NUM_COUNTERS
        self._counts[first + _REQUESTS] += 1
        self._counts[first + _SAMPLES] += num_samples
        self._counts[first + _BYTES] += num_bytes
        self._counts[first + _FIRST_BUCKET + bucket_of(latency_seconds)] += 1

    def failed(self, server: int) -> None:
        """Count a request that failed."""
        self._counts[server * _NUM_COUNTERS + _FAILURES] += 1

    def take(self) -> dict[int, int]:
        """Return the counts since the last call, by counter."""
        taken, self._counts = dict(self._counts), Counter()
        return taken


def stats_by_server(urls: Sequence[str], counts: Mapping[int, int]) -> dict[str, ServerStats]:
    """Return what `ServerCounts` have counted, by the URL of the server. Servers come in the order of `urls`."""
    by_server = [[0] * _NUM_COUNTERS for _ in urls]
    for counter, count in counts.items():
        server, place = divmod(counter, _NUM_COUNTERS)
        by_server[server][place] += count
    return {url: _stats_of(found) for url, found in zip(urls, by_server, strict=True)}


def _stats_of(counts: Sequence[int]) -> ServerStats:
    latencies = Latencies()
    latencies.counts = list(counts[_FIRST_BUCKET : _FIRST_BUCKET + len(latencies.counts)])
    return ServerStats(
        num_requests=counts[_REQUESTS],
        num_samples=counts[_SAMPLES],
        received_bytes=counts[_BYTES],
        num_failures=counts[_FAILURES],
        latencies=latencies,
    )
