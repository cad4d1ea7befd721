"""The reads that read-ahead makes. One read is for a sample or for several neighbours."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mpload.errors import OutageError, StorageError
from mpload.storage.merging import merge_nearby
from mpload.storage.ranges import ByteRange, Span
from mpload.units import KIB

__all__ = ["Fetch", "Piece", "Read", "plan_fetches"]

_MAX_GAP_BYTES = 16 * KIB
Read = Callable[[ByteRange, Callable[[], bool]], bytes]
"""Reads a range. The second argument tells whether it is still wanted."""


class Fetch:
    """One read, for one sample or several neighbours. A Future would be noticeably slower per sample.

    Several threads may make the same read; the first answer counts, and later ones are dropped.
    """

    __slots__ = (
        "_won",
        "began_ns",
        "data",
        "failure",
        "held_bytes",
        "is_begun",
        "is_hedged",
        "is_hedging",
        "is_timed",
        "item",
        "num_wanting",
        "read_ns",
        "sample_id",
        "taken",
        "unfinished",
    )

    def __init__(self, item: ByteRange) -> None:
        self.item = item
        self.sample_id: int | None = None  # the only sample that uses this read; None if several do
        self.num_wanting = 0  # ranges in this read that have not been requested yet
        self.held_bytes = 0  # bytes that it counts towards `max_bytes` once it has begun
        self.is_begun = False
        self.taken = threading.Lock()  # acquired by the thread that reads it, or to cancel it
        self.unfinished = threading.Lock()  # released when the read has ended
        self._won = threading.Lock()  # acquired by the thread whose answer counts
        self.data: bytes | None = None  # None if it has not been read, or the read failed
        self.failure: StorageError | None = None  # why no byte can be read, unless that is an outage
        self.began_ns = 0  # when a thread began to read it; 0 before
        self.read_ns = 0  # how long that took; 0 before its end
        self.is_timed = False  # whether that time has been noted
        self.is_hedged = False  # whether a second request was made, or is about to be
        self.is_hedging = False  # whether that one is in progress

    def begin(self) -> None:
        """Make `wait` wait until the read has ended."""
        self.is_begun = True
        self.unfinished.acquire()

    def perform(self, read: Read, clock_ns: Callable[[], int]) -> None:
        """Do the read, unless another thread does it or it was cancelled."""
        if self.take(clock_ns()):
            self.finish(partial(read, self.item, self.is_wanted), clock_ns)

    def take(self, now_ns: int) -> bool:
        """Note that the read begins. Return False if another thread does it or it was cancelled."""
        if not self.taken.acquire(blocking=False):
            return False
        self.began_ns = now_ns
        return True

    def finish(self, read: Callable[[], bytes], clock_ns: Callable[[], int]) -> None:
        """Do the read, which was taken before, to its end."""
        data = None
        try:
            data = read()
        except OutageError:
            pass
        except StorageError as error:
            self.failure = error.with_traceback(None)  # which refers to the stack of this thread
        except BaseException:  # noqa: BLE001, S110  the sample is read again when requested, and raises it then
            pass
        finally:
            self.end(data, clock_ns())

    def end(self, data: bytes | None, now_ns: int) -> None:
        """Note that the read has ended, with these bytes; None means that it has failed."""
        self.read_ns = max(1, now_ns - self.began_ns)
        self._take(data)

    def hedge(self, read_again: Callable[[ByteRange], bytes]) -> None:
        """Do the read a second time, unless it has ended meanwhile. A failure is ignored."""
        try:
            if self.is_wanted():
                self._take(read_again(self.item))
        except BaseException:  # noqa: BLE001, S110  the first request may still succeed
            pass
        finally:
            self.is_hedging = False

    def wait(self, seconds: float = -1) -> bool:
        """Wait until the read has ended, or for so long. Return whether it has ended."""
        if not self.unfinished.acquire(timeout=seconds):
            return False
        self.unfinished.release()
        return True

    @property
    def is_late(self) -> bool:
        """Whether the bytes are not there although they are requested now."""
        return not self.is_begun or self.unfinished.locked()

    @property
    def is_running(self) -> bool:
        """Whether a thread is reading it, which it may be after another thread has brought an answer."""
        return self.is_hedging or (self.began_ns > 0 and not self.read_ns)

    def is_failing_like(self, failed_ns: int, now_ns: int) -> bool:
        """Whether it has failed, or has already taken half as long as another one that failed."""
        if not self.began_ns or self.data is not None:
            return False
        return self.failure is not None or 2 * (now_ns - self.began_ns) > failed_ns

    def fail(self) -> None:
        """Raise the failure of the read, and forget it, since its traceback will refer to the caller."""
        failure, self.failure = self.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure

    def drop(self) -> None:
        """Release the bytes, and cancel the read if no thread has begun it."""
        self.data = None
        self.taken.acquire(blocking=False)

    def is_wanted(self) -> bool:
        """Return whether the bytes are still of use."""
        return self.num_wanting > 0 and not self._won.locked()

    def _take(self, data: bytes | None) -> None:
        """Keep an answer if it is the first one, and if it is still wanted."""
        if self._won.acquire(blocking=False):
            if self.num_wanting:
                self.data = data
            self.unfinished.release()


@dataclass(slots=True, kw_only=True, eq=False)
class Piece:
    """The place of one of a sample's ranges in a read. A `length_bytes` of None means the whole read."""

    fetch: Fetch
    start_bytes: int = 0
    length_bytes: int | None = None
    is_used: bool = False
    """Whether the sample is in use. Its ranges no longer count as read ahead."""

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the range. That of a whole file is a guess until it has been read."""
        if self.length_bytes is not None:
            return self.length_bytes
        return self.fetch.held_bytes if self.fetch.data is None else len(self.fetch.data)

    def part_of(self, data: bytes) -> bytes:
        """Return the bytes of the range, given those of the read."""
        if self.length_bytes is None or len(data) == self.length_bytes:
            return data
        return data[self.start_bytes : self.start_bytes + self.length_bytes]


def plan_fetches(
    wanted: Mapping[int, Sequence[ByteRange]], *, max_read_bytes: int
) -> tuple[dict[int, list[Piece]], list[Fetch]]:
    """Return the pieces of each sample, and the reads in the order of the first sample that needs each."""
    spans: dict[str, list[ByteRange]] = {}
    for ranges in wanted.values():
        for item in ranges:
            if item.length_bytes is not None:
                spans.setdefault(item.path, []).append(item)
    merged = {path: _merge(path, items, max_read_bytes=max_read_bytes) for path, items in spans.items()}
    fetches: dict[Fetch, int] = {}  # each read, with the first sample that uses it
    planned: dict[int, list[Piece]] = {}
    for sample_id, ranges in wanted.items():
        planned[sample_id] = pieces = []
        for item in ranges:
            piece = Piece(fetch=Fetch(item)) if item.length_bytes is None else next(merged[item.path])
            piece.fetch.num_wanting += 1
            piece.fetch.sample_id = sample_id if fetches.setdefault(piece.fetch, sample_id) == sample_id else None
            pieces.append(piece)
    return planned, list(fetches)


def _merge(path: str, items: Sequence[ByteRange], *, max_read_bytes: int) -> Iterator[Piece]:
    """Yield the piece of each span of one file. Neighbouring spans share a read."""
    if len(items) == 1:  # nearly always the case in a global shuffle
        yield Piece(fetch=Fetch(items[0]), length_bytes=items[0].length_bytes)
        return
    reads = merge_nearby(
        np.array([item.offset_bytes for item in items], np.int64),
        np.array([item.length_bytes for item in items], np.int64),
        max_gap_bytes=_MAX_GAP_BYTES,
        max_read_bytes=max_read_bytes,
    )
    fetches = [
        Fetch(Span(path, offset, length))
        for offset, length in zip(reads.offsets.tolist(), reads.lengths.tolist(), strict=True)
    ]
    for item, read, start in zip(items, reads.read_of.tolist(), reads.start_in_read.tolist(), strict=True):
        yield Piece(fetch=fetches[read], start_bytes=start, length_bytes=item.length_bytes)
