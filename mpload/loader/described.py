# ruff: noqa: SLF001  this function is a part of MPLoader
"""What an `MPLoader` tells about itself in `repr` and in notebooks."""

from typing import TYPE_CHECKING, Protocol

from mpload.units import format_bytes

if TYPE_CHECKING:
    from mpload.loader.epochs import Epoch
    from mpload.loader.source import Source
    from mpload.memory.budget import MemoryBudget

__all__ = ["Described", "facts_of"]


class Described(Protocol):
    """The attributes of an `MPLoader` that `facts_of` reads."""

    _source: "Source"
    _epoch: "Epoch | None"
    _num_received: int
    _num_workers: int | None
    _is_closed: bool
    memory_budget: "MemoryBudget"

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        ...


def facts_of(loader: Described) -> dict[str, str]:
    """Return facts about a loader: each name and value is one line."""
    epoch, source = loader._epoch, loader._source
    received = ""
    if epoch is not None:
        received = f" ({loader._num_received:,} of {source.plan_of(epoch).num_batches:,} batches)"
    return {
        **source.facts(),
        "epoch": f"{(epoch or source.epochs.next).number}{received}",
        "workers": "closed"
        if loader._is_closed
        else f"{loader.num_workers}{' (auto)' * (loader._num_workers is None)}",
        "memory": f"at most {format_bytes(loader.memory_budget.total_bytes)}",
    }
