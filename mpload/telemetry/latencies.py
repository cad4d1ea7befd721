"""A histogram of durations, from 1 microsecond to 3 hours."""

import math
from dataclasses import dataclass, field

__all__ = ["Latencies", "bucket_of"]

_BUCKETS_PER_DECADE = 16
_NUM_BUCKETS = 160
_SHORTEST_SECONDS = 1e-6


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that counts a duration."""
    bucket = math.ceil(_BUCKETS_PER_DECADE * math.log10(max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS))
    return min(bucket, _NUM_BUCKETS - 1)


@dataclass(slots=True)
class Latencies:
    """A histogram of waiting times: of the consumer for batches, or of workers for a server.

    The ends of a bucket differ by 16%.

    Memory: constant. There are 160 buckets, from 1 microsecond to 3 hours.
    """

    counts: list[int] = field(default_factory=lambda: [0] * 160)
    """Counts by bucket: 16 buckets per factor of ten, starting at 1 microsecond."""

    def add(self, seconds: float) -> None:
        """Count one duration of `seconds`."""
        self.counts[bucket_of(seconds)] += 1

    def quantile_seconds(self, share: float) -> float:
        """Return the quantile `share` of the durations, at most 8% too short or too long, or 0 if there are none."""
        wanted, seen = share * sum(self.counts), 0
        for place, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                middle = max(0.0, place - 0.5)
                return float(_SHORTEST_SECONDS * 10 ** (middle / _BUCKETS_PER_DECADE))
        return 0.0

    def copy(self) -> "Latencies":
        """Return a copy that later calls of `add` do not change."""
        return Latencies(list(self.counts))

    def since(self, earlier: "Latencies") -> "Latencies":
        """Return the counts added after `earlier`, which is an older copy."""
        return Latencies([now - before for now, before in zip(self.counts, earlier.counts, strict=True)])
