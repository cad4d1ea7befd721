"""Which of how many ranks a process is, and the one place that finds out."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from mpload.errors import ArgumentError
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range

__all__ = ["Topology", "detect_topology"]

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Accelerate, DeepSpeed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # OpenMPI's mpirun, which starts one helper a machine with srun
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script's own process has the first one only
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which of how many ranks this is.

    Attributes:
        rank: in `[0, world_size)`.
        world_size: ranks that share an epoch, at least 1.

    Raises:
        ArgumentError: a value is out of range.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        check_range("world_size", self.world_size, 1, MAX_NUM_SAMPLES)
        check_range("rank", self.rank, 0, self.world_size)


def detect_topology(environment: Mapping[str, str] | None = None) -> Topology:
    """Return rank and world size of this process.

    An initialised `torch.distributed` is asked first, then the variables of torchrun, of OpenMPI's mpirun and of
    SLURM's srun; where there is nothing of that, the process is alone.

    Args:
        environment: the variables to look at, without asking `torch.distributed`; None: those of this process.

    Raises:
        ArgumentError: the variables contradict one another or are no numbers.
    """
    if environment is None:
        distributed = sys.modules.get("torch.distributed")  # who has not imported it has no process group
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return Topology(rank=distributed.get_rank(), world_size=distributed.get_world_size())
        environment = os.environ
    for rank, world_size in _VARIABLES:
        if rank in environment and world_size in environment:
            try:
                return Topology(rank=int(environment[rank]), world_size=int(environment[world_size]))
            except ValueError as error:
                raise ArgumentError(
                    f"{rank}={environment[rank]} and {world_size}={environment[world_size]} name no rank: "
                    f"{error}. Unset them, or pass topology=Topology(rank=..., world_size=...)"
                ) from error
    return Topology()
