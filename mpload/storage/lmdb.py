"""Reads values from LMDB data files, by key."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mpload.errors import ArgumentError, StorageError
from mpload.storage.confined import real_path
from mpload.storage.first_seen import FirstSeen
from mpload.storage.ranges import ByteRange, LmdbValue
from mpload.units import format_count, printable

if TYPE_CHECKING:
    import lmdb

__all__ = ["COPY_IT", "LmdbFile", "LmdbStorage", "open_lmdb"]

_INSTALL = "pip install 'mpload[lmdb]'"


class LmdbFile:
    """An open data file. It is closed when the last reference to it is dropped.

    Process: usable only in the process that opened it, by any thread.
    """

    __slots__ = ("__weakref__", "environment", "path", "pid")

    def __init__(self, path: str, environment: "lmdb.Environment") -> None:
        self.path = path
        self.environment = environment
        self.pid = os.getpid()
        weakref.finalize(self, environment.close)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None if the file has no such key."""
        with _fork_gate:
            transaction = self.environment.begin()
            try:
                value: bytes | None = transaction.get(key)
                return value
            finally:
                transaction.abort()
                del transaction  # free it inside the gate: a fork while lmdb 1.6 frees it would break the child


class _ForkGate:
    """Admits any number of threads, and lets this process fork only while no thread is inside.

    If a thread were reading during a fork, closing the environment in the child would wait for that thread forever.
    """

    def __init__(self) -> None:
        self._entrance = threading.Lock()  # held by a forking thread, so that no other thread enters
        self._count = threading.Lock()
        self._is_empty = threading.Condition(self._count)
        self._num_inside = 0
        if hasattr(os, "register_at_fork"):  # missing on Windows
            os.register_at_fork(
                before=self._shut, after_in_parent=self._entrance.release, after_in_child=self._entrance.release
            )

    def __enter__(self) -> None:
        with self._entrance, self._count:
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._count:
            self._num_inside -= 1
            if not self._num_inside and self._entrance.locked():
                self._is_empty.notify()

    def _shut(self) -> None:
        self._entrance.acquire()
        with self._is_empty:
            self._is_empty.wait_for(lambda: not self._num_inside)


# LMDB allows a process to open a file only once, but several loaders may read it. So all loaders share the open files,
# each of which stays open while anything refers to it.
_open_files: weakref.WeakValueDictionary[tuple[int, int], LmdbFile] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()
_fork_gate = _ForkGate()


def open_lmdb(path: str) -> LmdbFile:
    """Open an LMDB data file for reading, without a lock file and without writing anything.

    Args:
        path: the data file itself: `train.lmdb/data.mdb`, or a file that was written with `subdir=False`.

    Raises:
        ArgumentError: the package lmdb is not installed.
        StorageError: the file does not exist, is not an LMDB data file, or is truncated.
    """
    try:
        import lmdb  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(f"{path}: reading LMDB takes the package lmdb: {_INSTALL}") from error
    try:
        if Path(path).is_dir():
            raise StorageError(
                f"{printable(path)}: is a directory. Name the data file in it: {printable(path)}/data.mdb"
            )
        facts = Path(path).stat()
    except (OSError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        result = StorageError(
            f"{printable(path)}: {getattr(error, 'strerror', None) or error}. "
            "Does #root of the index point to the right folder, and was the file moved or deleted?"
        )
        result.errno = getattr(error, "errno", None)
        raise result from error
    with _fork_gate, _open_lock:
        known = _open_files.get((facts.st_dev, facts.st_ino))
        if known is not None:
            if known.pid == os.getpid():
                return known
            known.environment.close()  # inherited by a fork; closing it leaves the parent's open
        try:
            environment = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False, max_spare_txns=16)
        except (lmdb.Error, OSError) as error:
            raise StorageError(
                f"{printable(path)}: cannot be opened as LMDB: {printable(str(error))}. {COPY_IT}"
            ) from error
        # Reading past the end of a mapped file kills the process, so check that the file holds all its pages.
        num_bytes = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if facts.st_size < num_bytes:
            environment.close()  # the error's traceback would keep it open
            raise StorageError(
                f"{printable(path)}: has {format_count(facts.st_size)} bytes, but its pages take "
                f"{format_count(num_bytes)}. {COPY_IT}"
            )
        found = _open_files[facts.st_dev, facts.st_ino] = LmdbFile(path, environment)
        return found


