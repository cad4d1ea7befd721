"""Writes an LMDB data file in ascending order of keys."""

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
    """Writes a data file from values in ascending order of their keys. The same values always make the same bytes.

    Memory: About 25 MiB. Values are committed in groups, and the map grows as needed.

    Args:
        path: The path of the file, which must not exist yet.

    Raises:
        ArgumentError: The package lmdb is not installed.
        StorageError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            import lmdb  # noqa: PLC0415  an optional package
        except ImportError as error:
            raise ArgumentError(f"{path}: writing LMDB needs the package lmdb: pip install 'mpload[lmdb]'") from error
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
        """Add a value. Its key must be greater than all keys before.

        Raises:
            StorageError: The value cannot be written, or its key is too long or not in ascending order.
        """
        self._group.append((key, value))
        self._group_bytes += len(value)
        if self._group_bytes >= _GROUP_BYTES or len(self._group) >= _GROUP_VALUES:
            self._commit()

    def close(self) -> None:
        """Write the remaining values, and sync the file to disk."""
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
                        raise StorageError(f"{self._path}: key {key!r} is repeated or not in ascending order")
        except self._error as error:
            raise self._failure(error) from error
        self._group.clear()
        self._group_bytes = 0

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(f"{self._path}: cannot be written: {error}. Free some space there, or name another folder")


class ComparingLmdb:
    """Has the interface of `LmdbWriter`, but compares the values with those in an existing file.

    Raises:
        StorageError: The file differs. Raised by `put`, or at the end of the `with` block, with the key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._existing = scan_lmdb(str(path), whole=("",))

    def put(self, key: bytes, value: bytes) -> None:
        """Compare the next value."""
        if next(self._existing, None) != (key, value):
            raise StorageError(f"{self._path}: differs from the data of the index, at key {key!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        with closing(self._existing):
            surplus = next(self._existing, None) if kind is None else None
        if surplus is not None:
            raise StorageError(f"{self._path}: has data after its expected end, at key {surplus[0]!r}")
