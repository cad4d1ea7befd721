"""Values of LMDB data files, by key."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpload.errors import ArgumentError, StorageError
from mpload.storage.confined import real_path, shown
from mpload.storage.ranges import ByteRange, LmdbValue
from mpload.units import format_count

if TYPE_CHECKING:
    import lmdb

__all__ = ["COPY_IT", "LmdbFile", "LmdbStorage", "open_lmdb"]

_INSTALL = "pip install 'mpload[lmdb]'"


class LmdbFile:
    """An open data file, closed when nobody reads it any more.

    Process: belongs to the one that opened it. Any thread may read.
    """

    __slots__ = ("__weakref__", "environment", "path", "pid")

    def __init__(self, path: str, environment: "lmdb.Environment") -> None:
        self.path = path
        self.environment = environment
        self.pid = os.getpid()
        weakref.finalize(self, environment.close)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None where there is none."""
        with _fork_gate:
            transaction = self.environment.begin()
            try:
                value: bytes | None = transaction.get(key)
                return value
            finally:
                transaction.abort()
                del transaction  # now, not on return: lmdb 1.6 frees it in a way that no fork may meet


class _ForkGate:
    """Lets any number of threads in, and this process fork only while none is inside.

    A child cannot close an environment that a thread of its parent was using: it would wait for that thread for ever.
    """

    def __init__(self) -> None:
        self._entrance = threading.Lock()  # held by a thread that wants to fork, so that no others come in meanwhile
        self._count = threading.Lock()
        self._calm = threading.Condition(self._count)
        self._num_inside = 0
        if hasattr(os, "register_at_fork"):  # Windows has none
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
                self._calm.notify()

    def _shut(self) -> None:
        self._entrance.acquire()
        with self._calm:
            self._calm.wait_for(lambda: not self._num_inside)


# LMDB lets a process open a file once only, and several loaders may read it: the open ones are known to all of them,
# for as long as somebody holds them.
_open_files: weakref.WeakValueDictionary[tuple[int, int], LmdbFile] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()
_fork_gate = _ForkGate()


def open_lmdb(path: str) -> LmdbFile:
    """Open an LMDB data file to read it, without a lock file and without writing anything.

    Args:
        path: the data file itself: `train.lmdb/data.mdb`, or one that was written with `subdir=False`.

    Raises:
        ArgumentError: the package lmdb is not installed.
        StorageError: the file is not there, is none of LMDB's, or its end is missing.
    """
    try:
        import lmdb  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(f"{path}: reading LMDB takes the package lmdb: {_INSTALL}") from error
    try:
        if Path(path).is_dir():
            raise StorageError(f"{shown(path)}: is a directory. Name the data file in it: {shown(path)}/data.mdb")
        facts = Path(path).stat()
    except (OSError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        result = StorageError(
            f"{shown(path)}: {getattr(error, 'strerror', None) or error}. "
            "Does #root of the index point to the right folder, and was the file moved or deleted?"
        )
        result.errno = getattr(error, "errno", None)
        raise result from error
    with _fork_gate, _open_lock:
        known = _open_files.get((facts.st_dev, facts.st_ino))
        if known is not None:
            if known.pid == os.getpid():
                return known
            known.environment.close()  # what a fork has brought along: the parent's stays open
        try:
            environment = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False, max_spare_txns=16)
        except (lmdb.Error, OSError) as error:
            raise StorageError(f"{shown(path)}: cannot be opened as LMDB: {shown(str(error))}. {COPY_IT}") from error
        # A read behind the end of a mapped file kills the process: see that all pages are there.
        num_bytes = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if facts.st_size < num_bytes:
            environment.close()  # else it would be open for as long as anybody keeps the error
            raise StorageError(
                f"{shown(path)}: has {format_count(facts.st_size)} bytes, and its pages take "
                f"{format_count(num_bytes)}. {COPY_IT}"
            )
        found = _open_files[facts.st_dev, facts.st_ino] = LmdbFile(path, environment)
        return found


COPY_IT = "Is its copy complete? Write or copy it again (mdb_copy)"


class LmdbStorage:
    """Reads values of LMDB data files below one folder.

    Args:
        root: the folder that paths are relative to.
        allow_outside_root: let absolute paths, `..` and symbolic links lead out of `root`.
        max_open_files: how many stay open; the one not used for longest is given up first.
        max_bytes: the largest value that is returned; None: any.

    Memory: what `read` returns; pages of the files are page cache.
    Process: may be forked, which waits for reads under way, and pickled; files are opened anew in each process. Any
    thread may read. A file that is cut while it is open ends the process that reads it (SIGBUS), for liblmdb maps it: a
    worker is replaced and its sample a bad one, with `num_workers=0` it is the training process that ends.
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
        self._start()

    def _start(self) -> None:
        self._files: OrderedDict[str, LmdbFile] = OrderedDict()  # by path, least recently used first
        self._lock = threading.Lock()
        self._pid = os.getpid()  # last: another thread of a forked child must not meet the parent's lock

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the value of each `LmdbValue`, in the order asked.

        Raises:
            OutsideRootError: a path leads out of the root.
            StorageError: a value is not there or cannot be read.
        """
        return [self._value(item) for item in ranges]

    def _value(self, item: ByteRange) -> bytes:
        assert isinstance(item, LmdbValue)
        file = self._file(item.path)
        import lmdb  # noqa: PLC0415  an optional package, there since `open_lmdb`

        try:
            value = file.get(item.key)
        except lmdb.Error as error:  # an empty key, one that is too long, a damaged page
            raise StorageError(f"{shown(item.path)}: key {item.key!r:.80} cannot be read: {error}") from error
        if value is None:
            raise StorageError(
                f"{shown(item.path)}: has no key {item.key!r:.80}. Was it written anew? Build the index again"
            )
        if self._max_bytes is not None and len(value) > self._max_bytes:
            raise StorageError(
                f"{shown(item.path)}: key {item.key!r:.80} is not read, its {format_count(len(value))} bytes exceed "
                f"max_bytes={format_count(self._max_bytes)}"
            )
        return value

    def _file(self, path: str) -> LmdbFile:
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = open_lmdb(
                    real_path(self._root, path, allow_outside_root=self._allow_outside_root)
                )
                if len(self._files) > self._max_open_files:
                    self._files.popitem(last=False)
            self._files.move_to_end(path)
            return file

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in {"_files", "_lock", "_pid"}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start()
