"""`RunChoices`: what a user chose for an `MPDataset`, which makes a run of any index."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from mpload.errors import ArgumentError
from mpload.images.decoders import ImageDecoder
from mpload.index.index import Index, require_files
from mpload.index.weighting import IndexOrder
from mpload.loader.collate import Collate
from mpload.loader.epochs import EpochTable
from mpload.loader.index_run import IndexRun
from mpload.loader.orders import epochs_of
from mpload.loader.presenting import Presenter
from mpload.plan.batching import Batching
from mpload.plan.order import OrderChoice
from mpload.plan.plan import Tail
from mpload.samples.by_source import BySource
from mpload.samples.cache.choice import CachedForm, PartialCache, open_cache
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
        make_pipeline = partial(
            Pipeline,
            index=index,
            decode=ImageDecoder() if decode is None else decode,
            transform=self.transform,
            policy=self.policy,
            storage=self.storage,
            page_cache=self.page_cache,
            row_index=open_row_index(self.row_index, index, decode),
        )
        pipeline = make_pipeline()
        pipeline.refuse_masks()
        opened = None
        if cache is not None:
            if isinstance(decode, Mapping) and cache.what == CachedForm.RESIZED:
                raise ArgumentError(
                    'cache: what="resized" keeps smaller images, which boxes and masks would no longer fit. Use '
                    'what="bytes" with a dict as decode'
                )
            are_files = isinstance(self.storage, RemoteStorage | None)
            opened = open_cache(cache, index, read=pipeline.read, sources_are_files=are_files)
            pipeline = make_pipeline(cache=opened)
        return IndexRun(
            pipeline=pipeline,
            cache=opened,
            batching=self._batching_of(index),
            batch_size=self.batch_size,
            presenter=Presenter(pipeline=pipeline, as_dict=self.as_dict, collate=self.collate),
            epochs=epochs,
        )

    def _batching_of(self, index: Index) -> Batching:
        order, num_samples = epochs_of(
            self.shuffle, index, epoch_samples=self.epoch_samples, batch_size=self.batch_size
        )
        return Batching(num_samples=num_samples, batch_size=self.batch_size or 1, order=order, tail=self.tail)
