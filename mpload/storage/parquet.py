"""Reads values from Parquet files, by row group and row."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from mpload.errors import StorageError
from mpload.storage.confined import real_path
from mpload.storage.first_seen import FirstSeen
from mpload.storage.ranges import ByteRange, RowValue
from mpload.storage.remote import RemoteObjects
from mpload.units import MIB, format_count, printable

__all__ = ["ROW_GROUPS_BYTES", "ParquetStorage"]

_PYARROW_BYTES = 25 * MIB
_KEPT_BYTES = 64 * MIB
ROW_GROUPS_BYTES = _PYARROW_BYTES + _KEPT_BYTES
"""Memory that is used in all, unless it is bounded."""
_MAX_OPEN_FILES = 16
_MAX_REQUESTS = 4  # for a value of a file that is not open


class ParquetStorage:
    """Reads values from Parquet files below one folder or URL. Row groups are decoded whole and cached for other rows.

    If samples come in random order, nearly every sample decodes a whole row group. Either use a `BlockShuffle` whose
    blocks are as large as row groups and whose window fits `kept_bytes`, or pack the index.

    From a URL, opening a file takes two requests, or three if its footer is large. The column of a row group takes one
    request, or one for each 8 MiB.

    Args:
        root: the folder that paths are relative to, or the objects below a URL.
        allow_outside_root: allow absolute paths, `..` and symbolic links to lead outside the folder `root`.
        max_bytes: size of the largest value that may be returned; None means no limit.
        kept_bytes: memory for decoded row groups, and for decoding another one. The least recently used one is evicted
            first. One is always kept.

    Memory: `kept_bytes`, plus about 25 MiB for pyarrow, which processes forked from this one share.
    Process: may be forked and pickled; each process opens the files again. Threads take turns.
    """

    max_parallel_reads = 1

    def __init__(
        self,
        root: Path | RemoteObjects,
        *,
        allow_outside_root: bool = False,
        max_bytes: int | None = None,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._root = root if isinstance(root, RemoteObjects) else os.path.realpath(root)
        self._allow_outside_root = allow_outside_root
        self._max_bytes = max_bytes
        self._kept_bytes = kept_bytes
        self.max_read_seconds = _MAX_REQUESTS * root.max_read_seconds if isinstance(root, RemoteObjects) else 0.0
        """The longest time that a server may take to deliver one value."""
        self._first_seen: FirstSeen | None = None
        import_module("pyarrow")  # so that workers that are forked from this process share its memory
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Any] = OrderedDict()  # by path, least recently used first
        self._groups: OrderedDict[tuple[str, int, str], Any] = OrderedDict()  # by path, row group and column, likewise
        self._pid = os.getpid()  # last, so that no thread of a forked child uses the parent's lock

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the value of each `RowValue`, in the order of `ranges`.

        Raises:
            IndexChangedError: a file was replaced: a local one after `share_files`, or one at a URL.
            OutsideRootError: a path leads outside the root.
            StorageError: a value does not exist or cannot be read.
        """
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            return [self._value(item) for item in ranges]

    def share_files(self) -> None:
        """Let all processes that are forked from this one read the same files; see `SharingStorage`."""
        if isinstance(self._root, RemoteObjects):
            self._root.share_files()
            return
        with suppress(OSError):
            self._first_seen = FirstSeen()

    def needed_bytes(self, item: ByteRange) -> int:
        """Return the memory that is needed to read this value: for pyarrow, and to decode the row group.

        Raises:
            OutsideRootError, StorageError: as for `read`.
        """
        assert isinstance(item, RowValue)
        if self._pid != os.getpid():
            self._start()
        with self._lock, _errors_named(_place_of(item)):
            return _PYARROW_BYTES + _needed_bytes(self._file(item.path), item)

    def bound(self, max_bytes: int) -> None:
        """Bound the memory for pyarrow and row groups. A row group is read even if it needs more."""
        self._kept_bytes = max(0, max_bytes - _PYARROW_BYTES)

    def _value(self, item: ByteRange) -> bytes:
        import pyarrow as pa  # noqa: PLC0415  as in `_errors_named`

        assert isinstance(item, RowValue)
        where = _place_of(item)
        values = self._group(item, where)
        if item.row >= len(values):
            raise StorageError(f"{where} does not exist. {_REBUILD}")
        value = values[item.row]
        if value.is_valid and isinstance(value, pa.DictionaryScalar):
            value = value.value
        if not value.is_valid:
            raise StorageError(f"{where} has no value in {item.column!r}. {_MISSING}")
        buffer = value.as_buffer()
        if self._max_bytes is not None and buffer.size > self._max_bytes:
            raise StorageError(
                f"{where} is not read: its {format_count(buffer.size)} bytes exceed "
                f"max_bytes={format_count(self._max_bytes)}. Raise that limit, or remove the sample from the index"
            )
        data: bytes = buffer.to_pybytes()
        return data

    def _group(self, item: RowValue, where: str) -> Any:
        import pyarrow as pa  # noqa: PLC0415  as in `_errors_named`

        key = item.path, item.row_group, item.column
        if (values := self._groups.get(key)) is not None:
            self._groups.move_to_end(key)
            return values
        with _errors_named(where):
            file = self._file(item.path)
            self._evict(_needed_bytes(file, item))
            table = file.read_row_group(item.row_group, columns=[item.column], use_threads=False)
        pa.default_memory_pool().release_unused()  # it would keep as much again
        if not table.num_columns:
            raise StorageError(f"{printable(item.path)}: has no column {item.column!r}. {_REBUILD}")
        values = table.column(0)
        while pa.types.is_struct(values.type):  # of its fields, only the requested one was read
            values = values.flatten()[0]
        if not _holds_bytes(values.type):
            raise StorageError(
                f"{printable(item.path)}: column {item.column!r} holds {values.type}, not bytes. {_REBUILD}"
            )
        self._groups[key] = values
        self._evict(self._groups[key].nbytes, num_left=1)  # it may be larger than the file says
        return values

    def _evict(self, new_bytes: int, *, num_left: int = 0) -> None:
        """Evict row groups until there is room for `new_bytes` more, or only the newest `num_left` are left."""
        held_bytes = sum(kept.nbytes for kept in list(self._groups.values())[: len(self._groups) - num_left])
        while held_bytes + new_bytes > self._kept_bytes and len(self._groups) > num_left:
            held_bytes -= self._groups.popitem(last=False)[1].nbytes

    def _file(self, path: str) -> Any:
        import pyarrow.parquet as pq  # noqa: PLC0415  as above

        if (file := self._files.get(path)) is None:
            if isinstance(self._root, RemoteObjects):
                from mpload.storage.remote_file import RemoteFile  # noqa: PLC0415  as above

                source: Any = RemoteFile(self._root, path)
            else:
                source = real_path(self._root, path, allow_outside_root=self._allow_outside_root)
                if self._first_seen is not None:
                    self._first_seen.check(source, Path(source).stat())
            file = self._files[path] = pq.ParquetFile(source, memory_map=False, pre_buffer=False)
            if len(self._files) > _MAX_OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return file

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in _PER_PROCESS}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._first_seen = None
        self._start()


