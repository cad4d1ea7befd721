"""This rank's share of a machine on which several ranks may run."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

import torch.distributed

from mpload.memory.machine import MemoryGauge, num_allowed_cores, num_usable_cores

__all__ = ["LocalRanks", "MachineShare", "detect_share", "local_ranks"]

_LOOPBACK = ("localhost", "::1", "127.")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRanks:
    """The ranks on this machine, including this one."""

    count: int = 1
    num_common_cores: int = 1
    """Cores that all these ranks share."""

    def cores_of_one(self, num_usable: int) -> int:
        """Return the number of cores for a rank that may use `num_usable` cores.

        If the launcher has bound each rank to separate cores, they are already divided: `num_usable` is then at most
        the rank's part of the common cores, and is not divided again.
        """
        return max(1, min(num_usable, self.num_common_cores // self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShare:
    """The cores and memory that this rank may use on a machine shared with other ranks."""

    num_cores: int
    memory_bytes: int


def detect_share() -> MachineShare:
    """Return this rank's share of the machine: usable cores and free memory, divided by the number of local ranks."""
    environment = dict(os.environ)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        environment.setdefault("WORLD_SIZE", str(torch.distributed.get_world_size()))
    ranks = local_ranks(environment, machine_cores=os.cpu_count() or 1, parent_cores=num_allowed_cores(os.getppid()))
    return MachineShare(
        num_cores=ranks.cores_of_one(num_usable_cores()),
        memory_bytes=MemoryGauge().read().free_bytes // ranks.count,
    )


def local_ranks(environment: Mapping[str, str], *, machine_cores: int, parent_cores: int) -> LocalRanks:
    """Return the number of ranks on this machine, and the cores that they share, with quotas taken into account.

    The environment variables of launchers give the number of ranks. Each launcher gives its ranks different cores:

    - `LOCAL_WORLD_SIZE` (torchrun, Accelerate): the cores of the launcher, which is the parent of this process.
    - `SLURM_STEP_TASKS_PER_NODE` (srun): the cores of the job on this node, `SLURM_CPUS_ON_NODE`.
    - `OMPI_COMM_WORLD_LOCAL_SIZE` (OpenMPI's mpirun, which binds each rank to separate cores): all cores.
    - `WORLD_SIZE`, if `MASTER_ADDR` is a loopback address, which other machines cannot reach (Lightning, `mp.spawn`):
      the cores of the parent.

    `LOCAL_WORLD_SIZE` is authoritative. Otherwise the largest number counts, because launchers nest: srun may start a
    single shell, or a single helper of mpirun, which then starts the ranks. Without any variable, this process is the
    only rank. Malformed values are ignored.

    Args:
        environment: the environment variables.
        machine_cores: number of cores of the machine.
        parent_cores: number of cores available to the parent process.
    """
    cores_of_node = _positive(environment.get("SLURM_CPUS_ON_NODE")) or machine_cores
    master = environment.get("MASTER_ADDR", "")
    candidates = (
        (_tasks_here(environment), cores_of_node),
        (environment.get("OMPI_COMM_WORLD_LOCAL_SIZE"), machine_cores),
        (environment.get("WORLD_SIZE") if master.startswith(_LOOPBACK) else None, parent_cores),
    )
    if count := _positive(environment.get("LOCAL_WORLD_SIZE")):
        cores = parent_cores
    else:
        count, cores = max(((_positive(text) or 0, cores) for text, cores in candidates), key=itemgetter(0))
    if not count:
        return LocalRanks(num_common_cores=num_usable_cores())
    return LocalRanks(count=count, num_common_cores=num_usable_cores(of=cores))


def _tasks_here(environment: Mapping[str, str]) -> str | None:
    """Return the number of tasks of the SLURM step on this node. `8(x2),4` means 8, 8 and 4 on nodes 0, 1 and 2."""
    tasks: list[str] = []
    for count, repeated in _TASKS.findall(environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        tasks += [count] * min(int(repeated or 1), 1 << 16)
    node = _positive(environment.get("SLURM_NODEID")) or 0
    return tasks[node] if node < len(tasks) else None


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and int(text) else None
