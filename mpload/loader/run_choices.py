"""`RunChoices`: what a user chose for an `MPDataset`, which makes a run of any index."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from mpload.errors import ArgumentError
from mpload.images.decoders import ImageDecoder
from mpload.index.bucketing import BoundBuckets, Buckets
from mpload.index.index import Index, require_files
from mpload.index.weighting import IndexOrder
from mpload.loader.collate import Collate
from mpload.loader.epochs import EpochTable
from mpload.loader.index_run import IndexRun
from mpload.loader.orders import bound_buckets, epochs_of
from mpload.loader.presenting import Presenter
from mpload.plan.batching import Batching
from mpload.plan.order import OrderChoice, Shuffle
from mpload.plan.plan import Tail
from mpload.samples.bucket_shapes import BucketShapes
from mpload.samples.by_source import BySource
from mpload.samples.cache.choice import CachedForm, PartialCache, open_cache
from mpload.samples.cache.compact import compact_for, warn_of_other_pixels
from mpload.samples.mask_check import refuse_masks
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.samples.row_index import open_row_index
from mpload.storage.local import PageCache
from mpload.storage.protocols import Storage
from mpload.storage.remote import RemoteStorage

__all__ = ["RunChoices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """The arguments of an `MPDataset` that do not depend on the index; see there."""

    decode: Callable[..., Any] | Mapping[str, Callable[..., Any] | BySource] | BySource | None
    transform: Callable[..., Any] | BySource | None
    batch_size: int | None
    tail: Tail
    shuffle: bool | OrderChoice | IndexOrder
    epoch_samples: int | None
    cache: PartialCache | None
    row_index: bool | None
    policy: ErrorPolicy
    storage: Storage | RemoteStorage | None
    page_cache: PageCache | Literal["auto", "keep", "drop"]
    as_dict: bool
    collate: Collate | None
    buckets: Buckets | None

    @property
    def limits(self) -> RemoteStorage | None:
        """The time limits for reading URLs, if the user has set any."""
        return self.storage if isinstance(self.storage, RemoteStorage) else None

    def run_of(self, index: Index, *, epochs: EpochTable) -> IndexRun:
        """Return a run of an index. It makes the tables that its order needs, and the folder of the cache.

        Raises:
            ArgumentError: the choices do not fit the index.
        """
        decode, cache = self.decode, self.cache
        of_files = {"decode": decode, "transform": self.transform, "cache": cache, "storage": self.storage}
        for name, value in of_files.items():
            if value is not None and not (isinstance(decode, Mapping) and name in {"decode", "transform"}):
                require_files(index, what=name)
        if not isinstance(self.storage, RemoteStorage | None) and not hasattr(self.storage, "read"):
            raise ArgumentError(f"storage must be a RemoteStorage or have a method read, got {self.storage!r:.80}")
        bound, batch_size = None, self.batch_size
        if self.buckets is not None:
            bound = bound_buckets(
                self.buckets, index, self.shuffle, batch_size=batch_size, epoch_samples=self.epoch_samples
            )
            batch_size = max(bound.sizes.batch_sizes)
        make_pipeline = partial(
            Pipeline,
            index=index,
            decode=ImageDecoder() if decode is None else decode,
            transform=self.transform,
            policy=self.policy,
            storage=self.storage,
            page_cache=self.page_cache,
            row_index=open_row_index(self.row_index, index, decode),
            table=None if bound is None else bound.table,
            shapes=None if bound is None or bound.shapes is None else BucketShapes(shapes=bound.shapes),
        )
        pipeline = make_pipeline()
        refuse_masks(pipeline)
        opened = None
        if cache is not None:
            if isinstance(decode, Mapping) and cache.what == CachedForm.RESIZED:
                raise ArgumentError(
                    'cache: what="resized" keeps smaller images, which boxes and masks would no longer fit. Use '
                    'what="bytes" with a dict as decode'
                )
            compact = None
            if cache.what == CachedForm.RESIZED:
                warn_of_other_pixels(decode)
                compact = compact_for(decode)
            own = None if isinstance(self.storage, RemoteStorage) else self.storage
            opened = open_cache(cache, index, read=pipeline.read, compact=compact, storage=own)
            pipeline = make_pipeline(cache=opened)
        return IndexRun(
            pipeline=pipeline,
            cache=opened,
            batching=self._batching_of(index, bound),
            batch_size=batch_size,
            presenter=Presenter(pipeline=pipeline, as_dict=self.as_dict, collate=self.collate),
            epochs=epochs,
        )

    def _batching_of(self, index: Index, buckets: BoundBuckets | None) -> Batching:
        order: OrderChoice
        if buckets is not None:
            is_shuffled = self.shuffle is True or isinstance(self.shuffle, Shuffle)
            order, num_samples = buckets.order(is_shuffled=is_shuffled), len(index)
        else:
            order, num_samples = epochs_of(
                self.shuffle, index, epoch_samples=self.epoch_samples, batch_size=self.batch_size
            )
        return Batching(
            num_samples=num_samples,
            batch_size=self.batch_size or 1,
            order=order,
            tail=self.tail,
            buckets=None if buckets is None else buckets.sizes,
        )
