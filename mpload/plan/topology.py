"""The rank of a process and the number of ranks, and the only function that detects them."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from mpload.errors import ArgumentError
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range

__all__ = ["Topology", "detect_topology"]

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Accelerate, DeepSpeed
    # OpenMPI's mpirun. It comes before srun, because mpirun starts one daemon per machine with srun.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; in the batch script itself only the first is set
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The rank of a process and the number of ranks that share an epoch.

    Attributes:
        rank: rank of this process, in `[0, world_size)`.
        world_size: number of ranks that share an epoch, at least 1.

    Raises:
        ArgumentError: a value is out of range.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        check_range("world_size", self.world_size, 1, MAX_NUM_SAMPLES)
        check_range("rank", self.rank, 0, self.world_size)


def detect_topology(environment: Mapping[str, str] | None = None) -> Topology:
    """Return the rank and world size of this process.

    They come from `torch.distributed` if it is initialised. Otherwise they come from the environment variables of
    torchrun, OpenMPI's mpirun or SLURM's srun, in this order. If none of these is set, the result is rank 0 of 1.

    Args:
        environment: the environment variables to use instead of this process's own. If given, `torch.distributed` is
            ignored.

    Raises:
        ArgumentError: the variables contradict each other or are not numbers.
    """
    if environment is None:
        distributed = sys.modules.get("torch.distributed")  # if it was never imported, there is no process group
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return Topology(rank=distributed.get_rank(), world_size=distributed.get_world_size())
        environment = os.environ
    for rank, world_size in _VARIABLES:
        if rank in environment and world_size in environment:
            try:
                return Topology(rank=int(environment[rank]), world_size=int(environment[world_size]))
            except ValueError as error:
                raise ArgumentError(
                    f"{rank}={environment[rank]} and {world_size}={environment[world_size]} do not give a valid rank: "
                    f"{error}. Unset them, or pass topology=Topology(rank=..., world_size=...)"
                ) from error
    return Topology()
