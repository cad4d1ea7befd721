"""The part of the machine that belongs to this rank, where other ranks run beside it."""

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
    """The ranks on this machine, this one included."""

    count: int = 1
    num_common_cores: int = 1
    """Cores that they have together."""

    def cores_of_one(self, num_usable: int) -> int:
        """Return how many cores a rank has that may use `num_usable`.

        A launcher that binds each rank to cores of its own has divided them already: then these are no more than its
        part of the common ones, and are not divided again.
        """
        return max(1, min(num_usable, self.num_common_cores // self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShare:
    """What this rank may take of a machine on which there may be others."""

    num_cores: int
    memory_bytes: int


def detect_share() -> MachineShare:
    """Return this rank's share of the cores and of the free memory here: all of it, divided by the ranks here."""
    environment = dict(os.environ)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        environment.setdefault("WORLD_SIZE", str(torch.distributed.get_world_size()))
    ranks = local_ranks(environment, machine_cores=os.cpu_count() or 1, parent_cores=num_allowed_cores(os.getppid()))
    return MachineShare(
        num_cores=ranks.cores_of_one(num_usable_cores()),
        memory_bytes=MemoryGauge().read().free_bytes // ranks.count,
    )


def local_ranks(environment: Mapping[str, str], *, machine_cores: int, parent_cores: int) -> LocalRanks:
    """Return how many ranks are on this machine, and the cores that they have together, quotas included.

    - `LOCAL_WORLD_SIZE` (torchrun, Accelerate): they have the cores of the launcher, this process's parent.
    - `SLURM_STEP_TASKS_PER_NODE` (srun): those that the job has on this node, `SLURM_CPUS_ON_NODE`.
    - `OMPI_COMM_WORLD_LOCAL_SIZE` (OpenMPI's mpirun, which binds each to cores of its own): the machine's.
    - `WORLD_SIZE` where `MASTER_ADDR` is this machine's own address, which no other reaches (Lightning, `mp.spawn`):
      the parent's.

    The first says it outright. Of the others the largest counts, since launchers nest: srun starts one shell, or one
    helper of mpirun's, and that starts the ranks. Without any this process is alone. A variable that makes no sense
    says nothing.

    Args:
        environment: the variables.
        machine_cores: of the whole machine.
        parent_cores: those that the parent process may use.
    """
    cores_of_node = _positive(environment.get("SLURM_CPUS_ON_NODE")) or machine_cores
    master = environment.get("MASTER_ADDR", "")
    said = (
        (_tasks_here(environment), cores_of_node),
        (environment.get("OMPI_COMM_WORLD_LOCAL_SIZE"), machine_cores),
        (environment.get("WORLD_SIZE") if master.startswith(_LOOPBACK) else None, parent_cores),
    )
    if count := _positive(environment.get("LOCAL_WORLD_SIZE")):
        cores = parent_cores
    else:
        count, cores = max(((_positive(text) or 0, cores) for text, cores in said), key=itemgetter(0))
    if not count:
        return LocalRanks(num_common_cores=num_usable_cores())
    return LocalRanks(count=count, num_common_cores=num_usable_cores(of=cores))


def _tasks_here(environment: Mapping[str, str]) -> str | None:
    """Return how many tasks of SLURM's step are on this node: of `8(x2),4`, for the nodes 0 to 2, 8, 8 or 4."""
    tasks: list[str] = []
    for count, repeated in _TASKS.findall(environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        tasks += [count] * min(int(repeated or 1), 1 << 16)
    node = _positive(environment.get("SLURM_NODEID")) or 0
    return tasks[node] if node < len(tasks) else None


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and int(text) else None
