"""MemoryBudget: how a loader divides its memory among slots, workers and read-ahead."""

from dataclasses import dataclass
from typing import Self

from mpload.errors import ArgumentError
from mpload.units import MIB, format_bytes, parse_bytes

__all__ = ["MIN_SLOTS", "WORKER_BYTES", "BudgetPlan", "MemoryBudget", "divide"]

WORKER_BYTES = 16 * MIB
"""Memory budgeted for a worker besides slots: a few MB at startup, and the images that it decodes.

Cropping an ordinary JPEG needs memory for a few of its rows. Other images take 3 to 13 bytes per pixel while they are
decoded, so images above one or two megapixels exceed this. See `BudgetPlan.decode_bytes`.
"""
MIN_SLOTS = 3
"""One slot is being filled, one is ready, and one is held by the consumer."""
_AUTO_DIVISOR = 2
_AHEAD = {False: "that they read ahead", True: "for the row groups of Parquet that they read"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """How a budget is divided."""

    num_slots: int
    slots_bytes: int
    workers_bytes: int
    read_ahead_bytes: int
    decode_bytes: int
    """Memory that each worker may use to decode an image. All workers together get half of what slots and read-ahead
    leave. The other half is for larger images, which the whole loader decodes one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """The memory that a loader may use for everything it owns: slots, workers and read-ahead.

    The budget never decides which images are refused; `Limits` does. Decoding takes 3 to 13 bytes per pixel. If an
    image needs more than one worker's share, no other such image is decoded at the same time. If it needs more than
    half of the memory that slots and read-ahead leave, it may briefly exceed the budget. To rule that out, lower
    `Limits.max_pixels`.

    Attributes:
        total_bytes: size of the budget, in bytes.

    Raises:
        ArgumentError: `total_bytes` is negative.
    """

    total_bytes: int

    def __post_init__(self) -> None:
        if self.total_bytes < 0:
            raise ArgumentError(f"a memory budget must not be negative, got {self.total_bytes} bytes")

    def __repr__(self) -> str:
        return f"MemoryBudget({format_bytes(self.total_bytes)})"

    @classmethod
    def parse(cls, text: str | int, *, available_bytes: int | None = None) -> Self:
        """Parse a size such as `"4GiB"`, a number of bytes, or `"auto"`, which is half of `available_bytes`.

        Raises:
            ArgumentError: `text` is not a size, or is "auto" without `available_bytes`.
        """
        if text != "auto":
            return cls(total_bytes=parse_bytes(text))
        if available_bytes is None:
            raise ArgumentError("a budget of 'auto' needs available_bytes. Pass it, or write a size such as '4GiB'")
        return cls(total_bytes=available_bytes // _AUTO_DIVISOR)


def divide(
    budget: MemoryBudget,
    *,
    num_slots: int,
    slot_bytes: int,
    num_workers: int,
    slot_address_bytes: int | None = None,
    address_bytes: int | None = None,
    read_ahead_bytes: int = 0,
    keeps_row_groups: bool = False,
) -> BudgetPlan:
    """Divide a budget. Workers and read-ahead get what they need, slots get the rest, up to `num_slots` of them.

    Args:
        budget: memory for all parts together.
        num_slots: number of slots wanted.
        slot_bytes: memory that a slot will use; 0 if this is not known in advance (values of varying shape).
        num_workers: number of worker processes.
        slot_address_bytes: address space that a slot reserves, whether used or not; None means `slot_bytes`.
        address_bytes: address space that this process may still reserve (`RLIMIT_AS`); None means no limit.
        read_ahead_bytes: memory that each worker may use for read-ahead, and for row groups of Parquet.
        keeps_row_groups: whether that includes row groups. Only messages depend on it.

    Raises:
        ArgumentError: the memory or the address space is too small for three slots.
    """
    workers_bytes, ahead_bytes = num_workers * WORKER_BYTES, num_workers * read_ahead_bytes
    if address_bytes is not None:
        reserved_bytes = slot_bytes if slot_address_bytes is None else slot_address_bytes
        num_slots = min(num_slots, address_bytes // max(1, reserved_bytes))
        if num_slots < MIN_SLOTS:
            raise ArgumentError(
                f"RLIMIT_AS leaves {format_bytes(address_bytes)} of address space, but {MIN_SLOTS} batches reserve "
                f"{format_bytes(MIN_SLOTS * reserved_bytes)}. Raise the limit (ulimit -v), lower batch_size, or make "
                "all images one size: values of varying shape reserve far more than they use"
            )
    left_bytes = budget.total_bytes - workers_bytes - ahead_bytes
    if left_bytes < MIN_SLOTS * slot_bytes:
        least_bytes = MIN_SLOTS * slot_bytes + workers_bytes + ahead_bytes
        parts = [
            f"{MIN_SLOTS} batches of {format_bytes(slot_bytes)} (one being made, one ready, one in use)",
            f"{num_workers} worker{'s' * (num_workers != 1)} of {format_bytes(WORKER_BYTES)}",
            *([f"{format_bytes(ahead_bytes)} {_AHEAD[keeps_row_groups]}"] if ahead_bytes else []),
        ]
        smaller = ", or write the files with smaller row groups" if keeps_row_groups else ""
        raise ArgumentError(
            f"memory_budget {format_bytes(budget.total_bytes)} is too small: the loader needs at least "
            f"{format_bytes(least_bytes)}, for {' and '.join(parts[bool(not slot_bytes) :])}. "
            f'Pass memory_budget="{-(-least_bytes // MIB)}MiB" or more, or lower batch_size or num_workers{smaller}'
        )
    num_slots = min(num_slots, left_bytes // slot_bytes) if slot_bytes else num_slots
    return BudgetPlan(
        num_slots=num_slots,
        slots_bytes=num_slots * slot_bytes,
        workers_bytes=workers_bytes,
        read_ahead_bytes=ahead_bytes,
        decode_bytes=(WORKER_BYTES + (left_bytes - num_slots * slot_bytes) // max(1, num_workers)) // 2,
    )
