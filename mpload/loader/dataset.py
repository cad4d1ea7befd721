"""`MPDataset`: an index as an iterable dataset, for a stock DataLoader or none."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import TypeVar

from mpload.errors import ArgumentError, StateError
from mpload.images.decoders import ImageDecoder
from mpload.index.index import Index, Record
from mpload.index.opening import open_index
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.frameworks import Reader, reader, samples_of_a_batch
from mpload.loader.index_run import IndexRun
from mpload.plan.batching import Batching
from mpload.plan.order import OrderChoice, Sequential, Shuffle
from mpload.plan.plan import Tail
from mpload.plan.topology import Topology
from mpload.samples.cache.choice import PartialCache, open_cache
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy, policy_of
from mpload.storage.local import PageCache
from mpload.storage.protocols import Storage
from mpload.units import format_facts, html_table

__all__ = ["Batch", "MPDataset"]

Batch = TypeVar("Batch", default=Any)
"""What a dataset or a loader yields: batches, or samples."""

_BLOCK_SAMPLES = 256  # samples yielded one by one are looked up so many at a time


class MPDataset(IterableDataset[Batch]):
    """Samples or whole batches of an index, each once per epoch over all ranks and workers.

    With `batch_size` it yields batches, and a DataLoader only carries them: `DataLoader(dataset, batch_size=None,
    num_workers=W)`; batch k is made by worker k mod W, so the order does not depend on W. Without, it yields samples,
    and a worker gets those of every W-th batch that the DataLoader makes.

    A batch, or sample, has one value per column of the index, as a tuple (bare where there is one column only), or as
    a dict by the columns' names where `as_dict` is set:

    - path, span: what `decode` and `transform` made of the bytes. Arrays become tensors, of several shapes a list of
      tensors. Images, [H, W, C] in memory, are shown as [B, C, H, W] (`channels_last`; a sample: [C, H, W]); every
      other array keeps its axes. Images are what `ImageDecoder`, `RandomResizedCrop` and `ResizeCenterCrop` make, or a
      decoder with an attribute `makes_images = True`, or transforms of albumentations, torchvision and kornia.
    - int: int64 [B]; float: float64 [B]; str: a list. A sample has the plain number or string.

    Args:
        index: a path for `open_index`, or an `Index`.
        decode: makes an array of an image's bytes: `ImageDecoder()`, `RandomResizedCrop(224)`, `ResizeCenterCrop(224)`,
            `RawBytes()`, or any callable `bytes -> array`, with a second parameter `rng` if it wants randomness. What
            it draws from the global generators of `random`, NumPy and torch belongs to seed, epoch and sample too.
        transform: a callable on the decoded array, images [H, W, C] in and out; an albumentations transform is
            recognised and seeded per sample; other callables get a generator if they have a parameter `rng`, and may
            draw from the global ones like `decode`.
        batch_size: samples of a batch of this rank; None yields samples.
        tail: what happens where the samples do not fill the last global batch: `"pad"` wraps round to the epoch's first
            samples, `"drop"` leaves the rest out, `"ragged"` gives every sample exactly once in short or empty batches.
        shuffle: False, True (which means `Shuffle()`), or an order: `Shuffle()`, `BlockShuffle(...)`, `Sequential()`.
        seed: of order and randomness, in [0, 2**63).
        topology: rank and world size; None asks `detect_topology()` when iteration begins.
        cache: a `PartialCache` keeps a fixed part of the samples on a fast disk or in memory.
        on_error: `"raise"`, `"skip"`, `"substitute"`, or an `ErrorPolicy`.
        storage: what reads the bytes, if not the files below the index's root: any object that can be pickled and has
            `read(ranges: Sequence[ByteRange]) -> list[bytes]`. Where that is slow, samples are read ahead by as many
            threads as its `max_parallel_reads` says.
        page_cache: `"drop"` gives the page cache of local files back after each read: for jobs whose container is
            charged for it, over data that does not fit into memory anyway. `"keep"` leaves it to the kernel.
        as_dict: yield `{"image": ..., "label": ...}` in place of tuples.

    To type checkers, which do not read the index, what is yielded is `Any`, unless you write its type down:
    `dataset: MPDataset[tuple[Tensor, Tensor]] = MPDataset("train.txt", batch_size=8)`.

    A `SampleError` that you catch ends one batch (or sample), not the epoch: the next `next()` gives the one after it,
    and a state counts the failed one as received; in torchdata's StatefulDataLoader with workers, from the next one on.

    Memory: constant in the number of samples, in every process.
    Process: may be forked and pickled; workers of a DataLoader share the table of epochs with their parent.

    Raises:
        ArgumentError: an argument breaks a rule, or one of several columns of files holds masks, not photographs.
        IndexFormatError, SidecarError, OSError: the index cannot be opened.
    """

    if TYPE_CHECKING:  # torch's IterableDataset has a __getitem__, so that it would pass for a map-style dataset
        __getitem__: None  # type: ignore[assignment]

    def __init__(
        self,
        index: str | os.PathLike[str] | Index,
        *,
        decode: Callable[..., Any] | None = None,
        transform: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        tail: Tail | Literal["drop", "pad", "ragged"] = Tail.PAD,
        shuffle: bool | OrderChoice = False,
        seed: int = 0,
        topology: Topology | None = None,
        cache: PartialCache | None = None,
        on_error: ErrorPolicy | Literal["raise", "skip", "substitute"] = "raise",
        storage: Storage | None = None,
        page_cache: PageCache | Literal["keep", "drop"] = PageCache.KEEP,
        as_dict: bool = False,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ArgumentError(f"batch_size must be at least 1, or None for samples, got {batch_size}")
        _check_callable("decode", decode)
        _check_callable("transform", transform)
        if not (isinstance(shuffle, bool) or hasattr(shuffle, "order")):
            raise ArgumentError(f"shuffle must be True, False or an order such as BlockShuffle(), got {shuffle!r}")
        make_pipeline = partial(
            Pipeline,
            index=index if isinstance(index, Index) else open_index(index),
            decode=ImageDecoder() if decode is None else decode,
            transform=transform,
            policy=policy_of(on_error),
            storage=storage,
            page_cache=page_cache,
        )
        pipeline = make_pipeline()
        pipeline.refuse_masks()
        opened = None
        if cache is not None:
            opened = open_cache(cache, pipeline.index, read=pipeline.read, sources_are_files=storage is None)
            pipeline = make_pipeline(cache=opened)
        batching = Batching(
            num_samples=len(pipeline.index),
            batch_size=batch_size or 1,
            order=(Shuffle() if shuffle else Sequential()) if isinstance(shuffle, bool) else shuffle,
            tail=Tail(tail),
        )
        batching.order_of(seed=seed, epoch=0)  # checks the seed
        self._run = IndexRun(
            pipeline=pipeline,
            cache=opened,
            batching=batching,
            batch_size=batch_size,
            as_dict=as_dict,
            epochs=EpochTable(seed=seed, topology=topology),
        )
        self._cursor: _Cursor | None = None

    @property
    def index(self) -> Index:
        """The index whose samples are yielded."""
        return self._run.index

    @property
    def batch_size(self) -> int | None:
        """Samples of a full batch of this rank; None where samples are yielded one by one."""
        return self._run.batch_size

    @property
    def topology(self) -> Topology:
        """Rank and world size: those that were given, or those that are seen now."""
        return self._run.epochs.topology

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._run.epochs.next.number

    def __len__(self) -> int:
        """Return the number of batches, or samples, of this rank in a whole epoch, also where the next one is resumed.

        Frameworks count the batches of a resumed epoch from its beginning.
        """
        plan = self._run.plan_of(self._run.epochs.next.whole)
        # One by one, a ragged last sample may be another rank's.
        return plan.num_samples_of_rank if self.batch_size is None and plan.tail is Tail.RAGGED else plan.num_batches

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch = self._run.epochs.begin(worker=worker, num_workers=num_workers)
        first = worker if self.batch_size else 0
        self._cursor = _Cursor(epoch=epoch, next_batch=first, is_read_ahead=reader() is not Reader.PLAIN)
        return _EpochIterator(self._run, self._cursor, worker=worker, num_workers=num_workers)

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next iteration reads, number `epoch`, also in workers that live on.

        Without it each iteration goes on to the next epoch. Naming the epoch that `load_state_dict` has just restored
        keeps the position in it.

        Raises:
            StateError: Accelerate, which counts epochs from 0, would leave what `load_state_dict` has restored.
        """
        self._run.set_epoch(epoch)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return where the run stands: a few integers and the index's fingerprint, the same on every rank.

        Args:
            num_batches: how many batches (samples, without `batch_size`) of the current epoch this rank has received.
                Needed where a DataLoader's workers iterate, since they run ahead; else the dataset counts itself.

        Raises:
            StateError: workers, or Accelerate, iterate and `num_batches` is not given; or Accelerate reads for all
                ranks.
        """
        epochs, cursor = self._run.epochs, self._cursor
        current = epochs.current
        if current is not None and epochs.is_dealt and get_worker_info() is None:
            raise StateError(
                "Accelerate reads this dataset for all ranks, so that it knows of no rank where it stands. Use "
                "accelerate.skip_first_batches, or an MPLoader and accelerator.register_for_checkpointing(loader)"
            )
        if cursor is not None and get_worker_info() is not None:
            at = cursor.epoch  # StatefulDataLoader asks the worker's iterator for the rest
        elif num_batches is not None:
            if current is None:
                raise StateError(f"num_batches={num_batches}, but no epoch has been begun")
            at = current.after(num_batches, self._run.plan_of(current))
        elif current is None:
            at = epochs.next
        elif cursor is not None and epochs.reader_pid == os.getpid() and not cursor.is_read_ahead:
            at = current.after(cursor.next_batch, self._run.plan_of(current))
        else:
            raise StateError(
                "the workers of a DataLoader, or Accelerate, read this dataset, ahead of the batches you have "
                "received. Pass state_dict(num_batches=received in this epoch), or use an MPLoader, or torchdata's "
                "StatefulDataLoader"
            )
        return self._run.state_at(at)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken, with any number of ranks and workers and any batch size.

        Raises:
            StateError: the state is malformed, or belongs to another index or order.
        """
        self._run.load_state_dict(state_dict)
        self._cursor = None

    def __repr__(self) -> str:
        return format_facts(f"MPDataset {self._run.name}", self._run.facts())

    def _repr_html_(self) -> str:
        return html_table(f"MPDataset {self._run.name}", self._run.facts())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": None}


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """Where an iteration of this process stands."""

    epoch: Epoch
    """The epoch that is read, from where it was begun."""
    next_batch: int
    """Number of the batch that comes next; of samples one by one, how many this worker has had."""
    is_read_ahead: bool
    """Whether more was read than the user has received."""


