# ruff: noqa: SLF001  this function is a part of MPLoader
"""What an `MPLoader` tells about itself in `repr` and in notebooks."""

from typing import TYPE_CHECKING

from mpload.units import format_bytes

if TYPE_CHECKING:
    from mpload.loader.loader import MPLoader

__all__ = ["facts_of"]


def facts_of(loader: "MPLoader") -> dict[str, str]:
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
