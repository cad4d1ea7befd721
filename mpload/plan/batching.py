"""The order and plan of every epoch of a run: which samples each batch holds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.plan.batch_number import BatchNumber
from mpload.plan.order import Order, OrderChoice
from mpload.plan.plan import Plan, Tail
from mpload.plan.topology import Topology

__all__ = ["Batching"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Computes the order and plan of any epoch of a run."""

    num_samples: int
    batch_size: int
    order: OrderChoice
    tail: Tail

    def order_of(self, *, seed: int, epoch: int) -> Order:
        """Return the order of an epoch."""
        return self.order.order(num_samples=self.num_samples, seed=seed, epoch=epoch)

    def plan_of(self, *, topology: Topology, start: int) -> Plan:
        """Return a rank's plan for an epoch that begins or resumes at position `start`."""
        return Plan(
            num_samples=self.num_samples,
            batch_size=self.batch_size,
            topology=topology,
            tail=self.tail,
            start=start,
        )

    def sample_ids(self, number: BatchNumber, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Return the sample_ids of a batch from `first` to `last` (exclusive), int64 [n]; all of them by default."""
        positions = self.plan_of(topology=number.topology, start=number.start).positions(number.batch)[first:last]
        return self.order_of(seed=number.seed, epoch=number.epoch).sample_ids(positions)
