"""What the files of shards were when a process of a job first opened them.

Workers keep shards open. If a pack is made again in place, they go on with the old files, but a worker that takes the
place of another one would open the new ones, whose bytes are those of other samples. So workers that are forked from
one process share a table of the shards that they have opened, and refuse one that has been replaced since.

A file counts as replaced if it is another one (by its inode) of another size or modification time. A file that was
changed in place is the same one: all workers read the same bytes. If it has shrunk, samples whose bytes are gone are
bad ones. A copy that differs in nothing but the inode, which some file systems number anew, is the same one, too.

A shard at a URL is not kept open, so each answer of its server is compared with the first one. The shard counts as
replaced if its size differs, or both its ETag and its time: each server behind a load balancer may have its own ETags.
What one of the two answers does not say is not compared.
"""

import os
import struct
from collections.abc import Callable, Iterator
from mmap import mmap

from mpload.errors import IndexChangedError
from mpload.units import printable

__all__ = ["FirstSeen"]

_ROW = struct.Struct("<5q")  # of the path, inode, size, modification time, of all of these
_LEVELS = (1 << 8, 1 << 12, 1 << 16, 1 << 18)
"""The number of rows in each part of the table. The first are small, so that few shards take few pages of memory."""
_NUM_TRIES = 4
_NOTHING, _UNKNOWN_SIZE = hash(""), -1
_Facts = tuple[int, int, int]


class FirstSeen:
    """A table of files in shared memory.

    Memory: about 40 bytes for each shard, once for all processes. Of 100,000 shards or more, a few are not in it.
    Process: shared with all processes that are forked from the one that made it. They need no lock: a row that two
    processes have written at once does not match its checksum, and counts as none.

    Raises:
        OSError: there is no memory.
    """

    def __init__(self) -> None:
        self._map = mmap(-1, _ROW.size * sum(_LEVELS))

    def check(self, path: str, facts: os.stat_result) -> None:
        """Note what a file is, or compare it with what it was.

        Raises:
            IndexChangedError: it is another one.
        """
        if not self._is_same(path, (facts.st_ino, facts.st_size, facts.st_mtime_ns), _are_same_file):
            raise _changed(path, "some workers would read the old file and others the new one")

    def check_object(self, url: str, *, etag: str, modified: str, num_bytes: int) -> None:
        """Note what an object at a URL is, or compare it with what it was.

        Args:
            url: its URL, without a query.
            etag: its ETag; empty if the server does not say.
            modified: when it was last modified, as the server writes it; empty if the server does not say.
            num_bytes: its size; -1 if the server does not say.

        Raises:
            IndexChangedError: it is another one.
        """
        etag = etag.removeprefix("W/")
        if not self._is_same(url, (hash(etag), num_bytes, hash(modified)), _are_same_object):
            raise _changed(url, "samples would be read from two versions of it")

    def _is_same(self, path: str, now: _Facts, are_same: Callable[[_Facts, _Facts], bool]) -> bool:
        """Note what is at a path, or return whether it is the same as before."""
        now = _signed(now[0]), _signed(now[1]), _signed(now[2])
        key = hash(path) or 1
        for offset in _offsets_of(key):
            found, first, second, third, check = _ROW.unpack_from(self._map, offset)
            before = first, second, third
            if found and check != hash((found, *before)):
                continue
            if found == key:
                return are_same(before, now)
            if not found:
                row = key, *now
                _ROW.pack_into(self._map, offset, *row, hash(row))
                return True
        return True


def _changed(path: str, why: str) -> IndexChangedError:
    return IndexChangedError(
        f"{printable(path)}: was replaced while it was in use, so {why}. Start the job again. If the samples in it "
        "have moved, build the index again first"
    )


def _offsets_of(key: int) -> Iterator[int]:
    """Yield where the row of a file may be."""
    first = 0
    for num_rows in _LEVELS:
        for number in range(_NUM_TRIES):
            yield _ROW.size * (first + (key + number) % num_rows)
        first += num_rows


def _are_same_file(before: _Facts, now: _Facts) -> bool:
    """Compare inodes, or sizes and times."""
    return before[0] == now[0] or before[1:] == now[1:]


def _are_same_object(before: _Facts, now: _Facts) -> bool:
    """Compare sizes, ETags and times. A value that either answer lacks is not compared."""
    (etag, size, time), (etag_now, size_now, time_now) = before, now
    if size != size_now and _UNKNOWN_SIZE not in {size, size_now}:
        return False
    are_known = [_NOTHING not in {etag, etag_now}, _NOTHING not in {time, time_now}]
    are_equal = [etag == etag_now, time == time_now]
    return not any(are_known) or any(known and equal for known, equal in zip(are_known, are_equal, strict=True))


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as a signed one."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
