"""Makes the storage from which the samples of an index are read."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from mpload.errors import ArgumentError, StorageError
from mpload.storage.lmdb import LmdbStorage
from mpload.storage.local import LocalStorage, PageCache
from mpload.storage.notices import Notices
from mpload.storage.parquet import ParquetStorage
from mpload.storage.protocols import KeepingStorage, SharingStorage, Storage
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue, Span
from mpload.storage.remote import RemoteObjects, RemoteStorage
from mpload.storage.urls import is_url

__all__ = ["LocalOrRemote", "SeveralStorages", "open_storage"]


class SeveralStorages:
    """Passes each range to the storage for its type, for an index whose columns have several types.

    Args:
        storages: a storage for each type of range. The one for `ByteRange` also reads spans.

    Process: see the storages that it uses.
    """

    max_parallel_reads = 16

    def __init__(self, storages: dict[type[ByteRange], Storage]) -> None:
        self._storages = storages if ByteRange not in storages else {**storages, Span: storages[ByteRange]}
        self.max_read_seconds = max(getattr(storage, "max_read_seconds", 0.0) for storage in storages.values())
        """The longest time that a server may take to deliver one range."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`."""
        return [data for item in ranges for data in self._storages[type(item)].read([item])]

    def needed_bytes(self, item: ByteRange) -> int:
        """Return the memory that is needed to read a range, besides its bytes."""
        storage = self._storages[type(item)]
        return storage.needed_bytes(item) if isinstance(storage, KeepingStorage) else 0

    def share_files(self) -> None:
        """Share what the storages share; see `SharingStorage`."""
        for storage in set(self._storages.values()):
            if isinstance(storage, SharingStorage):
                storage.share_files()

    def bound(self, max_bytes: int) -> None:
        """Bound the memory of the storages that keep more than what was requested."""
        for storage in self._storages.values():
            if isinstance(storage, KeepingStorage):
                storage.bound(max_bytes)


class LocalOrRemote:
    """Reads local files and objects at URLs, for an index whose paths may lead anywhere.

    Process: see the storages that it uses.
    """

    max_parallel_reads = 16

    def __init__(self, local: LocalStorage, remote: RemoteObjects) -> None:
        self._local = local
        self._remote = remote
        self.max_read_seconds = remote.max_read_seconds
        """The longest time that a server may take to deliver one range."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`."""
        return [data for item in ranges for data in (self._remote if is_url(item.path) else self._local).read([item])]

    def share_files(self) -> None:
        """Let processes read the same files and objects, as `LocalStorage` and `RemoteObjects` do."""
        self._local.share_files()
        self._remote.share_files()

    def prefetch(self, item: ByteRange) -> None:
        """Load a span of a file into the page cache, as `LocalStorage` does."""
        if not is_url(item.path):
            self._local.prefetch(item)

    def save_page_cache(self) -> None:
        """Load only the pages of files that are asked for, as `LocalStorage` does."""
        self._local.save_page_cache()

    def forget(self, item: ByteRange) -> None:
        """Free the page cache of a span, as `LocalStorage` does."""
        if not is_url(item.path):
            self._local.forget(item)


def open_storage(
    root: str,
    kinds: Collection[type[ByteRange]],
    *,
    allow_outside_root: bool = False,
    max_bytes: int | None = None,
    page_cache: PageCache | str = PageCache.KEEP,
    limits: RemoteStorage | None = None,
    examples: Callable[[], Iterable[ByteRange]] = tuple,
    notices: Notices | None = None,
) -> Storage:
    """Return a storage that reads ranges of these types below `root`. Nothing is opened yet.

    Args:
        root: the folder or URL that paths are relative to.
        kinds: the types of ranges that will be read; `ByteRange` stands for whole files and spans.
        allow_outside_root: allow absolute paths, `..` and symbolic links to lead outside `root`.
        max_bytes: size of the largest file, span or value that may be read; None means no limit.
        page_cache: what happens to the page cache that reading files fills.
        limits: the time limits for reading URLs; None means the default ones.
        examples: returns a few ranges of which most should be readable.
        notices: is told about outages of servers before they lead to errors.

    Raises:
        StorageError: `root` is a URL, but ranges of these types can only be read from local files.
        ArgumentError: the URL is not one that can be read, or there are limits but no URLs.
    """
    remote = partial(RemoteObjects, limits=limits, notices=notices)
    if is_url(root):
        if LmdbValue in kinds:
            raise StorageError(_lmdb_at(root))
        at_url = partial(remote, root, allow_outside_root=allow_outside_root)
        makers: dict[type[ByteRange], Callable[[], Storage]] = {
            ByteRange: partial(at_url, max_bytes=max_bytes, examples=examples),
            RowValue: lambda: ParquetStorage(at_url(), max_bytes=max_bytes),  # which reads whole columns of row groups
        }
        return _joined({kind: makers[kind]() for kind in kinds})
    local = partial(
        LocalStorage, Path(root), allow_outside_root=allow_outside_root, max_bytes=max_bytes, page_cache=page_cache
    )
    makers = {
        ByteRange: local,
        LmdbValue: partial(LmdbStorage, Path(root), allow_outside_root=allow_outside_root, max_bytes=max_bytes),
        RowValue: partial(ParquetStorage, Path(root), allow_outside_root=allow_outside_root, max_bytes=max_bytes),
    }
    reads_urls = allow_outside_root and set(kinds) == {ByteRange}
    if limits is not None and not reads_urls:
        raise ArgumentError(
            f"storage=RemoteStorage(...) sets time limits for URLs, but the index reads files below {root}"
        )
    if reads_urls:
        return LocalOrRemote(local(), remote(root, allow_outside_root=True, max_bytes=max_bytes, examples=examples))
    return _joined({kind: makers[kind]() for kind in kinds})


def _joined(storages: dict[type[ByteRange], Storage]) -> Storage:
    return next(iter(storages.values())) if len(storages) == 1 else SeveralStorages(storages)


def _lmdb_at(root: str) -> str:
    """Return the message about LMDB files below a URL, with the command that copies them."""
    scheme, _, place = root.partition("://")
    bucket, _, prefix = place.partition("/")
    command = {
        "s3": f"aws s3 sync {root} /data/lmdb",
        "gs": f"gcloud storage rsync --recursive {root} /data/lmdb",
        "az": f"az storage blob download-batch --source {bucket} --pattern '{prefix}*' --destination /data/lmdb",
    }.get(scheme, f"curl --create-dirs --output /data/lmdb/FILE {root}/FILE")
    return (
        f"LMDB files cannot be read from {root}, because liblmdb maps files of a local disk into memory. Copy them "
        f"once to each machine ({command}), and set #root of the index to that folder"
    )
