"""Opens the storage that a record's bytes are read from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mpload.errors import ArgumentError
from mpload.images.limits import Limits
from mpload.index.columns import ColumnType, range_of
from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.storage.local import PageCache
from mpload.storage.notices import Notices
from mpload.storage.opening import open_storage
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue
from mpload.storage.remote import RemoteStorage
from mpload.storage.roots import SeveralRoots
from mpload.storage.urls import is_url

__all__ = ["ChunkCache", "SampleCache", "SharedCache", "SpreadStorage", "storage_of"]

_NUM_EXAMPLES = 8


class SampleCache(Protocol):
    """Keeps samples' bytes on storage that is faster than their source."""

    def read(self, sample_id: int, paths: Sequence[str], read: Callable[[], list[bytes]]) -> list[bytes]:
        """Return the bytes of a sample's sources in `paths`, from the cache or else from `read`."""
        ...

    def has(self, sample_id: int) -> bool:
        """Whether the cache has an entry for a sample, so that its sources are unlikely to be read."""
        ...


@runtime_checkable
class ChunkCache(SampleCache, Protocol):
    """Can also be asked for the samples of a whole chunk, each of one source."""

    def holds(self, sample_id: int) -> bool:
        """Whether a sample is one of those that the cache keeps."""
        ...

    def copy(self, sample_id: int, path: str, room: memoryview) -> int:
        """Copy the bytes of a sample of one source into `room`, and return their number; -1 if they are not there."""
        ...

    def count(self, *, num_hits: int, num_outside: int) -> None:
        """Count samples that were copied, and samples that the cache never keeps."""
        ...


@runtime_checkable
class SpreadStorage(Storage, Protocol):
    """Also reads the samples that other machines keep."""

    def ranges_of(self, sample_id: int, ranges: list[ByteRange]) -> list[ByteRange]:
        """Return the ranges to read for a sample, given those of its sources."""
        ...

    def was_hit(self, sample_id: int) -> bool:
        """Return whether another machine had a sample in its cache when it was read. Ask once for each use."""
        ...


@runtime_checkable
class SharedCache(SampleCache, Protocol):
    """Other machines may keep samples of it too."""

    def with_other_machines(self, storage: Storage, notices: Notices) -> Storage:
        """Return a storage that reads from other machines what they keep, and all else from `storage`."""
        ...


def storage_of(
    index: Index,
    decoders: Iterable[Callable[..., Any]],
    page_cache: PageCache | str,
    given: Storage | RemoteStorage | None = None,
    notices: Notices | None = None,
    cache: SampleCache | None = None,
) -> Storage:
    """Open the storage of an index's sources; it refuses files that exceed the `max_bytes` of all decoders' limits.

    A storage that is `given` is returned as it is; it may also be the time limits for URLs. An index without sources
    gets a storage of local files, which reads nothing. `notices` gets a notice of each outage of a server. If other
    machines keep samples of the `cache`, they are read from there.
    """
    if isinstance(cache, SharedCache) and notices is not None:
        return cache.with_other_machines(storage_of(index, decoders, page_cache, given, notices), notices)
    is_several = isinstance(index, MixtureIndex) and not index.has_one_root
    if given is not None and not isinstance(given, RemoteStorage):
        if is_several:
            raise ArgumentError("a storage of your own cannot tell the roots of a mixture apart. Give all one root")
        return given
    if isinstance(index, MixtureIndex) and is_several:
        return _storage_of_mixture(index, tuple(decoders), page_cache, given, notices)
    kinds = {_RANGE_TYPES.get(column.type, ByteRange) for column in index.columns if column.type.is_source}
    return open_storage(
        index.root if kinds else ".",
        kinds or {ByteRange},
        allow_outside_root=index.allow_outside_root,
        max_bytes=max_bytes_of(decoders),
        page_cache=page_cache,
        limits=given,
        examples=partial(_examples, index),
        notices=notices,
    )


def max_bytes_of(decoders: Iterable[Callable[..., Any]]) -> int | None:
    """Return the size of the largest file that any of the decoders takes; None if one of them has no limits."""
    limits = [getattr(decode, "limits", None) for decode in decoders]
    max_bytes = [each.max_bytes for each in limits if isinstance(each, Limits)]
    return max(max_bytes) if max_bytes and len(max_bytes) == len(limits) else None


def _storage_of_mixture(
    index: MixtureIndex,
    decoders: Sequence[Callable[..., Any]],
    page_cache: PageCache | str,
    limits: RemoteStorage | None,
    notices: Notices | None,
) -> Storage:
    """Open the storage of each root; `limits` are for those that read URLs, unless none does."""
    reads_urls = [is_url(part.root) or part.allow_outside_root for part in index.parts]
    storages: dict[str, Storage] = {}
    for number, part in enumerate(index.parts):
        tag = index.tag(number)
        if tag is not None and tag not in storages:
            own = limits if reads_urls[number] or not any(reads_urls) else None
            storages[tag] = storage_of(part, decoders, page_cache, own, notices)
    return SeveralRoots(storages)


def _examples(index: Index) -> Iterator[ByteRange]:
    """Yield ranges of a few samples, all over an index."""
    if not len(index):
        return
    sources = [number for number, column in enumerate(index.columns) if column.type.is_source]
    for record in index.records(np.linspace(0, len(index) - 1, num=_NUM_EXAMPLES, dtype=np.int64)):
        yield from (range_of(record.cells[number]) for number in sources)


_RANGE_TYPES: dict[ColumnType, type[ByteRange]] = {ColumnType.LMDB: LmdbValue, ColumnType.ROW: RowValue}
