"""The source of an MPLoader's batches: an `MPDataset`, or any map-style dataset."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from torch.utils.data import IterableDataset
from torch.utils.data.graph_settings import apply_shuffle_settings

from mpload.client.options import Servers
from mpload.errors import ArgumentError
from mpload.index.index import Index
from mpload.loader.batch_source import BatchSource
from mpload.loader.dataset import MPDataset
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.index_source import IndexSource
from mpload.loader.map_options import MapOptions
from mpload.loader.map_run import PlannedRun, SampledRun
from mpload.loader.map_source import MapSource
from mpload.loader.stream_source import StreamSource
from mpload.plan.batching import AnyPlan
from mpload.plan.ranges import plain_integer
from mpload.samples.cache.opened import OpenCache
from mpload.samples.data_pipes import is_data_pipe
from mpload.samples.policy import ErrorAction
from mpload.samples.seeded_dataset import MapDataset, SeededDataset
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample, PoolOptions
from mpload.transport.forking import Forks
from mpload.transport.messages import Tally
from mpload.transport.slots import Field, RaggedField
from mpload.transport.worker import Work

__all__ = ["Source", "is_stream", "no_length", "source_of", "workers_for"]


class Source(Protocol):
    """The interface of a dataset that an MPLoader needs."""

    @property
    def name(self) -> str:
        """Name of the index or the dataset, for messages."""
        ...

    def facts(self) -> dict[str, str]:
        """Return facts about the dataset for `repr` and notebooks."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a full batch of this rank; None if a batch sampler decides it, or for single samples."""
        ...

    @property
    def slot_samples(self) -> int:
        """Number of samples in a slot, as the workers count: 1 if one worker makes a whole batch."""
        ...

    @property
    def samples_ahead(self) -> int:
        """Samples in flight per worker, counted as in `slot_samples`."""
        ...

    @property
    def batches_ahead(self) -> int:
        """Batches in flight per worker that are made however large they are, unless memory is short."""
        ...

    @property
    def samples_announced(self) -> int:
        """Further samples per worker that workers know of, so that they can read ahead. They take no slots."""
        ...

    @property
    def epochs(self) -> EpochTable:
        """The current and the next epoch."""
        ...

    @property
    def cache_in_memory(self) -> OpenCache | None:
        """The cache, if it is kept in memory; else None."""
        ...

    @property
    def forks(self) -> Forks:
        """Whether the zygote is a fork of this process."""
        ...

    @property
    def reads_ahead(self) -> bool:
        """Whether workers may read samples ahead of time."""
        ...

    @property
    def row_group_bytes(self) -> int:
        """Memory that a worker needs to read a row group of Parquet; 0 if there are none. `prepare` finds it out."""
        ...

    @property
    def starts_all_workers(self) -> bool:
        """Whether all workers begin at once, as in a DataLoader, even if the size of a batch is unknown."""
        ...

    @property
    def max_read_seconds(self) -> float:
        """The longest time for reading a sample that its storage itself limits; 0 if it sets no limit."""
        ...

    @property
    def made_here(self) -> Tally:
        """Counts of the samples made in this process so far."""
        ...

    def image_excess(self) -> float:
        """Return the ratio of stored to decoded pixels, estimated from a few images; 1 if unknown."""
        ...

    def plan_of(self, epoch: Epoch) -> AnyPlan:
        """Return this rank's plan of an epoch."""
        ...

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any.

        Workers must then be started again, with the fields that `prepare` returns.
        """
        ...

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads."""
        ...

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Return the state after `num_batches` batches of `epoch`, or before the next epoch if `epoch` is None."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot; may make samples to find out. Must be called before `work` and `present`."""
        ...

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> Work:
        """Return the work for the workers. Its tasks are the integers of `BatchNumber`.

        Args:
            read_ahead_bytes: memory for data that one worker has read ahead, and for the row groups that it keeps.
            decode_bytes: memory that one worker may use to decode an image without waiting for its turn.
        """
        ...

    def batches(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch in this process. A failed batch does not end the iterator."""
        ...

    def tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for the workers."""
        ...

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return a batch made by the workers; raise an error if its failures call for one."""
        ...

    def rest(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch that have no task."""
        ...

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return the task that replaces a sample which kills workers; None counts the sample as failed."""
        ...


def is_stream(dataset: object) -> bool:
    """Return whether this is an iterable dataset of the user."""
    return isinstance(dataset, IterableDataset) and not isinstance(dataset, MPDataset)


def workers_for(dataset: object, num_workers: int | Literal["auto"]) -> int | Literal["auto"]:
    """Return the number of workers for a dataset: 1 instead of `"auto"` if each of them would yield all samples.

    Raises:
        ArgumentError: it is neither `"auto"` nor an integer of at least 0.
    """
    number = plain_integer(num_workers)
    if number == "auto":
        return 1 if is_stream(dataset) else "auto"
    if type(number) is not int or number < 0:
        raise ArgumentError(f"num_workers must be 'auto' or an integer of at least 0, got {number!r}")
    return number


def no_length(dataset: object) -> TypeError:
    """Return the error for the length of a loader that has none."""
    what = "dataset" if is_stream(dataset) else "sampler"
    return TypeError(f"the {what} has no length, so the loader of {type(dataset).__name__} has none")


def source_of(
    dataset: MPDataset[Any] | MapDataset,
    options: MapOptions,
    pool_options: PoolOptions,
    *,
    num_workers: int,
    servers: Servers | None = None,
) -> Source:
    """Return the source for a dataset.

    Args:
        dataset: what the loader loads.
        options: the loader's arguments for map-style datasets.
        pool_options: how workers are run, also those that make the first samples of an `MPDataset`.
        num_workers: number of workers at the start.
        servers: what makes the samples of an `MPDataset`, if not the workers.

    Raises:
        ArgumentError: this is not a dataset that can be loaded, or the arguments do not fit it.
    """
    if isinstance(dataset, MPDataset):
        if not options.are_neutral:
            raise ArgumentError(
                "an MPDataset has its own batch_size, shuffle, seed, tail and topology: pass them to the MPDataset"
            )
        return IndexSource(dataset._runs, pool_options, servers=servers)  # noqa: SLF001  `_runs` is shared with this package
    if servers is not None:
        raise ArgumentError(
            f"servers make the samples of an MPDataset only, got {dataset!r:.80} of type {type(dataset).__name__}"
        )
    if isinstance(dataset, str | os.PathLike | Index):
        raise ArgumentError(
            f"an MPLoader loads a dataset, not an index, got {dataset!r}. Pass MPDataset(..., batch_size=...)"
        )
    if isinstance(dataset, type):
        raise ArgumentError(f"dataset is the class {dataset.__name__}. Pass an instance: {dataset.__name__}(...)")
    if not is_stream(dataset) and not hasattr(dataset, "__getitem__"):
        raise ArgumentError(
            "dataset must be an MPDataset, an IterableDataset, or a map-style dataset with __len__ and __getitem__, "
            f"got {dataset!r:.80} of type {type(dataset).__name__}"
        )
    if not is_stream(dataset) and not hasattr(dataset, "__len__") and not options.is_sampled:
        raise ArgumentError(
            f"{type(dataset).__name__} has no __len__, so the loader cannot know which samples there are. Define it, "
            "or pass sampler= or batch_sampler="
        )
    if is_data_pipe(dataset) and isinstance(options.shuffle, bool):
        pipe: Any = dataset
        dataset = apply_shuffle_settings(pipe, shuffle=options.shuffle)
    seed = options.drawn_seed()
    seeded = SeededDataset(
        dataset=dataset, num_workers=num_workers, worker_init_fn=options.worker_init_fn, base_seed=seed
    )
    if isinstance(dataset, IterableDataset):
        options.check_for_stream(dataset)
        return StreamSource(dataset, seeded, options, num_workers=num_workers, seed=seed)
    is_single = options.batch_size is None and options.batch_sampler is None
    run = (SampledRun if options.is_sampled else PlannedRun)(dataset, options, seed=seed)
    needs_whole = is_single or options.collate_fn is not None or hasattr(dataset, "__getitems__")
    if isinstance(run, SampledRun) or needs_whole or options.policy.action is not ErrorAction.RAISE:
        return BatchSource(
            run,
            seeded,
            collate_fn=options.collate_fn,
            is_single=is_single,
            on_error=options.policy,
            batches_ahead=options.prefetch_factor,
            forks=options.forks,
        )
    return MapSource(run, seeded, forks=options.forks)