COPY_IT = "Is its copy complete? Write or copy it again (mdb_copy)"


class LmdbStorage:
    """Reads values from LMDB data files below one folder.

    Args:
        root: the folder that paths are relative to.
        allow_outside_root: allow absolute paths, `..` and symbolic links to lead outside `root`.
        max_open_files: number of files that stay open; the least recently used one is closed first.
        max_bytes: size of the largest value that may be returned; None means no limit.

    Memory: the values that `read` returns. Pages of the files are page cache.
    Process: may be forked and pickled; each process opens the files again. A fork waits for reads in progress. Any
    thread may read. liblmdb maps the files, so if a file is truncated while it is open, the process that reads it dies
    of SIGBUS. A worker that dies is replaced and its sample counts as bad; with `num_workers=0` the training process
    itself dies.
    """

    max_parallel_reads = 16

    def __init__(
        self,
        root: Path,
        *,
        allow_outside_root: bool = False,
        max_open_files: int = 64,
        max_bytes: int | None = None,
    ) -> None:
        self._root = os.path.realpath(root)
        self._allow_outside_root = allow_outside_root
        self._max_open_files = max_open_files
        self._max_bytes = max_bytes
        self._first_seen: FirstSeen | None = None
        self._start()

    def _start(self) -> None:
        self._files: OrderedDict[str, LmdbFile] = OrderedDict()  # by path, least recently used first
        self._lock = threading.Lock()
        self._pid = os.getpid()  # last, so that no thread of a forked child uses the parent's lock

    def share_files(self) -> None:
        """Let all processes that are forked from this one read the same files; see `SharingStorage`."""
        with suppress(OSError):
            self._first_seen = FirstSeen()

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the value of each `LmdbValue`, in the order of `ranges`.

        Raises:
            IndexChangedError: after `share_files`, a file was replaced.
            OutsideRootError: a path leads outside the root.
            StorageError: a value does not exist or cannot be read.
        """
        return [self._value(item) for item in ranges]

    def _value(self, item: ByteRange) -> bytes:
        assert isinstance(item, LmdbValue)
        file = self._file(item.path)
        import lmdb  # noqa: PLC0415  an optional package, already imported by `open_lmdb`

        try:
            value = file.get(item.key)
        except lmdb.Error as error:  # the key is empty or too long, or a page is damaged
            raise StorageError(f"{printable(item.path)}: key {item.key!r:.80} cannot be read: {error}") from error
        if value is None:
            raise StorageError(
                f"{printable(item.path)}: has no key {item.key!r:.80}. If the file was rewritten, build the index again"
            )
        if self._max_bytes is not None and len(value) > self._max_bytes:
            raise StorageError(
                f"{printable(item.path)}: key {item.key!r:.80} is not read: its {format_count(len(value))} bytes "
                f"exceed max_bytes={format_count(self._max_bytes)}. Raise that limit, or "
                "remove the sample from the index"
            )
        return value

    def _file(self, path: str) -> LmdbFile:
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            file = self._files.get(path)
            if file is None:
                real = real_path(self._root, path, allow_outside_root=self._allow_outside_root)
                file = open_lmdb(real)
                if self._first_seen is not None:
                    self._first_seen.check(real, Path(real).stat())
                self._files[path] = file
                if len(self._files) > self._max_open_files:
                    self._files.popitem(last=False)
            self._files.move_to_end(path)
            return file

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in _PER_PROCESS}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._first_seen = None
        self._start()


_PER_PROCESS = frozenset({"_files", "_first_seen", "_lock", "_pid"})
