"""Writing an LMDB data file, key after key."""

from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mpload.errors import ArgumentError, StorageError
from mpload.storage.lmdb_scan import scan_lmdb
from mpload.units import MIB

__all__ = ["ComparingLmdb", "LmdbWriter"]

_GROUP_BYTES = 8 * MIB
_GROUP_VALUES = 1024
_FIRST_MAP_BYTES = 64 * MIB


class LmdbWriter:
    """Makes a data file of values whose keys ascend. The same values make the same bytes.

    Memory: about 25 MiB: values are committed in groups; the map grows as they come.

    Args:
        path: the file, which must not exist.

    Raises:
        ArgumentError: lmdb is not installed.
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            import lmdb  # noqa: PLC0415  an optional package
        except ImportError as error:
            raise ArgumentError(f"{path}: writing LMDB takes the package lmdb: pip install 'mpload[lmdb]'") from error
        self._path = path
        self._error: type[Exception] = lmdb.Error
        self._map_bytes = _FIRST_MAP_BYTES
        self._group: list[tuple[bytes, bytes]] = []
        self._group_bytes = 0
        try:
            self._environment: Any = lmdb.open(
                str(path), subdir=False, map_size=self._map_bytes, lock=False, sync=False, readahead=False
            )
        except lmdb.Error as error:
            raise self._failure(error) from error

    def put(self, key: bytes, value: bytes) -> None:
        """Add a value; its key comes after all others.

        Raises:
            StorageError: it cannot be written, or its key is too long or does not ascend.
        """
        self._group.append((key, value))
        self._group_bytes += len(value)
        if self._group_bytes >= _GROUP_BYTES or len(self._group) >= _GROUP_VALUES:
            self._commit()

    def close(self) -> None:
        """Write what is left, through to the disk."""
        try:
            self._commit()
            self._environment.sync(True)
        except self._error as error:
            raise self._failure(error) from error
        finally:
            self._environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._environment.close()

    def _commit(self) -> None:
        page_bytes = self._environment.stat()["psize"]
        used_bytes = (self._environment.info()["last_pgno"] + 1) * page_bytes
        wanted_bytes = used_bytes + 2 * self._group_bytes + (4 * len(self._group) + 1024) * page_bytes
        while self._map_bytes < wanted_bytes:
            self._map_bytes *= 2
        try:
            self._environment.set_mapsize(self._map_bytes)
            with self._environment.begin(write=True) as transaction:
                for key, value in self._group:
                    if not transaction.put(key, value, append=True):
                        raise StorageError(f"{self._path}: key {key!r} stands twice or does not ascend")
        except self._error as error:
            raise self._failure(error) from error
        self._group.clear()
        self._group_bytes = 0

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(
            f"{self._path}: cannot be written: {error}. Make room there, or give a folder that is writable"
        )


class ComparingLmdb:
    """Takes what would be written, and compares it with what is there.

    Raises:
        StorageError: something differs; `put` and leaving the `with` block say what.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._there = scan_lmdb(str(path), whole=("",))

    def put(self, key: bytes, value: bytes) -> None:
        """Compare the value that comes next."""
        if next(self._there, None) != (key, value):
            raise StorageError(f"{self._path}: differs from what the index makes, at key {key!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        with closing(self._there):
            surplus = next(self._there, None) if kind is None else None
        if surplus is not None:
            raise StorageError(f"{self._path}: goes on where it should end, at key {surplus[0]!r}")
