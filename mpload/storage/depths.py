"""How far to read ahead: until no sample waits any more, or as far as requests take long."""

from math import ceil

from mpload.storage.latencies import Latencies

__all__ = ["DepthByLatency", "DepthByWaits", "Depths"]

_MAX_DEPTH = 256
_CALM_SAMPLES = 64
_FIRST_REMOTE_DEPTH = 1  # until the server has answered: nobody knows yet whether it does
_SPARE_SAMPLES = 8
_SPARE_THREADS = 4
_CHEAP_THREADS = 24
_THREAD_FACTOR = 1.125
_WEIGHT = 1 / 64
_MAX_RISE = 8
_SAMPLES_BETWEEN = 16
_LEAST_SPARE_NS = 16_000_000


class DepthByWaits:
    """Doubles the depth after a wait, and lowers it by one after a time without waits.

    Args:
        max_threads: maximum number of reads in progress at the same time.
    """

    def __init__(self, *, max_threads: int) -> None:
        self._max_threads = max_threads
        self._num_since_change = 0  # samples requested since `depth` last changed
        self.depth = 4
        """Number of samples to read ahead."""

    @property
    def num_threads(self) -> int:
        """Number of reads in progress at the same time."""
        return min(self._max_threads, self.depth)

    def requested(self, *, is_late: bool) -> None:
        """Note that a sample was requested that had been planned, and whether it was not there yet."""
        self._num_since_change += 1
        if is_late and self._num_since_change > self.depth:  # else the last change has not had an effect yet
            self.depth = min(2 * self.depth, _MAX_DEPTH)
        elif not is_late and self._num_since_change > max(_CALM_SAMPLES, self.depth) and self.depth > 2:
            self.depth -= 1
        else:
            return
        self._num_since_change = 0


class DepthByLatency:
    """Follows Little's law: as many requests are in progress as samples are used while one takes place.

    Samples are read further ahead than that, by the time after which a request is made a second time, so that a late
    answer delays no sample.

    A busy machine makes requests seem longer, and then more of them at once would only make it busier. So beyond 24 at
    once, only the time counts that nearly all requests take.

    Args:
        latencies: the times of the requests.
        max_threads: maximum number of requests in progress at the same time.
    """

    def __init__(self, latencies: Latencies, *, max_threads: int) -> None:
        self._latencies = latencies
        self._max_threads = max_threads
        self._num_since_change = 0
        self._use_ns = 0.0  # mean time from getting a sample until asking for the next one
        self.depth = _FIRST_REMOTE_DEPTH
        """Number of samples to read ahead."""
        self.num_threads = min(max_threads, _FIRST_REMOTE_DEPTH)
        """Number of requests in progress at the same time."""

    def used(self, num_ns: int) -> None:
        """Note the time from getting a sample until asking for the next one."""
        if self._use_ns:  # a pause, such as for a validation, counts little
            num_ns = min(num_ns, round(_MAX_RISE * self._use_ns))
        self._use_ns += (num_ns - self._use_ns) * (_WEIGHT if self._use_ns else 1)

    def requested(self, *, is_late: bool) -> None:
        """Note that a sample was requested that had been planned."""
        del is_late  # the distribution of the latencies says more
        self._num_since_change += 1
        if self.depth > _FIRST_REMOTE_DEPTH and self._num_since_change < _SAMPLES_BETWEEN:
            return
        self._num_since_change = 0
        latencies = self._latencies
        if not self._use_ns or not latencies.mean_ns:
            return
        most_ns = _CHEAP_THREADS * self._use_ns
        latency_ns = max(latencies.short_ns, min(latencies.mean_ns, most_ns))
        self.num_threads = min(self._max_threads, _SPARE_THREADS + ceil(_THREAD_FACTOR * latency_ns / self._use_ns))
        late_ns = min(latencies.any_late_ns, max(_LEAST_SPARE_NS, latency_ns))
        self.depth = min(_MAX_DEPTH, _SPARE_SAMPLES + ceil((latency_ns + late_ns) / self._use_ns))


Depths = DepthByLatency | DepthByWaits
