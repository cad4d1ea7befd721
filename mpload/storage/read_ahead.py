"""Reads samples in advance, in a few threads, when the storage has a high latency."""

import os
import resource
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TypeVar, cast

import numpy as np

from mpload.errors import ArgumentError
from mpload.storage.many import SLOW_NS, ManyRead
from mpload.storage.merging import merge_nearby
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange, Span
from mpload.units import KIB, MIB

__all__ = ["DEFAULT_AHEAD_BYTES", "ReadAhead"]

DEFAULT_AHEAD_BYTES = 16 * MIB

_SLOW_SHARE = 1 / 8
_MEMORY_READS = 32
_FAST_PROBES = 8
_PROBES_COST_ONE_IN = 100
_FIRST_DEPTH, _MAX_DEPTH = 4, 256
_CALM_SAMPLES = 64
_MAX_GAP_BYTES = 16 * KIB
_MAX_READ_BYTES = 4 * MIB
_GUESSED_FILE_BYTES = 128 * KIB
_THREAD_NAME = "mpload-ahead"
_COUNTS_WAITS = sys.platform == "linux"
_Read = TypeVar("_Read")


def num_waits_of_thread() -> int:
    """Return how often this thread has given up its core voluntarily, to wait for a disk, the network or a lock."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if _COUNTS_WAITS else time.perf_counter_ns()


class _Fetch:
    """One read, for one sample or several neighbours. A Future would be noticeably slower per sample."""

    __slots__ = ("data", "held_bytes", "is_begun", "item", "num_wanting", "sample_id", "taken", "unfinished")

    def __init__(self, item: ByteRange) -> None:
        self.item = item
        self.sample_id: int | None = None  # the only sample that uses this read; None if several do
        self.num_wanting = 0  # ranges in this read that have not been requested yet
        self.held_bytes = 0  # bytes that it counts towards `max_bytes` once it has begun
        self.is_begun = False
        self.taken = threading.Lock()  # acquired by the thread that reads it, or to cancel it
        self.unfinished = threading.Lock()  # released when the read has ended
        self.data: bytes | None = None  # None if it has not been read, or the read failed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """The place of one of a sample's ranges in a read. A `length_bytes` of None means the whole read."""

    fetch: _Fetch
    start_bytes: int = 0
    length_bytes: int | None = None


