"""The order and plan of every epoch of a run: which samples each batch holds."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mpload.plan.batch_number import BatchNumber
from mpload.plan.bucket_plan import BucketPlan, BucketSizes, Segments, positions_from
from mpload.plan.order import Order, OrderChoice
from mpload.plan.plan import Plan, Tail
from mpload.plan.topology import Topology

__all__ = ["AnyPlan", "Batching"]

AnyPlan = Plan | BucketPlan


class _Latest:
    """The latest plan of buckets. It is not pickled."""

    def __init__(self) -> None:
        self.plan: BucketPlan | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _Latest, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Computes the order and plan of any epoch of a run."""

    num_samples: int
    batch_size: int
    order: OrderChoice
    tail: Tail
    tail_alone: Tail | None = None
    """The tail of a job with one rank, if it is another one."""
    buckets: BucketSizes | None = None
    """The buckets, if all samples of a global batch are of one. `order` then has the samples of a bucket together."""
    _latest: _Latest = field(default_factory=_Latest, init=False, repr=False, compare=False)

    def order_of(self, *, seed: int, epoch: int) -> Order:
        """Return the order of an epoch."""
        return self.order.order(num_samples=self.num_samples, seed=seed, epoch=epoch)

    def plan_of(
        self, *, topology: Topology, start: int, seed: int = 0, epoch: int = 0, segments: Segments = ()
    ) -> AnyPlan:
        """Return a rank's plan for an epoch that begins or resumes at position `start`.

        With buckets, it depends on seed and epoch, and it begins where the `segments` end.
        """
        if self.buckets is None:
            return Plan(
                num_samples=self.num_samples,
                batch_size=self.batch_size,
                topology=topology,
                tail=self._tail_of(topology),
                start=start,
            )
        tail = self._tail_of(topology)
        wanted = self.buckets, topology, tail, seed, epoch, segments
        plan = self._latest.plan
        if plan is None or wanted != (plan.sizes, plan.topology, plan.tail, plan.seed, plan.epoch, plan.segments):
            plan = BucketPlan(
                sizes=self.buckets, topology=topology, tail=tail, seed=seed, epoch=epoch, segments=segments
            )
            self._latest.plan = plan
        return plan

    def sample_ids(self, number: BatchNumber, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Return the sample_ids of a batch from `first` to `last` (exclusive), int64 [n]; all of them by default."""
        if self.buckets is None:
            plan = self.plan_of(topology=number.topology, start=number.start)
            positions = plan.positions(number.batch)[first:last]
        else:
            positions = positions_from(self.buckets, number.batch, number.start, tail=self._tail_of(number.topology))[
                first:last
            ]
        return self.order_of(seed=number.seed, epoch=number.epoch).sample_ids(positions)

    def _tail_of(self, topology: Topology) -> Tail:
        return self.tail if self.tail_alone is None or topology.world_size > 1 else self.tail_alone
