"""A batch as a few integers, which travel to the worker that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpload.plan.topology import Topology

__all__ = ["BatchNumber"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumber:
    """A batch as a task: from these integers a worker works out the rest."""

    seed: int
    epoch: int
    start: int
    """The position where the epoch was begun or resumed."""
    batch: int
    topology: Topology
    """Which rank the batch is for: it travels with each batch since workers start before a process group may exist."""
    substitute: int = -1
    """The sample_id that takes the place of a sample which kills workers; -1: none."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers that travel."""
        rank, world_size = self.topology.rank, self.topology.world_size
        return self.seed, self.epoch, self.start, self.batch, self.substitute, rank, world_size

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "BatchNumber":
        """Read what `numbers` holds."""
        seed, epoch, start, batch, substitute, rank, world_size = numbers
        topology = Topology(rank=rank, world_size=world_size)
        return cls(seed=seed, epoch=epoch, start=start, batch=batch, topology=topology, substitute=substitute)
