"""How far to read ahead: until no sample waits any more, or as far as requests take long."""

from collections.abc import Callable
from math import ceil

from mpload.storage.latencies import Latencies

__all__ = ["DepthByLatency", "DepthByWaits", "Depths"]

_MAX_DEPTH = 256
_CALM_SAMPLES = 64
_FIRST_REMOTE_DEPTH = 1  # until the server has answered: nobody knows yet whether it does
_SECOND_REMOTE_DEPTH = 16  # until it is known how long samples are used
_MAX_GROWTH = 2  # every 16 samples: the first times are those of processes that start, and mislead
_SPARE_SAMPLES = 8
_SPARE_THREADS = 4
_CHEAP_THREADS = 24
_THREAD_FACTOR = 1.125
_WEIGHT = 1 / 64
_MAX_RISE = 8
_SAMPLES_BETWEEN = 16
_MOST_SPARE_NS = 100_000_000
"""Because of late answers, samples are read ahead by at most this time, or by that of one request if it is longer."""


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
        uses: the times in which samples are used.
        max_threads: maximum number of requests in progress at the same time.
    """

    def __init__(self, latencies: Latencies, uses: "UseTimes", *, max_threads: int) -> None:
        self._latencies = latencies
        self._max_threads = max_threads
        self._num_since_change = 0
        self._uses = uses
        self.depth = _FIRST_REMOTE_DEPTH
        """Number of samples to read ahead."""
        self.num_threads = min(max_threads, _FIRST_REMOTE_DEPTH)
        """Number of requests in progress at the same time."""

    def requested(self, *, is_late: bool) -> None:
        """Note that a sample was requested that had been planned."""
        del is_late  # the distribution of the latencies says more
        self._num_since_change += 1
        if self.depth > _FIRST_REMOTE_DEPTH and self._num_since_change < _SAMPLES_BETWEEN:
            return
        self._num_since_change = 0
        latencies, use_ns = self._latencies, self._uses.mean_ns
        if not latencies.mean_ns:
            return
        if not use_ns:
            self.depth = self.num_threads = min(_SECOND_REMOTE_DEPTH, self._max_threads)
            return
        most_ns = _CHEAP_THREADS * use_ns
        latency_ns = max(latencies.short_ns, min(latencies.mean_ns, most_ns))
        most_threads = min(self._max_threads, max(_SECOND_REMOTE_DEPTH, _MAX_GROWTH * self.num_threads))
        self.num_threads = min(most_threads, _SPARE_THREADS + ceil(_THREAD_FACTOR * latency_ns / use_ns))
        late_ns = min(latencies.any_late_ns, max(_MOST_SPARE_NS, latency_ns))
        most_samples = min(_MAX_DEPTH, max(_SECOND_REMOTE_DEPTH, _MAX_GROWTH * self.depth))
        self.depth = min(most_samples, _SPARE_SAMPLES + ceil((latency_ns + late_ns) / use_ns))


class UseTimes:
    """How long samples are used, from getting their bytes until asking for more.

    Args:
        clock_ns: the clock.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.mean_ns = 0.0
        """Mean time of a sample; 0 before the first ones."""
        self._since_ns = 0
        self._spent_ns = 0  # on the samples that were given last
        self._num_given = 0
        self._num_measured = 0

    def begun(self) -> None:
        """Note that bytes are used from now on."""
        self._since_ns = self._clock_ns()

    def asked(self) -> None:
        """Note that more bytes are asked for, of further samples or of the same ones."""
        if self._since_ns:
            self._spent_ns += self._clock_ns() - self._since_ns

    def given(self, num_samples: int) -> None:
        """Note that the bytes of so many further samples are given, so the previous ones are no longer used."""
        if self._num_given:
            sample_ns = self._spent_ns / self._num_given
            if self.mean_ns:  # a pause, such as for a validation, counts little
                sample_ns = min(sample_ns, _MAX_RISE * self.mean_ns)
            self._num_measured += self._num_given
            weight = max(1 - (1 - _WEIGHT) ** self._num_given, self._num_given / self._num_measured)
            self.mean_ns += (sample_ns - self.mean_ns) * weight
        self._spent_ns, self._num_given = 0, num_samples

    def pause(self) -> None:
        """Forget what is used now: this is another process, or nothing is read ahead any more."""
        self._since_ns = self._spent_ns = self._num_given = 0


Depths = DepthByLatency | DepthByWaits
