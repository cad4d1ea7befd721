"""`MPDataset`: an index as an iterable dataset, with or without a DataLoader."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import TypeVar

from mpload.errors import ArgumentError, StateError, warn
from mpload.index.bucketing import Buckets
from mpload.index.index import Index
from mpload.index.mixture import Mixture
from mpload.index.opening import open_index
from mpload.index.weighting import IndexOrder
from mpload.loader.collate import Collate, check_collate
from mpload.loader.epoch_iterator import Cursor, EpochIterator
from mpload.loader.epochs import EpochTable
from mpload.loader.frameworks import Reader, reader, stacks_batches
from mpload.loader.index_run import IndexRun
from mpload.loader.index_runs import IndexRuns
from mpload.loader.mixing import open_mixture
from mpload.loader.run_choices import RunChoices
from mpload.plan.order import OrderChoice, Sequential
from mpload.plan.plan import Plan, Tail
from mpload.plan.ranges import plain_integer
from mpload.plan.topology import Topology
from mpload.samples.by_source import BySource
from mpload.samples.cache.choice import PartialCache
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.policy import ErrorPolicy, policy_of
from mpload.storage.local import PageCache
from mpload.storage.protocols import Storage
from mpload.storage.remote import RemoteStorage
from mpload.transport.kernel import set_up_heaps
from mpload.units import format_facts, html_table

__all__ = ["Batch", "MPDataset"]

Batch = TypeVar("Batch", default=Any)
"""The type of the batches, or samples, that a dataset or loader yields."""


class MPDataset(IterableDataset[Batch]):
    """Samples or whole batches of an index, each sample once per epoch across all ranks and workers.

    With `batch_size`, the dataset yields whole batches. Pass `batch_size=None` to a DataLoader around it, which would
    otherwise collect several batches into one: `DataLoader(dataset, batch_size=None, num_workers=W)`. Worker k mod W
    makes batch k, so the order does not depend on W. Without `batch_size`, the dataset yields samples, and each worker
    of a DataLoader gets the samples of every W-th batch.

    A batch, or sample, contains one value per column of the index: as a tuple, as the bare value if there is only one
    column, or with `as_dict` as a dict keyed by column name.

    - path, span: the result of `decode` and `transform`. Arrays become tensors; arrays of different shapes become a
      list of tensors. Images are [H, W, C] in memory and appear as [B, C, H, W] (`channels_last`), or [C, H, W] for a
      sample. All other arrays keep their axes. An array counts as an image if it comes from `ImageDecoder`,
      `RandomResizedCrop`, `ResizeCenterCrop`, a decoder with an attribute `makes_images = True`, or a transform of
      albumentations, torchvision or kornia.
    - int: int64 [B]; float: float64 [B]; str: a list. In a sample, the plain number or string. An index may consist of
      such columns only, and then takes no `decode`, `transform`, `cache` or `storage`.

    Args:
        index: the path or URL of an index, an `Index`, or a `Mixture` of several.
        decode: converts the bytes of an image to an array: `ImageDecoder()`, `RandomResizedCrop(224)`,
            `ResizeCenterCrop(224)`, `RawBytes()`, or any callable `bytes -> array`. If the callable has a second
            parameter `rng`, it gets a random generator. Random numbers that it draws from the global generators of
            `random`, NumPy and torch also depend only on seed, epoch and sample. Or a dict with a decoder for each
            column, such as `{"image": RandomResizedCrop(224), "caption": Text()}`: samples and batches are then dicts.
            `BySource` gives each source of a mixture a decoder of its own.
        transform: a callable applied to the decoded array; images are [H, W, C] in and out. An albumentations transform
            is recognised and seeded for each sample. Any other callable gets a random generator if it has a parameter
            `rng`, and may draw from the global generators as `decode` may. If `decode` is a dict, it gets and returns
            the whole sample, a dict. `BySource` gives each source of a mixture a transform of its own.
        batch_size: number of samples in a batch of this rank. None yields single samples.
        tail: what happens if the samples do not fill the last global batch. `"pad"` fills it with the first samples of
            the epoch, `"drop"` omits the remaining samples, `"ragged"` yields every sample exactly once, in short or
            empty batches.
        shuffle: False, True (same as `Shuffle()`), or an order: `Shuffle()`, `BlockShuffle(...)`, `Sequential()`; or
            one that repeats some samples and leaves out others: `Balanced("label")`, `Weighted("weight")`,
            `PKBatches("label", 8, 4)`; or one that sorts: `Curriculum("difficulty", window_samples=10_000)`.
        seed: seed of the order and of all random numbers, in [0, 2**63).
        epoch_samples: number of samples in an epoch. None means as many as the index has, or as the order says. Epochs
            of another length go through all samples, again and again: each goes on where the one before has ended.
        topology: rank and world size. None calls `detect_topology()` when an iteration begins.
        cache: a `PartialCache`, which keeps a fixed part of the samples on a fast disk or in memory.
        row_index: makes random and centre crops of JPEGs faster from the second epoch on, with the same pixels. True
            notes where the rows of each JPEG begin, in a file beside the sidecar of 0.1 to 0.5 % of their size. None
            uses such a file if there is one (`mpload index --jpeg` makes it), and False does not.
        on_error: `"raise"`, `"skip"`, `"substitute"`, or an `ErrorPolicy`.
        storage: a `RemoteStorage` with time limits for reading URLs. Or any picklable object with a method
            `read(ranges: Sequence[ByteRange]) -> list[bytes]`, which may be called in `max_parallel_reads` threads.
        page_cache: `"keep"` leaves the page cache of local files to the kernel, `"drop"` releases it after each read.
            `"auto"` keeps it, but releases blocks of a `BlockShuffle` if the data does not fit into the job's memory.
        as_dict: yield `{"image": ..., "label": ...}` instead of tuples, as a dict of decoders always does.
        collate: how samples become a batch. None stacks arrays of the same shape and lists others. `Pad(0)` pads arrays
            that differ in size, `Flat()` joins arrays that differ in length end to end, and `{"image": Pad(0), "boxes":
            Flat()}` chooses for each column. Any other callable gets the list of samples and returns the batch, in a
            worker if there are any, as in a DataLoader. Its random numbers depend on the batch's first sample.

        buckets: `Buckets`: every batch has samples of one bucket, such as images of one shape or texts of similar
            length. `shuffle=True` shuffles each bucket; otherwise each goes through its samples in the order of the
            index. The sequence of the buckets is random in both cases.

    Type checkers do not read the index, so to them batches are `Any`. To change that, annotate the dataset:
    `dataset: MPDataset[tuple[Tensor, Tensor]] = MPDataset("train.txt", batch_size=8)`.

    If you catch a `SampleError`, only that batch (or sample) is lost: the following `next()` returns the one after it,
    and a state counts the failed one as received. In torchdata's StatefulDataLoader with workers, a state counts it
    only once the next one has been received. After an `OutageError`, which is then its `__cause__`, no batch is lost:
    the following `next()` makes the same batch again, and a state does not count it.

    Memory: independent of the number of samples, in every process.
    Process: may be forked and pickled. The workers of a DataLoader share the table of epochs with their parent.

    Raises:
        ArgumentError: an argument breaks a rule, or one decoder of several file columns would destroy masks.
        IndexFormatError, SidecarError, OSError: the index cannot be opened.
    """

    if TYPE_CHECKING:  # torch's IterableDataset has a __getitem__, and would pass for a map-style dataset
        __getitem__: None  # type: ignore[assignment]
    else:

        def __getitem__(self, index: Any, /) -> NoReturn:
            """Refuse: samples come in the order of the dataset. `random_split` and `Subset` ask by number."""
            raise TypeError(
                "an MPDataset is iterated over, not indexed. For a part of the samples, pass an index of them: `mpload "
                "select`, or a Share or Fold (docs/how-to/select-and-balance.md). open_index(path)[number] is one line"
            )

    def __init__(
        self,
        index: str | os.PathLike[str] | Index | Mixture,
        *,
        decode: Callable[..., Any] | Mapping[str, Callable[..., Any] | BySource] | BySource | None = None,
        transform: Callable[..., Any] | BySource | None = None,
        batch_size: int | None = None,
        tail: Tail | Literal["drop", "pad", "ragged"] = Tail.PAD,
        shuffle: bool | OrderChoice | IndexOrder = False,
        seed: int = 0,
        epoch_samples: int | None = None,
        topology: Topology | None = None,
        cache: PartialCache | None = None,
        row_index: bool | None = None,
        on_error: ErrorPolicy | Literal["raise", "skip", "substitute"] = "raise",
        storage: Storage | RemoteStorage | None = None,
        page_cache: PageCache | Literal["auto", "keep", "drop"] = PageCache.AUTO,
        as_dict: bool = False,
        collate: Collate | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        _check_index(index)
        batch_size, seed = plain_integer(batch_size), plain_integer(seed)
        if not isinstance(batch_size, int | None):
            advice = "A list of sizes, one for each bucket, belongs to Buckets(batch_size=...)"
            raise ArgumentError(f"batch_size must be an integer, or None for samples, got {batch_size!r:.80}. {advice}")
        if batch_size is not None and batch_size < 1:
            raise ArgumentError(f"batch_size must be at least 1, or None for samples, got {batch_size}")
        if not isinstance(decode, Mapping):
            _check_callable("decode", decode)
        _check_callable("transform", transform)
        check_collate(collate, batch_size=batch_size if buckets is None else 1)
        if buckets is not None and not isinstance(buckets, Buckets):
            raise ArgumentError(f"buckets must be Buckets(by=..., ...), got {buckets!r:.80}")
        if not (isinstance(shuffle, bool) or hasattr(shuffle, "order") or isinstance(shuffle, IndexOrder)):
            raise ArgumentError(f"shuffle must be True, False or an order such as BlockShuffle(), got {shuffle!r}")
        Sequential().order(num_samples=0, seed=seed, epoch=0)  # checks the seed
        choices = RunChoices(
            decode=decode,
            transform=transform,
            batch_size=batch_size,
            tail=Tail(tail),
            shuffle=shuffle,
            epoch_samples=epoch_samples,
            cache=cache,
            row_index=row_index,
            policy=policy_of(on_error),
            storage=storage,
            page_cache=page_cache,
            as_dict=as_dict,
            collate=collate,
            buckets=buckets,
        )
        opened = _opened(index, choices.limits)
        self._runs = IndexRuns(choices, opened, EpochTable(seed=seed, topology=topology))
        self._cursor: Cursor | None = None

    @property
    def _run(self) -> IndexRun:
        """The run that an epoch belongs to which has not begun."""
        return self._runs.latest

    @property
    def _mask_keys(self) -> frozenset[str]:
        """Keys of masks and boxes in a batch. A `DevicePrefetcher` does not normalise them."""
        maker = self._run.pipeline.maker
        targets = maker.targets if isinstance(maker, ColumnDecoders) else {}
        return frozenset(key for key, target in targets.items() if not target.shows_images)

    @property
    def index(self) -> Index:
        """The index whose samples are yielded."""
        return self._run.index

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a full batch of this rank; None if samples are yielded one by one."""
        return self._run.batch_size

    @property
    def topology(self) -> Topology:
        """Rank and world size, as passed in or else as detected now."""
        return self._runs.epochs.topology

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._runs.epochs.next.number

    def __len__(self) -> int:
        """Return the number of batches, or samples, of this rank in a whole epoch, even if the next one is resumed.

        Frameworks count the batches of a resumed epoch from its beginning.
        """
        following = self._runs.epochs.next.whole
        plan = self._runs.of(following).plan_of(following)
        # Without batch_size, a ragged last sample may belong to another rank.
        is_ragged = self.batch_size is None and plan.tail is Tail.RAGGED
        return plan.num_samples_of_rank if is_ragged and isinstance(plan, Plan) else plan.num_batches

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        if info is not None:
            set_up_heaps()  # as in workers of ours
        if self.batch_size and worker == 0 and stacks_batches():
            warn(
                f"this DataLoader stacks batches of {self.batch_size} samples, because its batch_size is not None. "
                "Write DataLoader(dataset, batch_size=None)"
            )
        epoch = self._runs.epochs.begin(worker=worker, num_workers=num_workers)
        first = worker if self.batch_size else 0
        self._cursor = Cursor(epoch=epoch, next_batch=first, is_read_ahead=reader() is not Reader.PLAIN)
        return EpochIterator(self._runs, self._cursor, worker=worker, num_workers=num_workers)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration read epoch number `epoch`, including in persistent workers.

        Without this call, each iteration reads the next epoch. If `epoch` is the epoch that `load_state_dict` has just
        restored, the position within it is kept.

        Raises:
            StateError: Accelerate, which counts epochs from 0, would discard what `load_state_dict` has restored.
        """
        self._run.set_epoch(epoch)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return the state of the run: a few integers and the fingerprint of the index, the same on every rank.

        Args:
            num_batches: number of batches (without `batch_size`: samples) of the current epoch that this rank has
                received. Required if the workers of a DataLoader iterate, because they read ahead. Otherwise the
                dataset keeps count.

        Raises:
            StateError: workers or Accelerate iterate and `num_batches` is missing, or Accelerate reads for all ranks.
        """
        epochs, cursor = self._runs.epochs, self._cursor
        if get_worker_info() is None:
            self._run.check_weights(0)
        current = epochs.current
        if current is not None and epochs.is_dealt and get_worker_info() is None:
            raise StateError(
                "Accelerate reads this dataset for all ranks, so the position of a single rank is unknown. Use "
                "accelerate.skip_first_batches, or an MPLoader and accelerator.register_for_checkpointing(loader)"
            )
        if cursor is not None and get_worker_info() is not None:
            at = cursor.epoch  # StatefulDataLoader gets the rest from the worker's iterator
        elif num_batches is not None:
            if current is None:
                raise StateError(f"num_batches={num_batches}, but no epoch has begun. Iterate first, or leave it out")
            at = current.after(num_batches, self._runs.of(current).plan_of(current))
        elif current is None:
            at = epochs.next
        elif cursor is not None and epochs.reader_pid == os.getpid() and not cursor.is_read_ahead:
            at = current.after(cursor.next_batch, self._runs.of(current).plan_of(current))
        else:
            raise StateError(
                "the workers of a DataLoader, or Accelerate, have read ahead of the batches that you have received. "
                "Call state_dict(num_batches=...) with the number received in this epoch, or use an MPLoader or "
                "torchdata's StatefulDataLoader"
            )
        return self._runs.state_at(at)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the saved `state_dict`, with any number of ranks and workers and any batch size.

        Raises:
            StateError: the state is malformed, or belongs to another index or order.
        """
        self._runs.load_state_dict(state_dict)
        self._cursor = None

    def refresh(self, num_samples: int | None = None) -> int:
        """Take over lines that were appended to the index, for all epochs that begin after this call.

        An epoch under way, even if it was interrupted and restored, goes on over the samples that it began with.
        Loaders of this dataset follow: their workers are started again when the next epoch begins. Nothing happens if
        there are no further lines.

        With several ranks, call it on all of them at the same point, such as after each epoch. They may see the file in
        different states. So they ask each other, by torch.distributed, and use the samples that all of them see.

        Args:
            num_samples: how many samples to use, the same number on every rank, if torch.distributed is not in use.

        Returns:
            The number of samples of an epoch that begins now.

        Raises:
            ArgumentError: there are several ranks that cannot ask each other, the index has fewer samples than
                `num_samples`, or the dataset has a `Mixture`.
            IndexChangedError: the index has changed in another way, or ranks see different samples.
        """
        return self._runs.refresh(num_samples)

    def set_weights(self, weights: Mapping[Any, float]) -> None:
        """Change the weights of a mixture, from the first sample of the next iteration on.

        All samples before it stay as they are, and each source goes on where it is. The rest of the mixture's schedule
        is void. States contain the latest changes, some 500 bytes up to 25 sources. `MPLoader.set_weights` changes
        weights in the middle of an epoch. Without it, leave the loop, restore the state, and iterate again.

        Args:
            weights: the weight of each source, by the keys of the `Mixture`.

        Raises:
            ArgumentError: the dataset has no `Mixture`, or the weights break one of its rules.
        """
        self._run.set_weights(weights)

    def source_counts(self, state_dict: Mapping[str, Any]) -> dict[str, int]:
        """Return how many samples of each source of a mixture come before a state, over all its epochs.

        They are computed from the position of the state, so samples count that failed or that `tail="drop"` left out.

        Args:
            state_dict: a state of this dataset or its loader.

        Returns:
            The number of samples, by the path of the source.

        Raises:
            ArgumentError: the dataset has no `Mixture`.
            StateError: the state is malformed, or belongs to another index or order.
        """
        return self._run.source_counts(state_dict)

    def __repr__(self) -> str:
        return format_facts(f"MPDataset {self._run.name}", self._run.facts())

    def _repr_html_(self) -> str:
        return html_table(f"MPDataset {self._run.name}", self._run.facts())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": None}


def _opened(index: str | os.PathLike[str] | Index | Mixture, limits: RemoteStorage | None) -> Index:
    if isinstance(index, Mixture):
        return open_mixture(index, storage=limits)
    return index if isinstance(index, Index) else open_index(index, storage=limits)


def _check_index(value: object) -> None:
    if not isinstance(value, str | os.PathLike | Index | Mixture):
        raise ArgumentError(
            f"index must be a path, an Index or a Mixture, got {value!r:.80} of type {type(value).__name__}. Make an "
            "index with build_index(), or pass a map-style dataset to MPLoader(dataset, batch_size=...)"
        )


def _check_callable(name: str, value: object) -> None:
    if isinstance(value, type) and any("__call__" in vars(base) for base in value.__mro__):
        raise ArgumentError(f"{name} is the class {value.__name__}. Pass an instance: {value.__name__}(...)")
    if value is not None and not callable(value) and not isinstance(value, BySource):
        raise ArgumentError(f"{name} must be callable, got {value!r}")
