"""The one place that looks at the world: which of how many ranks this process is."""

import os
from collections.abc import Mapping

import torch.distributed

from mpload.errors import ArgumentError
from mpload.sharding import Topology

__all__ = ["detect_topology"]

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Accelerate, DeepSpeed
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script's own process has the first one only
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # OpenMPI's mpirun
)


def detect_topology(environment: Mapping[str, str] | None = None) -> Topology:
    """Return rank and world size of this process.

    An initialised `torch.distributed` is asked first, then the variables of torchrun, of SLURM's srun and of OpenMPI's
    mpirun; where there is nothing of that, the process is alone.

    Raises:
        ArgumentError: the variables contradict one another or are no numbers.
    """
    if environment is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Topology(rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size())
        environment = os.environ
    for rank, world_size in _VARIABLES:
        if rank in environment and world_size in environment:
            try:
                return Topology(rank=int(environment[rank]), world_size=int(environment[world_size]))
            except ValueError as error:
                raise ArgumentError(
                    f"{rank}={environment[rank]} and {world_size}={environment[world_size]} are no place in a job: "
                    f"{error}. Unset them, or pass topology=Topology(rank=..., world_size=...)"
                ) from error
    return Topology()
