"""The integers that identify a batch and are sent to the worker that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpload.plan.topology import Topology

__all__ = ["NUM_NUMBERS", "BatchNumber"]

NUM_NUMBERS = 7
"""Number of integers that describe a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumber:
    """A batch as a task. A worker computes everything else from these integers."""

    seed: int
    epoch: int
    start: int
    """The position at which the epoch began or was resumed. With buckets, the first sample's place in the bucket."""
    batch: int
    """The number of the batch since then. With buckets, its bucket."""
    topology: Topology
    """The rank that the batch is for. It is sent with each batch because workers may start before the process group."""
    substitute: int = -1
    """The sample_id that replaces a sample that kills workers; -1 for none."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers that are sent, in the order that `of` expects."""
        rank, world_size = self.topology.rank, self.topology.world_size
        return self.seed, self.epoch, self.start, self.batch, self.substitute, rank, world_size

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "BatchNumber":
        """Return the batch that `numbers` describes: the inverse of the property `numbers`."""
        seed, epoch, start, batch, substitute, rank, world_size = numbers
        topology = Topology(rank=rank, world_size=world_size)
        return cls(seed=seed, epoch=epoch, start=start, batch=batch, topology=topology, substitute=substitute)
