"""The source of an MPLoader's batches: an `MPDataset`, or any map-style dataset."""

import os
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from torch.utils.data import IterableDataset

from mpload.errors import ArgumentError
from mpload.index.index import Index
from mpload.loader.dataset import MPDataset
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.index_source import IndexSource
from mpload.loader.map_source import MapSource
from mpload.plan.order import OrderChoice, Sequential, Shuffle
from mpload.plan.plan import Plan, Tail
from mpload.plan.topology import Topology
from mpload.samples.cache.opened import OpenCache
from mpload.samples.map_work import MapDataset
from mpload.transport.batches import FilledBatch, KilledSample
from mpload.transport.messages import Tally
from mpload.transport.slots import Field, RaggedField
from mpload.transport.worker import Work

__all__ = ["Source", "source_of"]


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
    def batch_size(self) -> int:
        """Number of samples in a full batch of this rank."""
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
    def reads_ahead(self) -> bool:
        """Whether workers may read samples ahead of time."""
        ...

    @property
    def made_here(self) -> Tally:
        """Counts of the samples made in this process so far."""
        ...

    def image_excess(self) -> float:
        """Return the ratio of stored to decoded pixels, estimated from a few images; 1 if unknown."""
        ...

    def plan_of(self, epoch: Epoch) -> Plan:
        """Return this rank's plan of an epoch."""
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
            read_ahead_bytes: memory for data that one worker has read ahead.
            decode_bytes: memory that one worker may use to decode an image without waiting for its turn.
        """
        ...

    def make(self, epoch: Epoch, batch: int) -> Any:
        """Make a batch in this process."""
        ...

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return the same batch, made by the workers; raise an error if its failures call for one."""
        ...

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return the task that replaces a sample which kills workers; None counts the sample as failed."""
        ...


def source_of(
    dataset: MPDataset[Any] | MapDataset,
    *,
    batch_size: int | None,
    shuffle: bool | OrderChoice,
    seed: int,
    tail: Tail | Literal["drop", "pad", "ragged"],
    topology: Topology | None,
) -> Source:
    """Return the source for a dataset.

    Raises:
        ArgumentError: this is not a dataset that can be loaded, or the arguments do not fit it.
    """
    if isinstance(dataset, MPDataset):
        if (batch_size, shuffle, seed, tail, topology) != (None, False, 0, Tail.PAD, None):
            raise ArgumentError(
                "an MPDataset has its own batch_size, shuffle, seed, tail and topology: pass them to the MPDataset"
            )
        return IndexSource(dataset._run)  # noqa: SLF001  `_run` is shared with this package
    if isinstance(dataset, str | os.PathLike | Index):
        raise ArgumentError(
            f"an MPLoader loads a dataset, not an index, got {dataset!r}. Pass MPDataset(..., batch_size=...)"
        )
    if isinstance(dataset, type):
        raise ArgumentError(f"dataset is the class {dataset.__name__}. Pass an instance: {dataset.__name__}(...)")
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ArgumentError(
            "dataset must be an MPDataset, or a map-style dataset with __len__ and __getitem__, got "
            f"{dataset!r:.80} of type {type(dataset).__name__}. The samples of an iterable dataset cannot be requested "
            "by number: use a DataLoader for it, or make an index and an MPDataset"
        )
    if batch_size is None:
        raise ArgumentError(
            f"an MPLoader loads whole batches: pass batch_size= to the MPLoader of {type(dataset).__name__}"
        )
    if batch_size < 1:
        raise ArgumentError(f"batch_size must be at least 1, got {batch_size}")
    return MapSource(
        dataset,
        batch_size=batch_size,
        order=(Shuffle() if shuffle else Sequential()) if isinstance(shuffle, bool) else shuffle,
        seed=seed,
        tail=Tail(tail),
        topology=topology,
    )
