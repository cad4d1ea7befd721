"""How many samples of a growing index the ranks use: they must agree, though they look at it at different times."""

from typing import Any

from torch import distributed

from mpload.errors import ArgumentError, IndexChangedError
from mpload.index.growth import first_samples
from mpload.index.index import Index
from mpload.plan.topology import Topology
from mpload.units import format_count

__all__ = ["agreed"]


def agreed(index: Index, *, topology: Topology) -> int:
    """Return the number of samples of `index` that every rank has. All ranks must call this at the same point.

    Raises:
        ArgumentError: there are several ranks, but they cannot talk to each other.
        IndexChangedError: the ranks see different samples.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        if topology.world_size > 1:
            raise ArgumentError(
                f"refresh() asks the other {topology.world_size - 1} ranks how many samples they see, by "
                "torch.distributed, which is not initialised. Initialise it first, or pass the same number on every "
                "rank: refresh(num_samples=...)"
            )
        return len(index)
    num_samples: int = min(_of_all_ranks(len(index)))
    fingerprints = _of_all_ranks(first_samples(index, num_samples).fingerprint)
    if len(set(fingerprints)) > 1:
        raise IndexChangedError(
            f"{index.path}: the ranks see different lines in it, among the first {format_count(num_samples)}. Give all "
            "of them the same file"
        )
    return num_samples


def _of_all_ranks(value: Any) -> list[Any]:
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found
