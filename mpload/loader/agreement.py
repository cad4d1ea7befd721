"""How many samples of a growing index the ranks use: they must agree, though they look at it at different times."""

from collections.abc import Callable
from typing import Any

from torch import distributed

from mpload.errors import ArgumentError, IndexChangedError, MploadError
from mpload.index.growth import first_samples
from mpload.index.index import Index
from mpload.plan.topology import Topology
from mpload.units import format_count

__all__ = ["agreed"]


def agreed(look: Callable[[], Index], *, topology: Topology) -> tuple[Index, int]:
    """Return the index as this rank sees it, and the number of samples that every rank has.

    All ranks must call this at the same point. If one of them fails to look, all raise an error.

    Args:
        look: returns the index as it is now.
        topology: the rank.

    Raises:
        ArgumentError: there are several ranks, but they cannot talk to each other.
        IndexChangedError: the ranks see different samples, or another rank cannot look.
        MploadError, OSError: what `look` has raised.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        if topology.world_size > 1:
            raise ArgumentError(
                f"refresh() asks the other {topology.world_size - 1} ranks how many samples they see, by "
                "torch.distributed, which is not initialised. Initialise it first, or pass the same number on every "
                "rank: refresh(num_samples=...)"
            )
        index = look()
        return index, len(index)
    index, num_samples = _looked(look)
    fingerprints = _of_all_ranks(first_samples(index, num_samples).fingerprint)
    if len(set(fingerprints)) > 1:
        raise IndexChangedError(
            f"{index.path}: the ranks see different lines in it, among the first {format_count(num_samples)}. Give all "
            "of them the same file"
        )
    return index, num_samples


def _looked(look: Callable[[], Index]) -> tuple[Index, int]:
    """Return the index of this rank, and the smallest number of samples of all. No rank is left waiting for another."""
    try:
        index = look()
    except (MploadError, OSError):
        _of_all_ranks(None)
        raise
    found = _of_all_ranks(len(index))
    if failed := [str(rank) for rank, num_samples in enumerate(found) if num_samples is None]:
        raise IndexChangedError(
            f"{index.path}: rank {', '.join(failed)} cannot read it again, and raises the error that says why. No rank "
            "has taken over further samples"
        )
    return index, min(found)


def _of_all_ranks(value: Any) -> list[Any]:
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found