class ReadAhead:
    """Reads samples that will be requested soon, while others are decoded.

    Threads are started only when reads turn out to be slow. Until then, a read of a cached file costs only a clock
    reading more. Afterwards, as many samples are read ahead as are needed to avoid waiting. The number grows after each
    wait, and shrinks after a time without waits. Now and then one sample, the probe, is left to be read when it is
    requested, to find out whether reading ahead still pays. Probes take at most 1 % of the time.

    If reading ahead fails for a sample, the failure is ignored. The sample is read again when it is requested, and only
    then is an error raised. So an error never affects another sample.

    Args:
        storage: the storage to read from.
        max_bytes: limit on bytes that have been read ahead and not yet requested. The size of a whole file is not known
            in advance, so it counts as the mean size so far.
        monotonic_ns: the clock.
        count_waits: returns how often this thread has waited so far; None means that the kernel is asked.

    Memory: `max_bytes`, and a stack for each of the storage's `max_parallel_reads` threads.
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
        self._storage = storage
        self.max_parallel_reads: int = getattr(storage, "max_parallel_reads", 1)
        """Maximum number of reads in progress at the same time."""
        self._clock_ns = monotonic_ns
        self._count_waits = count_waits or num_waits_of_thread
        self._slow_share = 0.0
        self._num_watched = _MEMORY_READS  # how many of the next reads to check for waits; a check takes a microsecond
        self._mean_file_bytes = float(_GUESSED_FILE_BYTES)
        self._is_possible = self.max_parallel_reads > 1
        self.is_active = False
        """Whether reads are slow enough that `plan` pays."""
        self.was_active = False
        """Whether `is_active` was ever true."""
        self.depth = _FIRST_DEPTH
        """Number of samples to read ahead."""
        self.num_waits = 0
        """Number of samples that were requested before they had been read."""
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._num_started = 0
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._end = weakref.finalize(self, self._jobs.put, None)  # ends a thread, which passes None on to the next
        self._pieces: dict[int, list[_Piece]] = {}  # by sample_id, in the order planned
        self._queue: deque[_Fetch] = deque()  # reads that have not begun
        self._held_bytes = 0
        self._num_ahead = 0  # ranges whose read has begun and that have not been requested yet
        self._num_since_change = 0  # samples requested since `depth` last changed
        self._num_fast_probes = 0
        self._probe: int | None = None  # the sample that is left to be read when it is requested
        self._next_probe_ns = 0

    def plan(self, wanted: Mapping[int, Sequence[ByteRange]]) -> None:
        """Read these samples ahead in this order, as far as `depth` and `max_bytes` allow, and cancel all others.

        Args:
            wanted: the ranges of each sample, by sample_id. A sample must have the same ranges in every call.
        """
        self._check_process()
        if not self.is_active:
            return
        for sample_id in [known for known in self._pieces if known not in wanted]:
            self._release(self._pieces.pop(sample_id))
        if self._probe not in wanted:
            self._probe = None
        fresh = {sample_id: ranges for sample_id, ranges in wanted.items() if sample_id not in self._pieces}
        pieces, fetches = _plan(fresh, max_read_bytes=min(_MAX_READ_BYTES, max(1, self.max_bytes // 4)))
        self._pieces.update(pieces)
        self._queue.extend(fetches)
        self._begin()

    def read(self, sample_id: int, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of a sample's ranges, reading them now unless they were read ahead.

        Raises:
            StorageError: the bytes cannot be read.
        """
        if not self.is_active:
            return self.measured(lambda: self._storage.read(ranges))
        self._check_process()
        pieces = self._pieces.pop(sample_id, None)
        found = None if pieces is None else self._collect(pieces)
        if found is None:
            if sample_id == self._probe:
                found = self.measured(lambda: self._storage.read(ranges))
                self._probe = None
            else:
                found = self._storage.read(ranges)
        self._begin()
        return found

    def _collect(self, pieces: Sequence[_Piece]) -> list[bytes] | None:
        """Wait for the reads of a sample. Return None if one of them has not begun or has failed."""
        self._adapt(is_late=any(not piece.fetch.is_begun or piece.fetch.unfinished.locked() for piece in pieces))
        try:
            parts = [_bytes_of(piece, self._storage) for piece in pieces]
        finally:
            self._release(pieces)
        for piece, part in zip(pieces, parts, strict=True):
            if piece.length_bytes is None and part is not None:
                self._mean_file_bytes += (len(part) - self._mean_file_bytes) / 16
        return None if None in parts else cast("list[bytes]", parts)

    def _adapt(self, *, is_late: bool) -> None:
        """Double `depth` after a wait, and lower it by one after a time without waits."""
        self.num_waits += is_late
        self._num_since_change += 1
        if is_late and self._num_since_change > self.depth:  # else the last change has not had an effect yet
            self.depth = min(2 * self.depth, _MAX_DEPTH)
        elif not is_late and self._num_since_change > max(_CALM_SAMPLES, self.depth) and self.depth > 2:
            self.depth -= 1
        else:
            return
        self._num_since_change = 0

    def _begin(self) -> None:
        """Pass reads to the threads, as far as `depth` and `max_bytes` allow."""
        while self._queue and self._num_ahead < self.depth:
            fetch = self._queue[0]
            if fetch.num_wanting and not self._is_left_as_probe(fetch):
                num_bytes = fetch.item.length_bytes
                num_bytes = round(self._mean_file_bytes) if num_bytes is None else num_bytes
                if self._held_bytes and self._held_bytes + num_bytes > self.max_bytes:
                    return
                if not self._has_thread():
                    return
                fetch.is_begun = True
                fetch.unfinished.acquire()
                self._jobs.put(partial(_perform, fetch, self._storage))
                fetch.held_bytes = num_bytes
                self._held_bytes += num_bytes
                self._num_ahead += fetch.num_wanting
            self._queue.popleft()

    def run(self, job: Callable[[], object]) -> None:
        """Call `job` in a thread, after the reads queued so far. Its result and exceptions are discarded."""
        self._check_process()
        if self._is_possible and self._has_thread():
            self._jobs.put(job)

    def _has_thread(self) -> bool:
        """Start another thread unless there are enough. Return False if no thread can be started."""
        if self._num_started < min(self.max_parallel_reads, self.depth):
            # A daemon, so that a hanging read cannot prevent the interpreter from exiting.
            thread = threading.Thread(target=_serve, args=(self._jobs,), name=_THREAD_NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit on processes is reached, or the interpreter is exiting
                self._is_possible = self.is_active = False
                self._end()
                self._start()
                return False
            self._num_started += 1
        return True

    def measured(self, read: Callable[[], _Read]) -> _Read:
        """Call `read`, measure it, and return its result. Use it for reads of samples that were not read ahead."""
        is_watched = self.is_active or self._num_watched > 0
        num_waits = self._count_waits() if is_watched else 0
        start_ns = self._clock_ns()
        data = read()
        read_ns = self._clock_ns() - start_ns
        self._num_watched = _MEMORY_READS if read_ns > SLOW_NS else self._num_watched - 1
        if is_watched:
            self._judge(read_ns, has_waited=self._count_waits() > num_waits)
        return data

    def measured_many(self, read: Callable[[], ManyRead]) -> ManyRead:
        """Call `read`, which makes many reads, judge by the slow ones whether reads are slow, and return its result."""
        num_waits = self._count_waits()
        result = read()
        num_slow = min(result.num_slow, self._count_waits() - num_waits)
        num_reads = len(result.lengths)
        if num_reads:
            weight = 1 - (1 - 1 / _MEMORY_READS) ** num_reads
            self._slow_share += (num_slow / num_reads - self._slow_share) * weight
        if num_slow and self._slow_share > _SLOW_SHARE:
            self._activate()
        return result

    def _activate(self) -> None:
        self.is_active, self._num_fast_probes = self._is_possible, 0
        self.was_active = self.was_active or self.is_active

    def _judge(self, read_ns: int, *, has_waited: bool) -> None:
        """Decide whether reads are slow, from one that was not read ahead.

        A read during which this thread never waited is not slow. If cores are scarce, other processes ran meanwhile.
        """
        is_slow = has_waited and read_ns > SLOW_NS
        if not self.is_active:
            self._slow_share += (is_slow - self._slow_share) / _MEMORY_READS
            if is_slow and self._slow_share > _SLOW_SHARE:
                self._activate()
            return
        self._next_probe_ns = self._clock_ns() + _PROBES_COST_ONE_IN * read_ns
        self._num_fast_probes = 0 if is_slow else self._num_fast_probes + 1
        if self._num_fast_probes >= _FAST_PROBES:
            self.is_active, self._slow_share = False, 0.0
            self._end()
            self._start()

    def _is_left_as_probe(self, fetch: _Fetch) -> bool:
        """Return whether a read is left out as a probe. A read that several samples share never is."""
        if self._probe is not None or fetch.sample_id is None or self._clock_ns() < self._next_probe_ns:
            return False
        pieces = self._pieces[fetch.sample_id]
        if any(piece.fetch.is_begun for piece in pieces):  # the disk may have loaded this one along with it
            return False
        self._probe = fetch.sample_id
        self._release(self._pieces.pop(fetch.sample_id))
        return True

    def _release(self, pieces: Sequence[_Piece]) -> None:
        for piece in pieces:
            fetch = piece.fetch
            fetch.num_wanting -= 1
            if fetch.is_begun:
                self._num_ahead -= 1
                if not fetch.num_wanting:
                    self._held_bytes -= fetch.held_bytes
                    fetch.taken.acquire(blocking=False)

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # threads do not survive in a forked child
            self._end.detach()
            self._start()


def _serve(jobs: "SimpleQueue[Callable[[], object] | None]") -> None:
    """Run jobs until None comes: the loop of each thread. It holds no reference to the ReadAhead that it belongs to."""
    while (job := jobs.get()) is not None:
        with suppress(Exception):
            job()
        job = None  # else the bytes it read would stay in memory while the thread waits
    jobs.put(None)


def _perform(fetch: _Fetch, storage: Storage) -> None:
    """Do a read, unless another thread does it or it was cancelled."""
    if fetch.taken.acquire(blocking=False):
        try:
            fetch.data = storage.read([fetch.item])[0]
        except Exception:  # noqa: BLE001  the sample is read again when requested, and raises it then
            fetch.data = None
        finally:
            fetch.unfinished.release()


def _bytes_of(piece: _Piece, storage: Storage) -> bytes | None:
    fetch = piece.fetch
    if not fetch.is_begun:
        return None
    _perform(fetch, storage)  # in this thread, if no other has started it
    # Without a time limit: a hanging read would hang this sample anyway, and the worker's sample timeout ends it.
    with fetch.unfinished:
        data = fetch.data
    if data is None or piece.length_bytes is None or len(data) == piece.length_bytes:
        return data
    return data[piece.start_bytes : piece.start_bytes + piece.length_bytes]


def _plan(
    wanted: Mapping[int, Sequence[ByteRange]], *, max_read_bytes: int
) -> tuple[dict[int, list[_Piece]], list[_Fetch]]:
    """Return the pieces of each sample, and the reads in the order of the first sample that needs each."""
    spans: dict[str, list[ByteRange]] = {}
    for ranges in wanted.values():
        for item in ranges:
            if item.length_bytes is not None:
                spans.setdefault(item.path, []).append(item)
    merged = {path: _merge(path, items, max_read_bytes=max_read_bytes) for path, items in spans.items()}
    fetches: dict[_Fetch, int] = {}  # each read, with the first sample that uses it
    planned: dict[int, list[_Piece]] = {}
    for sample_id, ranges in wanted.items():
        planned[sample_id] = pieces = []
        for item in ranges:
            piece = _Piece(fetch=_Fetch(item)) if item.length_bytes is None else next(merged[item.path])
            piece.fetch.num_wanting += 1
            piece.fetch.sample_id = sample_id if fetches.setdefault(piece.fetch, sample_id) == sample_id else None
            pieces.append(piece)
    return planned, list(fetches)


def _merge(path: str, items: Sequence[ByteRange], *, max_read_bytes: int) -> Iterator[_Piece]:
    """Yield the piece of each span of one file. Neighbouring spans share a read."""
    if len(items) == 1:  # nearly always the case in a global shuffle
        yield _Piece(fetch=_Fetch(items[0]), length_bytes=items[0].length_bytes)
        return
    reads = merge_nearby(
        np.array([item.offset_bytes for item in items], np.int64),
        np.array([item.length_bytes for item in items], np.int64),
        max_gap_bytes=_MAX_GAP_BYTES,
        max_read_bytes=max_read_bytes,
    )
    fetches = [
        _Fetch(Span(path, offset, length))
        for offset, length in zip(reads.offsets.tolist(), reads.lengths.tolist(), strict=True)
    ]
    for item, read, start in zip(items, reads.read_of.tolist(), reads.start_in_read.tolist(), strict=True):
        yield _Piece(fetch=fetches[read], start_bytes=start, length_bytes=item.length_bytes)
