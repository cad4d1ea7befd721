"""The storage that the sources of an index are read from."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from mpload.errors import StorageError
from mpload.storage.lmdb import LmdbStorage
from mpload.storage.local import LocalStorage, PageCache
from mpload.storage.parquet import ParquetStorage
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue, Span
from mpload.storage.remote import RemoteStorage, is_url

__all__ = ["LocalOrRemote", "SeveralStorages", "open_storage"]


class SeveralStorages:
    """One storage for each type of range: what an index with columns of several types is read from.

    Args:
        storages: by type; that of `ByteRange` reads spans too.

    Process: as its storages.
    """

    max_parallel_reads = 16

    def __init__(self, storages: dict[type[ByteRange], Storage]) -> None:
        self._storages = storages if ByteRange not in storages else {**storages, Span: storages[ByteRange]}

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order asked."""
        return [data for item in ranges for data in self._storages[type(item)].read([item])]


class LocalOrRemote:
    """Files of this machine, and objects behind URLs: what a list is read from that may lead anywhere.

    Process: as its storages.
    """

    max_parallel_reads = 16

    def __init__(self, local: LocalStorage, remote: RemoteStorage) -> None:
        self._local = local
        self._remote = remote

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order asked."""
        return [data for item in ranges for data in (self._remote if is_url(item.path) else self._local).read([item])]

    def prefetch(self, item: ByteRange) -> None:
        """Bring a span of a file into the page cache, as `LocalStorage` does."""
        if not is_url(item.path):
            self._local.prefetch(item)

    def forget(self, item: ByteRange) -> None:
        """Give the page cache of a span back, as `LocalStorage` does."""
        if not is_url(item.path):
            self._local.forget(item)


def open_storage(
    root: str,
    kinds: Collection[type[ByteRange]],
    *,
    allow_outside_root: bool = False,
    max_bytes: int | None = None,
    page_cache: PageCache | str = PageCache.KEEP,
) -> Storage:
    """Return what reads ranges of these types below `root`. Nothing is opened yet.

    Args:
        root: what paths are relative to: a folder or a URL.
        kinds: the types of ranges that will be asked for; `ByteRange` for whole files and for spans.
        allow_outside_root: let absolute paths, `..` and symbolic links lead out of `root`.
        max_bytes: the largest file, span or value that is read; None: any.
        page_cache: what becomes of the page cache that reading files fills.

    Raises:
        StorageError: `root` is a URL, and ranges of these types are not read from there.
        ArgumentError: the URL is none that can be read.
    """
    if is_url(root):
        if others := {LmdbValue, RowValue}.intersection(kinds):
            kind = "LMDB" if LmdbValue in others else "Parquet"
            raise StorageError(f"{kind} files are read from disks, not from {root}. Copy them to this machine")
        return RemoteStorage(root, allow_outside_root=allow_outside_root, max_bytes=max_bytes)
    local = partial(
        LocalStorage, Path(root), allow_outside_root=allow_outside_root, max_bytes=max_bytes, page_cache=page_cache
    )
    makers: dict[type[ByteRange], Callable[[], Storage]] = {
        ByteRange: local,
        LmdbValue: partial(LmdbStorage, Path(root), allow_outside_root=allow_outside_root, max_bytes=max_bytes),
        RowValue: partial(ParquetStorage, Path(root), allow_outside_root=allow_outside_root, max_bytes=max_bytes),
    }
    storages = {kind: makers[kind]() for kind in kinds}
    if allow_outside_root and set(kinds) == {ByteRange}:
        return LocalOrRemote(local(), RemoteStorage(root, allow_outside_root=True, max_bytes=max_bytes))
    return next(iter(storages.values())) if len(storages) == 1 else SeveralStorages(storages)