def _check_callable(name: str, value: object) -> None:
    if isinstance(value, type) and any("__call__" in vars(base) for base in value.__mro__):
        raise ArgumentError(f"{name} is the class {value.__name__}. Pass an object of it: {value.__name__}(...)")
    if value is not None and not callable(value):
        raise ArgumentError(f"{name} must be callable, got {value!r}")


class _EpochIterator(Iterator[Any]):
    """One worker's part of one epoch: every `num_workers`-th batch, or sample, of this rank."""

    def __init__(self, run: IndexRun, cursor: _Cursor, *, worker: int, num_workers: int) -> None:
        self._run = run
        self._cursor = cursor
        self._worker = worker
        self._num_workers = num_workers
        self._begin()

    def _begin(self) -> None:
        self._plan = self._run.plan_of(self._cursor.epoch)
        self._order = self._run.order_of(self._cursor.epoch)
        self._num_together = 0  # so many samples on end are this worker's; known when one is asked for
        self._block: deque[tuple[int, Record]] = deque()  # samples that come one by one, with how many there are then

    def __next__(self) -> Any:
        return self._next_batch() if self._run.batch_size else self._next_sample()

    def _next_batch(self) -> Any:
        cursor = self._cursor
        if cursor.next_batch >= self._plan.num_batches:
            raise StopIteration
        number = cursor.next_batch
        cursor.next_batch += self._num_workers  # first, so that a batch that fails is over
        batch = self._run.pipeline.batch(
            self._sample_ids(number),
            seed=cursor.epoch.seed,
            epoch=cursor.epoch.number,
            following=lambda: self._sample_ids(cursor.next_batch),
        )
        return self._run.present(batch.columns)

    def _sample_ids(self, batch: int) -> NDArray[np.int64]:
        positions = self._plan.positions(batch) if batch < self._plan.num_batches else np.empty(0, np.int64)
        return self._order.sample_ids(positions)

    def _next_sample(self) -> Any:
        cursor = self._cursor
        pipeline = self._run.pipeline
        while self._block or self._look_up_block():
            cursor.next_batch, record = self._block.popleft()
            with pipeline.lent_generators():
                made = pipeline.sample(record, seed=cursor.epoch.seed, epoch=cursor.epoch.number)
            if made is not None:
                return self._run.present(made[1])
        raise StopIteration

    def _look_up_block(self) -> bool:
        """Look up the worker's next samples, and return whether there are any."""
        cursor = self._cursor
        self._num_together = self._num_together or samples_of_a_batch()
        before = np.arange(cursor.next_batch, cursor.next_batch + _BLOCK_SAMPLES)
        runs, places = np.divmod(before, self._num_together)
        numbers = (runs * self._num_workers + self._worker) * self._num_together + places
        numbers = numbers[numbers < self._plan.num_batches]
        sample_ids = self._order.sample_ids(self._plan.single_positions(numbers))
        records = self._run.index.records(sample_ids)
        if self._run.pipeline.ahead.is_active:
            self._run.pipeline.plan_ahead(records)
        self._block.extend(zip((before + 1).tolist(), records, strict=False))
        if not self._block:
            cursor.next_batch += len(numbers)  # a ragged last sample is another rank's
        return bool(self._block)

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands, for torchdata's StatefulDataLoader."""
        return {"start": self._run.state_at(self._cursor.epoch), "next_batch": self._cursor.next_batch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where this worker of as many workers stood."""
        epoch = self._run.epoch_of(state_dict["start"])
        epoch = self._run.epochs.enter(epoch, worker=self._worker, num_workers=self._num_workers)
        self._cursor.epoch, self._cursor.next_batch = epoch, state_dict["next_batch"]
        self._begin()
