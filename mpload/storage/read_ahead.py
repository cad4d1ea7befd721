"""Reads samples in advance, in a few threads, when the storage has a high latency."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import TypeVar, cast

from mpload.errors import ArgumentError, StorageError
from mpload.storage.depths import DepthByLatency, DepthByWaits, Depths, UseTimes
from mpload.storage.fetches import Fetch, Piece, Read, plan_fetches
from mpload.storage.hedging import Hedging
from mpload.storage.in_flight import new_threads
from mpload.storage.latencies import Latencies
from mpload.storage.many import ManyRead
from mpload.storage.planned_reads import FileSizes, PlannedReads
from mpload.storage.protocols import RemoteReads, Storage
from mpload.storage.ranges import ByteRange
from mpload.storage.slow_reads import SlowReads
from mpload.storage.waits import num_waits_of_thread
from mpload.units import MIB

__all__ = ["DEFAULT_AHEAD_BYTES", "ReadAhead"]

DEFAULT_AHEAD_BYTES = 16 * MIB

_FAST_PROBES = 8
_PROBES_COST_ONE_IN = 100
_MAX_READ_BYTES = 4 * MIB
_SPARE_PART = 16
"""One part in so many of `max_bytes` is kept for reads that are made a second time."""
_SLOW_FAILURE_NS = 500_000_000
_KEPT_PART = 4
"""One part in so many of `max_bytes` may be in use and not yet released."""
_Read = TypeVar("_Read")


class ReadAhead:
    """Reads samples that will be requested soon, while others are decoded.

    Threads are started only when reads turn out to be slow. Until then, a read of a cached file costs only a clock
    reading more. Afterwards, as many samples are read ahead as are needed to avoid waiting. The number grows after each
    wait, and shrinks after a time without waits. Now and then one sample, the probe, is left to be read when it is
    requested, to find out whether reading ahead still pays. Probes take at most 1 % of the time.

    If reading ahead fails for a sample, the failure is ignored. The sample is read again when it is requested, and only
    then is an error raised. So an error never affects another sample.

    Reads from a storage behind a network (`RemoteReads`) are always slow. They are made ahead from the first sample on,
    as many at once as samples are used while one takes place, and no probe is left. A late one is made a second time.
    One that fails has been repeated as long as allowed, so its error is raised when the sample is requested, unless it
    is an outage.

    Args:
        storage: the storage to read from.
        max_bytes: limit on bytes that have been read ahead and not yet requested. The size of a whole file is not known
            in advance, so it counts as the mean size so far.
        monotonic_ns: the clock.
        count_waits: returns how often this thread has waited so far; None means that the kernel is asked.

    Memory: `max_bytes`, also for reads that are made a second time, and a stack for each thread, of which there are at
    most the storage's `max_parallel_reads`, and eight for reads that are made a second time.
    Process: may be forked, even while threads read; the child starts afresh. Use it in one thread only.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        max_bytes: int = DEFAULT_AHEAD_BYTES,
        monotonic_ns: Callable[[], int] = time.perf_counter_ns,
        count_waits: Callable[[], int] | None = None,
    ) -> None:
        if max_bytes < 1:
            raise ArgumentError(f"max_bytes must be positive, got {max_bytes}")
        self.max_bytes = max_bytes
        self._max_read_bytes = min(_MAX_READ_BYTES, max(1, max_bytes // 4))
        self._storage = storage
        self.max_parallel_reads: int = getattr(storage, "max_parallel_reads", 1)
        """Maximum number of reads in progress at the same time."""
        self._clock_ns = monotonic_ns
        self._slow_reads = SlowReads(clock_ns=monotonic_ns, count_waits=count_waits or num_waits_of_thread)
        self._sizes = FileSizes()
        self._is_possible = self.max_parallel_reads > 1
        self._remote: RemoteReads | None = storage if isinstance(storage, RemoteReads) else None
        self._read_one: Read = partial(_read_one, storage) if self._remote is None else self._remote.read_wanted
        self._is_active = self._is_possible and self._remote is not None
        self.is_paused = False
        """Whether samples are requested that the page cache holds: they are read at once, until reads are slow."""
        self.was_active = self._is_active
        """Whether `is_active` was ever true."""
        self._latencies = Latencies()
        self.uses = UseTimes(monotonic_ns)
        """How long the caller uses samples."""
        self._depths: Depths = (
            DepthByWaits(max_threads=self.max_parallel_reads)
            if self._remote is None
            else DepthByLatency(self._latencies, self.uses, max_threads=self.max_parallel_reads)
        )
        self.num_waits = 0
        """Number of samples that were requested before they had been read."""
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        remote = self._remote
        self._threads = new_threads(remote, self._read_one, max_reads=self.max_parallel_reads, clock_ns=self._clock_ns)
        self._hedging = None if remote is None else Hedging(remote, self._threads, self._latencies, self._clock_ns)
        self._planned = PlannedReads(self._latencies, self._clock_ns)
        self._pieces = self._planned.pieces
        self._queue: deque[Fetch] = deque()  # reads that have not begun
        self._extra: dict[int, int] = {}  # samples of `plan_extra`, each with the sample that it is read for
        self.uses.pause()
        self._failed_ns = self._num_fast_probes = self._next_probe_ns = 0  # the first is the time of the latest failure
        self._probe: int | None = None  # the sample that is left to be read when it is requested

    @property
    def is_active(self) -> bool:
        """Whether reads are slow enough that `plan` pays."""
        return self._is_active and not self.is_paused

    @property
    def depth(self) -> int:
        """Number of samples to read ahead."""
        return self._depths.depth

    def take_hedges(self) -> int:
        """Return the number of reads since the last call that were made a second time because they were late."""
        return 0 if self._hedging is None else self._hedging.take_hedges()

    def plan(self, wanted: Mapping[int, Sequence[ByteRange]]) -> None:
        """Read these samples ahead in this order, as far as `depth` and `max_bytes` allow, and cancel all others.

        Args:
            wanted: the ranges of each sample, by sample_id. A sample must have the same ranges in every call.
        """
        self._check_process()
        if not self.is_active:
            return
        self._extra = {each: owner for each, owner in self._extra.items() if owner in wanted and each not in wanted}
        self._planned.release([known for known in self._pieces if known not in wanted and known not in self._extra])
        if self._probe not in wanted:
            self._probe = None
        fresh = {sample_id: ranges for sample_id, ranges in wanted.items() if sample_id not in self._pieces}
        first = [*takewhile(fresh.get, wanted)] if len(fresh) < len(wanted) else []
        if first:  # samples that come before those already planned are wanted at once
            self._plan_first({sample_id: fresh.pop(sample_id) for sample_id in first}, later=wanted)
        self._queue.extend(self._fetches_of(fresh))
        self._begin()

    def _fetches_of(self, wanted: Mapping[int, Sequence[ByteRange]]) -> list[Fetch]:
        """Note that samples are planned, and return their reads."""
        pieces, fetches = plan_fetches(wanted, max_read_bytes=self._max_read_bytes)
        self._pieces.update(pieces)
        return fetches

    def _plan_first(self, wanted: Mapping[int, Sequence[ByteRange]], later: Mapping[int, Sequence[ByteRange]]) -> None:
        """Read these samples before all others. The depth does not limit them.

        If there is no room for them, the last reads of samples among `later` are cancelled, and made again later.
        """
        fetches = self._fetches_of(wanted)
        num_bytes = min(self.max_bytes // 2, sum(map(self._sizes.expected_bytes, fetches)))
        cancelled = self._planned.cancel_last(later, until=lambda: self._usable_bytes >= num_bytes)
        self._queue.extendleft(reversed(self._fetches_of({sample_id: later[sample_id] for sample_id in cancelled})))
        num_begun = 0
        while num_begun < len(fetches) and self._begin_one(fetches[num_begun], self._usable_bytes, place=num_begun):
            num_begun += 1
        self._queue.extendleft(reversed(fetches[num_begun:]))

    def failing(self) -> list[int] | None:
        """Return the planned samples that fail, or will probably fail, in the same way as the latest one that failed.

        Those are samples whose read has failed, or has already taken half as long. None means that the latest failure
        took less than half a second, so that little would be gained by reading other samples in their place ahead.
        """
        if not self.is_active or self._failed_ns < _SLOW_FAILURE_NS:
            return None
        return [each for each in self._planned.failing_like(self._failed_ns) if each not in self._extra]

    def plan_extra(self, wanted: Mapping[int, Sequence[ByteRange]], owners: Mapping[int, int]) -> None:
        """Read these samples ahead too, before reads that have not begun.

        They stay planned while the sample that `owners` names for each is planned, or until the next `plan`.
        """
        fresh = {sample_id: ranges for sample_id, ranges in wanted.items() if sample_id not in self._pieces}
        self._extra.update({sample_id: owners[sample_id] for sample_id in fresh})
        self._plan_first(fresh, later={})
        self._begin(num_failing=len(set(owners.values())))  # neither they nor what fails counts for the depth

    def read(self, sample_id: int, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of a sample's ranges, reading them now unless they were read ahead.

        Raises:
            StorageError: the bytes cannot be read.
        """
        if not self.is_active:
            return self.measured(lambda: self._storage.read(ranges))
        self._check_process()
        self.uses.asked()
        self.uses.given(1)
        pieces = self._pieces.pop(sample_id, None)
        start_ns = self._clock_ns()
        try:
            found = None if pieces is None else self._collect(pieces)
            if found is None and sample_id == self._probe:
                self._probe = None
                found = self.measured(lambda: self._storage.read(ranges))
            elif found is None:
                found = self._storage.read(ranges)
        except StorageError:
            self._failed_ns = max(self._clock_ns() - start_ns, *(piece.fetch.read_ns for piece in pieces or ()), 0)
            raise
        finally:
            self.uses.begun()
        self._begin()
        return found

    def _collect(self, pieces: Sequence[Piece]) -> list[bytes] | None:
        """Wait for the reads of a sample. Return None if one of them has not begun or has failed."""
        self._requested(is_late=any(piece.fetch.is_late for piece in pieces))
        try:
            parts = [self._bytes_of(piece) for piece in pieces]
        finally:
            self._planned.release_pieces(pieces)
        self._sizes.note((piece, part) for piece, part in zip(pieces, parts, strict=True) if not piece.is_used)
        return None if None in parts else cast("list[bytes]", parts)

    def _requested(self, *, is_late: bool) -> None:
        self.num_waits += is_late
        self._depths.requested(is_late=is_late)

    def _bytes_of(self, piece: Piece) -> bytes | None:
        fetch = piece.fetch
        if fetch.is_begun:
            self.wait_for(fetch)
        if self._hedging is not None and fetch.data is None and fetch.sample_id is not None:
            fetch.fail()
        return None if fetch.data is None else piece.part_of(fetch.data)

    def wait_for(self, fetch: Fetch) -> None:
        """Wait for the end of a read, which begins now if it has not. It does not if there is no room.

        There is no time limit: a hanging read would hang its sample anyway, and the worker's sample timeout ends it.
        """
        if not fetch.is_begun and not self._begin_one(fetch, self._usable_bytes):
            return
        if self._hedging is None:
            fetch.perform(self._read_one, self._clock_ns)  # in this thread, if no other has started it
            fetch.wait()
        else:
            self._hedging.wait(fetch, self._room_bytes)

    def pieces_of(self, sample_id: int) -> Sequence[Piece]:
        """Return where the ranges of a sample are among the reads; nothing if they are not read ahead."""
        return self._pieces.get(sample_id, ())

    def has_begun(self, sample_id: int) -> bool:
        """Return whether a sample is being read ahead, or has been."""
        return self._planned.has_begun(sample_id)

    @property
    def usable_bytes(self) -> int:
        """How many more bytes may be in use until some are released, so that there is room to read others ahead."""
        return self.max_bytes // _KEPT_PART - self._planned.kept_bytes

    def use(self, taken: Mapping[int, Piece], *, is_late: bool) -> None:
        """Note that ranges are used, by sample_id, and begin other reads. They are kept until `release`, or for `read`.

        `is_late` says whether the first one was not there when it was requested.
        """
        self._sizes.note((piece, piece.fetch.data) for piece in taken.values())
        if num_samples := sum(map(self._planned.use, taken)):
            for number in range(num_samples):
                self._requested(is_late=is_late and not number)
            self.uses.given(num_samples)
        self._begin()
        self.uses.begun()

    def release(self, sample_ids: Iterable[int]) -> None:
        """Let go of the bytes of samples that were made, and begin other reads in their place."""
        self._planned.release(sample_ids)
        self._planned.kept_bytes = 0
        self._begin()

    @property
    def _room_bytes(self) -> int:
        """How much of `max_bytes` is left."""
        hedged_bytes = 0 if self._hedging is None else sum(fetch.held_bytes for fetch in self._hedging.running)
        return self.max_bytes - self._planned.held_bytes - hedged_bytes

    @property
    def _usable_bytes(self) -> int:
        """How much of `max_bytes` is left for reads that have not begun."""
        return self._room_bytes - (0 if self._hedging is None else self.max_bytes // _SPARE_PART)

    def _begin(self, *, num_failing: int = 0) -> None:
        """Pass reads to the threads, as far as `depth` and `max_bytes` allow, and hedge those that are late."""
        if self._hedging is not None:
            self._hedging.check(self._room_bytes)
        room_bytes, depth = self._usable_bytes, self.depth + num_failing + sum(map(self.has_begun, self._extra))
        while self._queue and self._planned.num_ahead < depth:
            fetch = self._queue[0]
            if fetch.num_wanting and not fetch.is_begun and not self._is_left_as_probe(fetch):
                if not self._begin_one(fetch, room_bytes):
                    return
                room_bytes -= fetch.held_bytes
            self._queue.popleft()

    def _begin_one(self, fetch: Fetch, room_bytes: int, *, place: int | None = None) -> bool:
        """Pass a read to the threads, at `place` among those that wait. Return False if there is no room or thread."""
        num_bytes = self._sizes.expected_bytes(fetch)
        if (self._planned.held_bytes and num_bytes > room_bytes) or not self._has_thread():
            return False
        self._planned.begin(fetch, num_bytes)
        self._threads.put_fetch(fetch, place=place)
        if self._hedging is not None:
            self._hedging.begun(fetch)
        return True

    def run(self, job: Callable[[], object]) -> None:
        """Call `job` in a thread, after the reads queued so far. Its result and exceptions are discarded."""
        self._check_process()
        if self._is_possible and self._has_thread():
            self._threads.put(job)

    def _has_thread(self) -> bool:
        """Start another thread if that helps. Return False if there is none."""
        num_wanted = self._depths.num_threads + len(self._extra)
        if self._hedging is not None:
            num_wanted += len(self._hedging.running)  # threads that wait for an answer which another one has got
            self._threads.limit(num_wanted * 3 // 2)  # on a busy machine a few more are in time
            if self._threads.num_started and not self._threads.num_waiting:
                return True
        if self._threads.start(num_wanted):
            return True
        self._is_possible = self._is_active = False
        self._threads.end()
        self._start()
        return False

    def measured(self, read: Callable[[], _Read]) -> _Read:
        """Call `read`, measure it, and return its result. Use it for reads of samples that were not read ahead."""
        data, read_ns, is_slow = self._slow_reads.watch(read, always=self.is_active)
        if is_slow is not None:
            self._judge(read_ns, is_slow=is_slow)
        return data

    def measured_many(self, read: Callable[[], ManyRead]) -> ManyRead:
        """Call `read`, which makes many reads, judge by the slow ones whether reads are slow, and return its result."""
        result, are_slow = self._slow_reads.watch_many(read)
        if are_slow:
            self._activate()
        return result

    def _activate(self) -> None:
        self._is_active, self.is_paused, self._num_fast_probes = self._is_possible, False, 0
        self.was_active = self.was_active or self._is_active

    def _judge(self, read_ns: int, *, is_slow: bool) -> None:
        """Decide whether reads are slow, from one that was not read ahead."""
        if not self.is_active:
            if self._slow_reads.are_usual(is_slow=is_slow):
                self._activate()
            return
        if self._remote is not None:
            return
        self._next_probe_ns = self._clock_ns() + _PROBES_COST_ONE_IN * read_ns
        self._num_fast_probes = 0 if is_slow else self._num_fast_probes + 1
        if self._num_fast_probes >= _FAST_PROBES:
            self.plan({})
            self._is_active, self._failed_ns, self._next_probe_ns = False, 0, 0
            self._slow_reads.forget()

    def _is_left_as_probe(self, fetch: Fetch) -> bool:
        """Return whether a read is left out as a probe. A read that several samples share never is."""
        if self._remote is not None or self._probe is not None or fetch.sample_id is None:
            return False
        if self._clock_ns() < self._next_probe_ns:
            return False
        pieces = self._pieces[fetch.sample_id]
        if any(piece.fetch.is_begun for piece in pieces):  # the disk may have loaded this one along with it
            return False
        self._probe = fetch.sample_id
        self._planned.release([fetch.sample_id])
        return True

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._threads.forget()
            if self._hedging is not None:
                self._hedging.forget()
            self._start()


def _read_one(storage: Storage, item: ByteRange, _is_wanted: Callable[[], bool]) -> bytes:
    return storage.read([item])[0]
