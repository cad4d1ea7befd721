"""Reads files and shards below a root folder."""

import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum, auto
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, StorageError
from mpload.storage.confined import outside_root
from mpload.storage.file_errors import file_error
from mpload.storage.first_seen import FirstSeen
from mpload.storage.many import ManyRanges, ManyReader
from mpload.storage.mapped import MAX_MAPPED_BYTES, MappedShard
from mpload.storage.native import NATIVE
from mpload.storage.protocols import Room
from mpload.storage.ranges import ByteRange
from mpload.storage.regular import open_regular
from mpload.units import format_count, printable

__all__ = ["LocalStorage", "PageCache"]

_FOLDER_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
_PREFETCH_BYTES = 1 << 20  # about the largest read that most devices make at once
_MAX_READ_BYTES = 1 << 30  # one read on Linux returns at most 2 GiB - 4 KiB

_Data = TypeVar("_Data", bytes, NDArray[np.uint8])


class PageCache(StrEnum):
    """What happens to the page cache that reading fills."""

    AUTO = auto()
    """Like `KEEP`. But if the data does not fit into memory, blocks of a `BlockShuffle` are freed after their turn."""
    KEEP = auto()
    """The kernel decides. Data that fits is still cached when it is read again."""
    DROP = auto()
    """The cache is freed after each read. For data that does not fit, in containers that are charged for page cache."""


class _Open:
    """An open file or folder. It is closed when the last reference to it is dropped."""

    __slots__ = ("__weakref__", "descriptor", "is_exact", "map")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_exact = False  # whether the kernel reads nothing beyond what it is asked for
        self.map: MappedShard | None = None
        weakref.finalize(self, os.close, descriptor)


