"""Where an MPLoader's batches come from: an index, or any map-style dataset."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from torch.utils.data import IterableDataset

from mpload.errors import ArgumentError
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
    """What an MPLoader has to know of a dataset."""

    @property
    def name(self) -> str:
        """Of the index or the dataset, for people."""
        ...

    def facts(self) -> dict[str, str]:
        """Return what a person wants to know."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples of a full batch of this rank."""
        ...

    @property
    def epochs(self) -> EpochTable:
        """Which epoch comes next."""
        ...

    @property
    def cache_in_memory(self) -> OpenCache | None:
        """A cache whose bytes are memory, None where there is none."""
        ...

    @property
    def reads_ahead(self) -> bool:
        """Whether workers may read samples before their turn."""
        ...

    @property
    def made_here(self) -> Tally:
        """What was made in this process so far."""
        ...

    def image_excess(self) -> float:
        """Return how many times more pixels images have than the decoder makes of them, by a few; 1 where unknown."""
        ...

    def plan_of(self, epoch: Epoch) -> Plan:
        """Return this rank's plan of an epoch."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next iteration reads."""
        ...

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Return where the run stands after `num_batches` of an epoch; before the next one where that is None."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken."""
        ...

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot, before `work` and `present` are called; may make samples to find out."""
        ...

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> Work:
        """Return what workers do; its tasks are the integers of `BatchNumber`.

        Args:
            read_ahead_bytes: What each worker may have read ahead.
            decode_bytes: What each worker may take for one image without waiting for its turn.
        """
        ...

    def make(self, epoch: Epoch, batch: int) -> Any:
        """Return a batch that is made in this process."""
        ...

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return the same batch, made by workers; raise what its failures call for."""
        ...

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return the task that fills the place of a sample which kills workers, None to leave it a failure."""
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
    """Return a dataset as a source.

    Raises:
        ArgumentError: it is none, or the arguments do not go with it.
    """
    if isinstance(dataset, MPDataset):
        if (batch_size, shuffle, seed, tail, topology) != (None, False, 0, Tail.PAD, None):
            raise ArgumentError(
                "an MPDataset has its own batch_size, shuffle, seed, tail and topology: pass them to the MPDataset"
            )
        return IndexSource(dataset._run)  # noqa: SLF001  which is there for this
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ArgumentError(
            f"{type(dataset).__name__} is not a map-style dataset: it needs __len__ and __getitem__. Iterable datasets "
            "cannot be asked for a sample by its number: use a stock DataLoader for them, or an MPDataset"
        )
    if batch_size is None:
        raise ArgumentError(
            f"MPLoader makes whole batches: pass batch_size= to the MPLoader of {type(dataset).__name__}"
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
