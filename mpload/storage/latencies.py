"""How long the requests of a process have taken lately, and from when on one is late."""

from math import frexp

import numpy as np

__all__ = ["Latencies"]

_SHORT_QUANTILE, _USUAL_QUANTILE, _LONG_QUANTILE = 0.05, 0.5, 0.95
_GUESSED_LATE_FACTOR = 2
_LATE_SPREADS = 3
_LEAST_LATE_SHARE = 1 / 4
_LEAST_LATE_NS = 5_000_000
"""A busy machine may itself delay an answer by some milliseconds."""
_NUM_KEPT = 1024
_NUM_NEEDED = 64
_NUM_BETWEEN = 64
_WEIGHT = 1 / 64
_NUM_BUCKETS = 64 * 8


class Latencies:
    """How long requests have taken lately. Requests of different sizes are kept apart.

    Let `spread` be the 95th percentile, less the median, of the requests of its size. A request is late if it takes
    longer than the 95th percentile by three times the spread, by a quarter, and longer than 5 ms. Spans have about the
    same size if their lengths have the same number of binary digits. The length of a whole object is not known before
    it is read, so all whole objects are taken together.

    Counts are halved after every 1,024 requests, so that old ones fade.

    Memory: 4 kB for each size. Process: use it in one thread.
    """

    def __init__(self) -> None:
        self._all = _Histogram()
        self._sizes: dict[int | None, _Histogram] = {}
        self.mean_ns = 0.0
        """Mean time of the latest requests, of which none counts more than a late one; 0 before the first one."""

    def add(self, num_ns: int, length_bytes: int | None) -> None:
        """Note how long a request took. A `length_bytes` of None means a whole object."""
        histogram = self._of(length_bytes)
        histogram.add(num_ns)
        self._all.add(num_ns)
        counted_ns = num_ns if histogram.late_ns is None else min(num_ns, histogram.late_ns)
        self.mean_ns += (counted_ns - self.mean_ns) * (_WEIGHT if self.mean_ns else 1)

    def late_ns(self, length_bytes: int | None) -> int | None:
        """Return after how long a request of this size is late; None if too few were made to tell."""
        return self._of(length_bytes).late_ns

    @property
    def any_late_ns(self) -> float:
        """Return after how long a request is late, whatever its size. It is guessed while too few were made to tell."""
        return self._all.late_ns or _GUESSED_LATE_FACTOR * self.mean_ns

    @property
    def short_ns(self) -> float:
        """Return the time that nearly all requests took: 19 of 20 took longer."""
        return self._all.short_ns or self.mean_ns

    def _of(self, length_bytes: int | None) -> "_Histogram":
        size = None if length_bytes is None else length_bytes.bit_length()
        found = self._sizes.get(size)
        if found is None:
            found = self._sizes[size] = _Histogram()
        return found


class _Histogram:
    """A histogram whose buckets have widths of about 9 %, and the time after which a request is late."""

    __slots__ = ("_counts", "_num_added", "late_ns", "short_ns")

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BUCKETS)
        self._num_added = 0
        self.late_ns: int | None = None
        self.short_ns = 0

    def add(self, num_ns: int) -> None:
        fraction, exponent = frexp(max(1, num_ns))  # fraction in [0.5, 1)
        self._counts[exponent * 8 + int(fraction * 16) - 8] += 1
        self._num_added += 1
        if self._num_added < _NUM_NEEDED or self._num_added % _NUM_BETWEEN:
            return
        self.short_ns, usual_ns, long_ns = self._quantiles_ns(_SHORT_QUANTILE, _USUAL_QUANTILE, _LONG_QUANTILE)
        late_ns = long_ns + max(_LATE_SPREADS * (long_ns - usual_ns), round(_LEAST_LATE_SHARE * long_ns))
        self.late_ns = max(_LEAST_LATE_NS, late_ns)
        if self._counts.sum() >= _NUM_KEPT:
            self._counts /= 2

    def _quantiles_ns(self, *shares: float) -> list[int]:
        """Return the upper end of the bucket that holds each quantile."""
        num_longer = self._counts[::-1].cumsum()
        places = num_longer.searchsorted([num_longer[-1] * (1 - share) for share in shares], side="right")
        found = []
        for bucket in (_NUM_BUCKETS - 1 - places).tolist():
            exponent, eighth = divmod(bucket, 8)
            found.append((9 + eighth << exponent) // 16)
        return found
