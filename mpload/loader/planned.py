"""The tasks of an epoch whose batches are planned by arithmetic."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from mpload.errors import warn
from mpload.loader.epochs import Epoch
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import AnyPlan
from mpload.plan.plan import Plan, Tail
from mpload.transport.batches import BatchTask
from mpload.transport.slots import SlotLayout
from mpload.units import format_counted

__all__ = [
    "BATCHES_AHEAD",
    "NO_BATCH",
    "SAMPLES_AHEAD",
    "SAMPLES_ANNOUNCED",
    "is_batch",
    "num_tasks",
    "tasks",
    "warn_if_all_is_dropped",
]

NO_BATCH: Final = object()
"""What a source presents for a task that turned out to have no batch. The loader leaves it out."""

BATCHES_AHEAD = 2
"""Batches in flight per worker, however large they are. A DataLoader has as many."""

SAMPLES_AHEAD = 64
"""Samples in flight per worker, so that no worker waits for the consumer."""

SAMPLES_ANNOUNCED = 256
"""Further samples per worker that workers know of, if they read over a network: as many as they read ahead at most."""


def is_batch(presented: Any) -> bool:
    """Return whether a source has presented a batch."""
    return presented is not NO_BATCH


def num_tasks(plan: AnyPlan) -> int:
    """Return the number of batches for workers. The last ones of a ragged epoch may be empty, and are none."""
    number = plan.num_batches
    while number and not plan.size(number - 1):
        number -= 1
    return number


def warn_if_all_is_dropped(epoch: Epoch, plan: AnyPlan, *, name: object) -> None:
    """Warn if a whole epoch of the dataset `name` has samples, but no batch: a training loop would do nothing."""
    if epoch.position or plan.num_batches or not plan.num_samples or plan.tail != Tail.DROP:
        return
    batch = f"one batch of {plan.batch_size}" if isinstance(plan, Plan) else "a batch of any bucket"
    ranks = f" on each of {plan.topology.world_size} ranks" if plan.topology.world_size > 1 else ""
    warn(
        f"{name}: the epoch has no batch: {format_counted(plan.num_samples, 'sample')} cannot fill {batch}{ranks}, and "
        'tail="drop" (or drop_last=True) drops the rest. Use smaller batches or fewer ranks, or tail="pad"'
    )


def tasks(
    epoch: Epoch, plan: AnyPlan, *, is_whole: bool = False, layout: Callable[[], SlotLayout | None] = lambda: None
) -> Iterator[BatchTask]:
    """Yield the tasks of an epoch.

    Args:
        epoch: the epoch, and where it begins.
        plan: its plan.
        is_whole: whether the slot counts a whole batch as one sample.
        layout: returns the layout for the slot of the next task; None leaves it as it is.
    """
    for batch in range(num_tasks(plan)):
        start, task = plan.task(batch)
        number = BatchNumber(seed=epoch.seed, epoch=epoch.number, start=start, batch=task, topology=plan.topology)
        num_samples = plan.size(batch)
        yield BatchTask(
            numbers=number.numbers,
            num_samples=1 if is_whole else num_samples,
            num_counted=num_samples,
            layout=layout(),
        )
