"""Writes an LMDB data file in ascending order of keys, or compares one."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from mpload.errors import ArgumentError, StorageError
from mpload.storage.lmdb_scan import scan_lmdb
from mpload.units import MIB

__all__ = ["compare_lmdb", "write_lmdb"]

_GROUP_BYTES = 8 * MIB
_GROUP_VALUES = 1024
_FIRST_MAP_BYTES = 64 * MIB


def write_lmdb(path: Path, values: Iterable[tuple[bytes, bytes]]) -> None:
    """Write a data file, and sync it to disk. The same values always make the same bytes.

    Memory: About 25 MiB. Values are committed in groups, and the map grows as needed.

    Args:
        path: The path of the file, which must not exist yet.
        values: Keys and their values, in ascending order of keys.

    Raises:
        ArgumentError: The package lmdb is not installed.
        StorageError: The file cannot be written, or a key is too long or not in ascending order.
    """
    try:
        import lmdb  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(f"{path}: writing LMDB needs the package lmdb: pip install 'mpload[lmdb]'") from error
    map_bytes = _FIRST_MAP_BYTES
    try:
        with closing(
            lmdb.open(str(path), subdir=False, map_size=map_bytes, lock=False, sync=False, readahead=False)
        ) as environment:
            page_bytes = environment.stat()["psize"]
            for group in _groups(values):
                used_bytes = (environment.info()["last_pgno"] + 1) * page_bytes
                group_bytes = sum(len(value) for _, value in group)
                while map_bytes < used_bytes + 2 * group_bytes + (4 * len(group) + 1024) * page_bytes:
                    map_bytes *= 2
                environment.set_mapsize(map_bytes)
                with environment.begin(write=True) as transaction:
                    for key, value in group:
                        if not transaction.put(key, value, append=True):
                            raise StorageError(f"{path}: key {key!r} is repeated or not in ascending order")
            environment.sync(True)
    except lmdb.Error as error:
        raise StorageError(
            f"{path}: cannot be written: {error}. Free some space there, or name another folder"
        ) from error


def compare_lmdb(path: Path, values: Iterable[tuple[bytes, bytes]]) -> None:
    """Compare the values of a data file with those given, in ascending order of keys.

    Raises:
        StorageError: The file differs. The message has the key.
    """
    with closing(scan_lmdb(str(path), whole=("",))) as existing:
        for key, value in values:
            if next(existing, None) != (key, value):
                raise StorageError(f"{path}: differs from the data of the index, at key {key!r}")
        if (surplus := next(existing, None)) is not None:
            raise StorageError(f"{path}: has data after its expected end, at key {surplus[0]!r}")


def _groups(values: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    group, group_bytes = list[tuple[bytes, bytes]](), 0
    for key, value in values:
        group.append((key, value))
        group_bytes += len(value)
        if group_bytes >= _GROUP_BYTES or len(group) >= _GROUP_VALUES:
            yield group
            group, group_bytes = [], 0
    yield group