class LocalStorage:
    """Reads whole files and spans of shards below one folder.

    A path is relative to `root`, or absolute. The kernel checks that it stays inside `root` while it opens the file, or
    the check is made on the open file (outside Linux, on its resolved path). So neither `..` nor a symbolic link leads
    outside `root`, even if a link is changed at the same time.

    Args:
        root: The folder that paths are relative to.
        allow_outside_root: Allow absolute paths, `..` and symbolic links to lead outside `root`.
        max_open_files: Number of shards that stay open; the least recently used one is closed first. Whole files are
            closed immediately.
        max_bytes: Size of the largest file or span that may be read; None means no limit.
        page_cache: `"drop"` frees the page cache after each read, including pages shared with neighbouring spans.

    Memory:
        The bytes that `read` returns, a path and a descriptor for each open shard, and a descriptor for the root.

    Process:
        May be forked: shards are read with `pread`, so processes share no file position. Programs that this process
        starts do not inherit the descriptors. May be pickled: the copy opens its files again. Any thread may read.
    """

    max_parallel_reads = 16
    """Number of threads worth using if the disk or network has a high latency."""

    def __init__(
        self,
        root: Path,
        *,
        allow_outside_root: bool = False,
        max_open_files: int = 64,
        max_bytes: int | None = None,
        page_cache: PageCache | str = PageCache.KEEP,
    ) -> None:
        if page_cache not in set(PageCache):
            raise ArgumentError(f'page_cache must be "auto", "keep" or "drop", got {page_cache!r}')
        if max_open_files < 1:
            raise ArgumentError(f"max_open_files must be positive, got {max_open_files}")
        self._root = Path(root)
        self._allow_outside_root = allow_outside_root
        self._max_open_files = max_open_files
        self._max_bytes = max_bytes
        self._page_cache = PageCache(page_cache)
        self._drops_pages = page_cache == PageCache.DROP and hasattr(os, "posix_fadvise")
        self._saves_pages = self._drops_pages
        self._keeps_until_forgotten = False
        self._real_root = _with_slash(os.path.realpath(root))
        self._roots = (self._real_root, _with_slash(os.path.abspath(root)))  # noqa: PTH100  the root as written
        self._folder: _Open | None = None
        self._first_seen: FirstSeen | None = None
        # By path, least recently used first. Threads share it without a lock, which is safe with a plain dict. With an
        # OrderedDict it is not: if an entry is removed while it is being replaced, its key stays behind.
        self._shards: dict[str, _Open] = {}

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`.

        Raises:
            OutsideRootError: A path leads outside the root.
            IndexChangedError: After `share_files`, a shard was replaced.
            StorageError: Bytes could not be read. `errno` is set if the system reported one. The message names the
                first range that failed; to learn about the others, read them one at a time.
        """
        return [
            self._read_file(item.path, _read_whole)
            if item.length_bytes is None
            else self._read_span(item.path, item.offset_bytes, item.length_bytes)
            for item in ranges
        ]

    def read_into(self, item: ByteRange, room: Room) -> NDArray[np.uint8]:
        """Read a range into the array uint8 [n] that `room(n)` returns, and return that array.

        Raises:
            OutsideRootError, StorageError: as for `read`.
        """
        if item.length_bytes is None:
            return self._read_file(item.path, lambda descriptor, num_bytes: _fill(descriptor, room(num_bytes)))
        data = self._read_span(item.path, item.offset_bytes, item.length_bytes)
        array = room(len(data))
        array[:] = np.frombuffer(data, np.uint8)
        return array

    def many_reader(self, ranges: ManyRanges, *, maps_shards: bool = False) -> ManyReader | None:
        """Return what reads many ranges with native calls; None where that is impossible.

        With `maps_shards`, shards are mapped into memory, up to 2 GiB: see `mpload.storage.mapped`.
        """
        # Native calls free no pages: those of spans can be left to `forget`, but those of files cannot.
        drops = self._drops_pages and not (self._keeps_until_forgotten and (ranges.lengths >= 0).all())
        if NATIVE is None or drops or sys.getfilesystemencoding() != "utf-8":
            return None
        try:
            folder = self._open_folder()
        except OSError:
            return None
        return ManyReader(
            ranges,
            folder=folder,
            open_shard=self._mapped_shard if maps_shards and not self._saves_pages else self._shard,
            max_shards=self._max_open_files,
            max_bytes=self._max_bytes,
        )

    def prefetch(self, item: ByteRange) -> None:
        """Load a span into the page cache, with large reads. From then on, pages are freed only by `forget`."""
        self._keeps_until_forgotten = True
        shard = self._shard(item.path)
        end = item.offset_bytes + (item.length_bytes or 0)
        # Pieces that are already cached are copied again. Non-blocking reads cannot tell reliably which are cached: the
        # kernel starts to load the requested page, and may then report that it was cached.
        buffer = memoryview(bytearray(_PREFETCH_BYTES))
        for start in range(item.offset_bytes, end, _PREFETCH_BYTES):
            if not os.preadv(shard.descriptor, [buffer[: end - start]], start):
                break  # the span ends after the end of the shard; reading its sample will raise the error

    def has_cached(self, path: str, offsets: Iterable[int]) -> bool:
        """Return whether the page cache holds the bytes at these offsets of a shard.

        The kernel begins to load the first one that it does not hold. False too where that cannot be found out.
        """
        if not hasattr(os, "RWF_NOWAIT"):
            return False
        shard, byte = self._shard(path), bytearray(1)
        try:
            return all(os.preadv(shard.descriptor, [byte], offset, os.RWF_NOWAIT) for offset in offsets)
        except OSError:  # nearly always a BlockingIOError
            return False

    def share_files(self) -> None:
        """Let all processes that are forked from this one read the same folder and shards; see `SharingStorage`."""
        with suppress(OSError):
            self._open_folder()
        with suppress(OSError):
            self._first_seen = FirstSeen()

    def save_page_cache(self) -> None:
        """From now on, load no more pages of shards than are asked for, and free those that `forget` names."""
        self._saves_pages = hasattr(os, "posix_fadvise")

    def forget(self, item: ByteRange) -> None:
        """Free the page cache of a span, if `page_cache="drop"` or `save_page_cache` was called."""
        if self._saves_pages:
            shard = self._shard(item.path)
            _drop_pages(shard.descriptor, item.offset_bytes, item.offset_bytes + (item.length_bytes or 0))

    def close(self) -> None:
        """Close all open shards. The next read opens them again."""
        self._shards.clear()
        self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self._root, self._allow_outside_root, self._max_open_files, self._max_bytes, self._page_cache)

    def __repr__(self) -> str:
        return f"LocalStorage({str(self._root)!r}, allow_outside_root={self._allow_outside_root})"

    def _read_file(self, path: str, read: Callable[[int, int], _Data]) -> _Data:
        """Open a file, and return the result of `read(descriptor, size in bytes)`."""
        descriptor, num_bytes = self._open(path)
        try:
            self._check_size(path, num_bytes)
            data = read(descriptor, num_bytes)
            if self._drops_pages:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except StorageError:
            raise
        except OSError as error:
            raise file_error(path, error) from error
        finally:
            os.close(descriptor)
        if len(data) < num_bytes:
            raise StorageError(
                f"{printable(path)}: shrank while it was read, from {format_count(num_bytes)} to "
                f"{format_count(len(data))} bytes. Do not change files while a job reads them",
            )
        return data

    def _read_span(self, path: str, offset_bytes: int, length_bytes: int) -> bytes:
        self._check_size(path, length_bytes)
        shard = self._shard(path)
        end = offset_bytes + length_bytes
        try:
            # Checked at every read. It is cheap, it notices that a shard is still growing, and it prevents a huge
            # allocation when a broken line of the index holds a huge length.
            shard_bytes = os.fstat(shard.descriptor).st_size
            data = _read_at(shard.descriptor, offset_bytes, length_bytes) if end <= shard_bytes else None
            if self._drops_pages and not self._keeps_until_forgotten:
                _drop_pages(shard.descriptor, offset_bytes, end)
        except OSError as error:
            raise file_error(path, error) from error
        if data is None or len(data) < length_bytes:
            raise StorageError(
                f"{printable(path)}: the span {offset_bytes}+{length_bytes} ends at byte {format_count(end)}, but the "
                f"shard has {format_count(shard_bytes)} bytes. Is its copy complete? If so, build the index again",
            )
        return data

    def _check_size(self, path: str, num_bytes: int) -> None:
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            raise StorageError(
                f"{printable(path)}: is not read: its {format_count(num_bytes)} bytes exceed "
                f"max_bytes={format_count(self._max_bytes)}. Raise that limit, or remove the sample from the index"
            )

    def _shard(self, path: str) -> _Open:
        """Return an open shard. Hold it while you use it, because another thread may drop it from the open shards."""
        shard = self._shards.pop(path, None)
        if shard is None:
            shard = _Open(self._open(path)[0])
            if self._first_seen is not None:
                self._first_seen.check(path, os.fstat(shard.descriptor))
        if self._saves_pages and not shard.is_exact:  # else pages that the kernel reads beyond a span would stay cached
            os.posix_fadvise(shard.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            shard.is_exact, shard.map = True, None  # mapped pages cannot be freed
        self._shards[path] = shard  # may close another thread's shard, which releases the GIL
        while len(self._shards) > self._max_open_files:
            with suppress(RuntimeError):  # another thread has changed the dict in between
                self._shards.pop(next(iter(self._shards), path), None)
        return shard

    def _mapped_shard(self, path: str) -> _Open:
        """Return an open shard, mapped unless all maps would then exceed the limit."""
        shard = self._shard(path)
        if shard.map is None:
            others = list(self._shards.values())  # other threads may change the dict at any time
            mapped_bytes = sum(len(other.map.data) for other in others if other.map is not None)
            shard.map = MappedShard.of(shard.descriptor, max_bytes=MAX_MAPPED_BYTES - mapped_bytes)
        return shard

    def _open(self, path: str) -> tuple[int, int]:
        """Open a regular file inside the root, and return its descriptor and its size in bytes."""
        if (opened := self._open_beneath(path)) is not None:
            return opened
        # Paths are strings in this class, because pathlib is slower and this runs for every sample.
        full = path if path[:1] == "/" else self._real_root + path
        if not self._allow_outside_root and (path[:1] == "/" or ".." in path):
            plain = os.path.normpath(full)
            if not plain.startswith(self._roots):  # refuse it without opening it
                raise outside_root(path, plain, self._real_root)
        descriptor, num_bytes = open_regular(full, path)
        try:
            if not self._allow_outside_root:
                self._check_inside(descriptor, path, full)
        except StorageError:
            os.close(descriptor)
            raise
        return descriptor, num_bytes

    def _open_beneath(self, path: str) -> tuple[int, int] | None:
        """Do the same as `_open` in one system call, which cannot leave the root. Return None if that is impossible."""
        if NATIVE is None or path[:1] == "/":
            return None
        try:
            return NATIVE.open_beneath(self._open_folder().descriptor, path)
        except (OSError, ValueError):  # the folder does not exist, or the path contains a NUL
            return None

    def _open_folder(self) -> _Open:
        folder = self._folder = self._folder or _Open(os.open(self._real_root, _FOLDER_FLAGS))
        return folder

    def _check_inside(self, descriptor: int, path: str, full: str) -> None:
        try:
            real = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        except OSError:  # not Linux, or /proc is not mounted
            real = os.path.realpath(full)
        if not real.startswith(self._real_root):
            raise outside_root(path, real, self._real_root)


def _rebuild(
    root: Path, allow_outside_root: bool, max_open_files: int, max_bytes: int | None, page_cache: PageCache
) -> LocalStorage:
    return LocalStorage(
        root,
        allow_outside_root=allow_outside_root,
        max_open_files=max_open_files,
        max_bytes=max_bytes,
        page_cache=page_cache,
    )


def _drop_pages(descriptor: int, start_bytes: int, end_bytes: int) -> None:
    """Free the page cache of these bytes, including partial pages at both ends, which the kernel would keep."""
    first = start_bytes - start_bytes % mmap.PAGESIZE
    os.posix_fadvise(descriptor, first, -(-end_bytes // mmap.PAGESIZE) * mmap.PAGESIZE - first, os.POSIX_FADV_DONTNEED)


def _with_slash(folder: str) -> str:
    return folder.rstrip("/") + "/"


def _read_whole(descriptor: int, num_bytes: int) -> bytes:
    return _read_at(descriptor, 0, num_bytes)


def _fill(descriptor: int, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read a file into `array`, and return the part that was filled, which is shorter if the file ends early."""
    done = os.preadv(descriptor, [array.data], 0)
    while done < len(array) and (num_bytes := os.preadv(descriptor, [array.data[done:]], done)):
        done += num_bytes
    return array[:done]


def _read_at(descriptor: int, offset_bytes: int, length_bytes: int) -> bytes:
    """Return `length_bytes` bytes, or fewer if the file ends early."""
    data = os.pread(descriptor, min(length_bytes, _MAX_READ_BYTES), offset_bytes)
    if len(data) == length_bytes or not data:
        return data
    parts, done = [data], len(data)
    while done < length_bytes and parts[-1]:
        parts.append(os.pread(descriptor, min(length_bytes - done, _MAX_READ_BYTES), offset_bytes + done))
        done += len(parts[-1])
    return b"".join(parts)
