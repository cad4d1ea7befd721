"""MemoryBudget: how a number of bytes is shared out among slots, workers and what they read ahead."""

from dataclasses import dataclass
from typing import Self

from mpload.errors import ArgumentError
from mpload.units import MIB, format_bytes, parse_bytes

__all__ = ["MIN_SLOTS", "WORKER_BYTES", "BudgetPlan", "MemoryBudget", "divide"]

WORKER_BYTES = 16 * MIB
"""What a worker may come to take besides slots: a few MB when it starts, and the images that it decodes.

A crop of a plain JPEG takes some rows. Other images take 3 to 13 bytes a pixel while they are decoded: those of more
than one or two megapixels take more than this, see `BudgetPlan.decode_bytes`.
"""
MIN_SLOTS = 3
"""One that is filled, one that is ready, one that the consumer holds."""
_AUTO_SHARE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """A budget, shared out."""

    num_slots: int
    slots_bytes: int
    workers_bytes: int
    read_ahead_bytes: int
    decode_bytes: int
    """What each worker may take to decode an image: together half of what is left. The other half is for larger images,
    which are decoded one at a time in the whole loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Bytes for everything that a loader owns: slots, workers, and what they read ahead.

    Which images are refused never depends on it: that is for `Limits` to say. An image whose decoding takes more than a
    worker's part is decoded while no other such image is. One that takes more than half of what slots and workers leave
    (3 to 13 bytes a pixel) may exceed the budget for that moment: lower `Limits.max_pixels` where that must not be.

    Attributes:
        total_bytes: all parts together.

    Raises:
        ArgumentError: the number is negative.
    """

    total_bytes: int

    def __post_init__(self) -> None:
        if self.total_bytes < 0:
            raise ArgumentError(f"a budget must not be negative, got {self.total_bytes} bytes")

    def __repr__(self) -> str:
        return f"MemoryBudget({format_bytes(self.total_bytes)})"

    @classmethod
    def parse(cls, text: str | int, *, available_bytes: int | None = None) -> Self:
        """Read `"4GiB"`, a number of bytes, or `"auto"`: half of `available_bytes`, the rest is the training's.

        Raises:
            ArgumentError: `text` names no size, or is "auto" without `available_bytes`.
        """
        if text != "auto":
            return cls(total_bytes=parse_bytes(text))
        if available_bytes is None:
            raise ArgumentError("a budget of 'auto' is a share of available_bytes: pass it, or write a size: '4GiB'")
        return cls(total_bytes=available_bytes // _AUTO_SHARE)


def divide(
    budget: MemoryBudget,
    *,
    num_slots: int,
    slot_bytes: int,
    num_workers: int,
    slot_address_bytes: int | None = None,
    address_bytes: int | None = None,
    read_ahead_bytes: int = 0,
) -> BudgetPlan:
    """Return what each part may take: workers and read-ahead what they need, slots the rest, `num_slots` at most.

    Args:
        budget: bytes for all parts together.
        num_slots: slots wanted.
        slot_bytes: what a slot comes to use; 0 where only running tells (values of varying shape).
        num_workers: processes.
        slot_address_bytes: what a slot reserves of the address space, used or not; None: `slot_bytes`.
        address_bytes: address space that is left to this process (`RLIMIT_AS`); None: any amount.
        read_ahead_bytes: what each worker may have read ahead.

    Raises:
        ArgumentError: not even three slots fit, by memory or by address space.
    """
    workers_bytes, ahead_bytes = num_workers * WORKER_BYTES, num_workers * read_ahead_bytes
    if address_bytes is not None:
        reserved_bytes = slot_bytes if slot_address_bytes is None else slot_address_bytes
        num_slots = min(num_slots, address_bytes // max(1, reserved_bytes))
        if num_slots < MIN_SLOTS:
            raise ArgumentError(
                f"RLIMIT_AS leaves {format_bytes(address_bytes)} of address space: {MIN_SLOTS} batches reserve "
                f"{format_bytes(MIN_SLOTS * reserved_bytes)}. Raise it (ulimit -v), lower batch_size, or make "
                "images of one size: values of varying shape reserve far more than they use"
            )
    left_bytes = budget.total_bytes - workers_bytes - ahead_bytes
    if left_bytes < MIN_SLOTS * slot_bytes:
        least_bytes = MIN_SLOTS * slot_bytes + workers_bytes + ahead_bytes
        parts = [
            f"{MIN_SLOTS} batches of {format_bytes(slot_bytes)} (one being made, one ready, one in use)",
            f"{num_workers} worker{'s' * (num_workers != 1)} of {format_bytes(WORKER_BYTES)}",
            *([f"{format_bytes(ahead_bytes)} that they read ahead"] if ahead_bytes else []),
        ]
        raise ArgumentError(
            f"memory_budget {format_bytes(budget.total_bytes)} is too small: the loader needs at least "
            f"{format_bytes(least_bytes)}, for {' and '.join(parts[bool(not slot_bytes) :])}. "
            f'Pass memory_budget="{-(-least_bytes // MIB)}MiB" or more, or lower batch_size or num_workers'
        )
    num_slots = min(num_slots, left_bytes // slot_bytes) if slot_bytes else num_slots
    return BudgetPlan(
        num_slots=num_slots,
        slots_bytes=num_slots * slot_bytes,
        workers_bytes=workers_bytes,
        read_ahead_bytes=ahead_bytes,
        decode_bytes=(WORKER_BYTES + (left_bytes - num_slots * slot_bytes) // max(1, num_workers)) // 2,
    )
