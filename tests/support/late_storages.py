"""A storage behind a network, of which a few answers come very late, and how tests read from it."""

import threading
import time
from collections.abc import Callable, Sequence
from zlib import crc32

from mpload.errors import OutageError, StorageError
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange
from mpload.storage.read_ahead import ReadAhead
from tests.support.storages import FILE, SLOW_SECONDS, SlowMemory

__all__ = ["FILES", "NUM_FILES", "FarFiles", "LateMemory", "late_every", "read_in_order"]

NUM_FILES = 400
FILES = {str(number): FILE[number : 2 * number + 1] for number in range(NUM_FILES)}


class LateMemory(SlowMemory):
    """Like `SlowMemory`, but behind a network: the first read of some files hangs until `answer_late` is set."""

    max_parallel_reads = 16

    def __init__(self, files: dict[str, bytes], *, late: Callable[[str], bool], seconds: float = SLOW_SECONDS) -> None:
        super().__init__(files, seconds=seconds)
        self.is_late = late
        self.answer_late = threading.Event()
        self.is_calm = True
        self.is_hedge_good = True
        self.reads_again: list[ByteRange] = []

    def read_wanted(self, item: ByteRange, is_wanted: Callable[[], bool]) -> bytes:
        data = self.read([item])[0]
        if self.is_late(item.path):
            self.answer_late.wait(60)
        return data

    def read_again(self, item: ByteRange) -> bytes:
        self.reads_again.append(item)
        if not self.is_hedge_good:
            raise StorageError("a hedge that fails")
        return self._one(item)

    def may_read_again(self, item: ByteRange) -> bool:
        return self.is_calm


class FarFiles:
    """The files of another storage, behind a network. Answers come in another order than requests.

    The first request for every `outage_every`-th path meets an outage.
    """

    max_parallel_reads = 8

    def __init__(self, storage: Storage, *, outage_every: int = 0) -> None:
        self.storage = storage
        self.outage_every = outage_every
        self.reads: list[ByteRange] = []
        self.outages: set[str] = set()

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        self.reads.extend(ranges)
        return self.storage.read(ranges)

    def read_wanted(self, item: ByteRange, is_wanted: Callable[[], bool]) -> bytes:
        number = crc32(item.path.encode())
        if self.outage_every and not number % self.outage_every and item.path not in self.outages:
            self.outages.add(item.path)
            raise OutageError(f"{item.path}: the server does not answer")
        time.sleep(number % 4 * SLOW_SECONDS)
        return self.read([item])[0]

    def read_again(self, item: ByteRange) -> bytes:
        return self.read([item])[0]

    def may_read_again(self, item: ByteRange) -> bool:
        return False


def late_every(number: int) -> LateMemory:
    """Return a storage in which, after 200 files, the first read of every file with a multiple of `number` hangs."""
    return LateMemory(FILES, late=lambda path: int(path) > 200 and not int(path) % number)


def read_in_order(ahead: ReadAhead, *, last: int = NUM_FILES) -> list[bytes]:
    """Plan the files before `last`, and read them one after another."""
    wanted = {number: [ByteRange(str(number))] for number in range(last)}
    ahead.plan(wanted)
    return [ahead.read(number, ranges)[0] for number, ranges in wanted.items()]