def _place_of(item: RowValue) -> str:
    return f"{printable(item.path)}: row {item.row} of row group {item.row_group}"


def _needed_bytes(file: Any, item: RowValue) -> int:
    """Return the memory that is needed to decode a row group's column: its encoded bytes, and an array that grows."""
    if item.row_group >= file.num_row_groups:
        raise StorageError(f"{_place_of(item)} does not exist. {_REBUILD}")
    group = file.metadata.row_group(item.row_group)
    columns = map(group.column, range(group.num_columns))
    return sum(
        2 * column.total_uncompressed_size + column.total_compressed_size
        for column in columns
        if column.path_in_schema == item.column
    )


def _holds_bytes(kind: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415  as in `_errors_named`

    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_binary(values) or pa.types.is_large_binary(values) or pa.types.is_fixed_size_binary(values))


@contextmanager
def _errors_named(where: str) -> Iterator[None]:
    """Raise errors of pyarrow and of the system as `StorageError` that begin with `where`."""
    import pyarrow as pa  # noqa: PLC0415  workers that read other files need not pay for it

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, StorageError):
            raise
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        result = StorageError(f"{where}: cannot be read: {printable(cause)}. {_REBUILD}")
        result.errno = getattr(error, "errno", None)
        raise result from error


_PER_PROCESS = frozenset({"_pid", "_lock", "_files", "_first_seen", "_groups"})
_MISSING = (
    "If images are given as paths of files, index these files. Otherwise remove the row, and build the index again"
)
_REBUILD = "If the file is a copy, check that it is complete. If it was rewritten, build the index again"
