"""The counters of a server, in the text format of Prometheus."""

from collections import Counter
from dataclasses import dataclass, field

from mpload.servers.cached import CacheReader
from mpload.servers.making import SampleMaker

__all__ = ["ServerCounts", "metrics_text"]


@dataclass(slots=True, kw_only=True)
class ServerCounts:
    """What a server has answered since its start."""

    num_samples: int = 0
    """Samples asked for and made, or found made."""
    sent_bytes: int = 0
    num_cut_off: int = 0
    num_malformed: int = 0
    seconds: float = 0.0
    by_status: Counter[int] = field(default_factory=Counter)

    def add(self, *, num_cut_off: int = 0, num_malformed: int = 0) -> None:
        """Count connections that were cut off, and requests that were no HTTP."""
        self.num_cut_off += num_cut_off
        self.num_malformed += num_malformed

    def count(self, status: int, *, seconds: float) -> None:
        """Count an answered request for samples."""
        self.by_status[status] += 1
        self.seconds += seconds


def metrics_text(maker: SampleMaker, counts: ServerCounts, cached: CacheReader | None) -> str:
    """Return all metrics. Names begin with `mpload_server_`, and those of counters end with `_total`."""
    pool = maker.pool
    requests = {f'{{status="{status}"}}': number for status, number in sorted(counts.by_status.items())}
    found: list[tuple[str, str, dict[str, float]]] = [
        ("requests_total", "Requests for samples, by the status of their answers.", {**requests}),
        (
            "request_seconds_total",
            "Time from the heads of requests to the ends of their answers.",
            {"": counts.seconds},
        ),
        ("samples_total", "Samples sent.", {"": counts.num_samples}),
        ("sent_bytes_total", "Bytes of the answers with samples.", {"": counts.sent_bytes}),
        ("made_samples_total", "Samples made by workers.", {"": maker.counts.num_made}),
        ("shared_samples_total", "Samples that had been made for an equal request.", {"": maker.counts.num_shared}),
        ("busy_seconds_total", "Time that workers spent on samples.", {"": pool.stats.busy_ns / 1e9}),
        (
            "cut_off_total",
            "Connections of clients that were idle, or too slow to send or read.",
            {"": counts.num_cut_off},
        ),
        ("malformed_total", "Requests that were no HTTP, or had too large a head.", {"": counts.num_malformed}),
        ("deaths_total", "Processes of the pool that died and were replaced.", {"": pool.num_deaths}),
        ("workers", "Current number of worker processes.", {"": pool.num_workers}),
        ("requests_under_way", "Requests that wait or are being made.", {"": maker.num_under_way}),
        ("waiting_requests", "Requests that wait for a slot.", {"": maker.num_waiting}),
        ("kept_answers", "Answers kept for other jobs.", {"": maker.num_kept}),
        ("slots_bytes", "Shared memory of the slots that hold samples.", {"": pool.ring.used_bytes}),
    ]
    if cached is not None:
        found += [
            ("cache_hits_total", "Samples sent to other machines from the cache.", {"": cached.num_hits}),
            ("cache_misses_total", "Samples read from their source for other machines.", {"": cached.num_misses}),
            ("cache_failures_total", "Samples that could not be read for other machines.", {"": cached.num_failures}),
        ]
    lines = []
    for name, about, values in found:
        full = f"mpload_server_{name}"
        lines.append(f"# HELP {full} {about}")
        lines.append(f"# TYPE {full} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{full}{labels} {value:.17g}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"
