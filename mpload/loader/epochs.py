"""Which epoch comes next, where it starts and which rank reads it, known to every process that reads a dataset."""

import math
import mmap
import os
from dataclasses import dataclass, replace
from multiprocessing.util import register_after_fork
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from mpload.errors import ArgumentError
from mpload.loader.frameworks import Reader, reader
from mpload.plan.checkpoint import State
from mpload.plan.plan import Plan
from mpload.plan.topology import Topology, detect_topology

__all__ = ["Epoch", "EpochTable"]

_MAX_WORKERS = 512
_NEXT, _CURRENT = slice(0, 3), slice(3, 6)
_READER = 6
_RANKS = slice(7, 9)
_DEALT = 9
_SHAPE = _MAX_WORKERS, _DEALT + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch, from the position where it starts or resumes."""

    seed: int
    number: int
    position: int = 0
    topology: Topology | None = None
    """Which rank reads it; None: not begun yet, so it is not known."""

    @property
    def whole(self) -> Self:
        """The same epoch from its beginning."""
        return replace(self, position=0)

    def after(self, num_batches: int, plan: Plan) -> "Epoch":
        """Return where a run stands that has received so many batches of this epoch's `plan`."""
        if num_batches >= plan.num_batches:
            return Epoch(seed=self.seed, number=self.number + 1)
        return Epoch(seed=self.seed, number=self.number, position=plan.position_after(num_batches))

    def state(self, *, fingerprint: str, order: str) -> dict[str, Any]:
        """Return the state of a run that goes on with this epoch, from its position."""
        return State(
            fingerprint=fingerprint, order=order, seed=self.seed, epoch=self.number, position=self.position
        ).to_dict()


class EpochTable:
    """A table in shared memory with a row per DataLoader worker: the epoch it begins next, and the one it is in.

    A row is written by its own worker, and by the parent between epochs. So `set_epoch` in the parent reaches workers
    that live on (`persistent_workers=True`), and the parent learns that fresh workers have begun an epoch.

    Process: a DataLoader's workers share the table of their parent, under fork and, where there is a /dev/shm, with
    `torch.multiprocessing` (spawn, forkserver). Any other process, a rank that was forked or spawned, has its own copy.
    """

    def __init__(self, *, seed: int, topology: Topology | None = None) -> None:
        """Begin with epoch 0.

        Args:
            seed: of the run.
            topology: which rank reads; None looks whenever an iteration begins.
        """
        self._topology = topology
        self._seen_by_parent: Topology | None = None
        self._unpickled_in = 0
        self._own = self._of_parent = _where_others_find_it(torch.from_numpy(_room()))
        self.set_next(Epoch(seed=seed, number=0))
        register_after_fork(self, EpochTable._after_fork)

    def __getstate__(self) -> dict[str, Any]:
        if get_worker_info() is None:
            self._own = _where_others_find_it(self._own)
        return {"table": self._table, "topology": self._topology, "seen": self.topology}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._topology = state["topology"]
        self._seen_by_parent = state["seen"]
        self._unpickled_in = os.getpid()
        self._own = state["table"]
        self._arrive()
        register_after_fork(self, EpochTable._after_fork)

    def _after_fork(self) -> None:
        if self._unpickled_in != os.getpid():  # a worker of a forkserver calls this too, after it has unpickled
            self._arrive()

    def _arrive(self) -> None:
        """Keep the table of the process that this one came from, and a copy; it turns out later which one is ours."""
        # By plain bytes: torch may compute with threads, which a forked process does not have.
        self._of_parent, copy = self._own, _room()
        copy[:] = self._of_parent.numpy()
        copy[:, _READER:] = 0  # nobody has begun an epoch here, and it may be another rank's
        self._own = torch.from_numpy(copy)

    @property
    def _table(self) -> torch.Tensor:
        return self._own if get_worker_info() is None else self._of_parent

    @property
    def topology(self) -> Topology:
        """Which rank reads: as was said, or as it is seen now; alone where what is read is dealt out to the ranks.

        Raises:
            ArgumentError: it is dealt out, although `topology` has told which part to read.
        """
        is_dealt = reader() is Reader.DEALER
        if self._topology is not None:
            if is_dealt and self._topology.world_size > 1:
                raise ArgumentError(
                    f"topology= says rank {self._topology.rank} of {self._topology.world_size}, and Accelerate deals "
                    "out what is read to the ranks once more: most samples would be missed. Leave topology= out, or "
                    "use an MPLoader, which Accelerate leaves alone"
                )
            return self._topology
        if is_dealt:
            return Topology()
        if self._seen_by_parent is not None and self._unpickled_in == os.getpid() and get_worker_info() is not None:
            return self._seen_by_parent  # a worker that was spawned sees no process group
        return detect_topology()

    @property
    def next(self) -> Epoch:
        """The epoch that is begun next."""
        return _epoch(self._table[0, _NEXT])

    @property
    def current(self) -> Epoch | None:
        """The epoch that was begun last; None before the first, and after `set_next`."""
        if not self.reader_pid:
            return None
        rank, world_size = self._table[0, _RANKS].tolist()
        return replace(_epoch(self._table[0, _CURRENT]), topology=Topology(rank=rank, world_size=world_size))

    @property
    def reader_pid(self) -> int:
        """The process that began the current epoch; 0 where there is none."""
        return int(self._table[0, _READER])

    @property
    def is_dealt(self) -> bool:
        """Whether the current epoch is read for all ranks, by something that deals it out."""
        return bool(self._table[0, _DEALT])

    def set_next(self, epoch: Epoch, *, worker: int | None = None) -> None:
        """Fix the epoch that all workers, or just one, begin next.

        Raises:
            ArgumentError: the topology is not what it was in earlier iterations.
        """
        rows = slice(None) if worker is None else slice(worker, worker + 1)
        if worker is None and not self.is_dealt:
            self._check_same(0, self.topology)
        self._table[rows, _NEXT] = torch.tensor([epoch.seed, epoch.number, epoch.position], device="cpu")
        self._table[rows, _READER] = 0

    def set_number(self, number: int) -> None:
        """Fix the number of the epoch that all workers begin next; one that comes next anyway keeps its position."""
        following = self.next
        if number != following.number or self.reader_pid:
            self.set_next(Epoch(seed=following.seed, number=number))

    def begin(self, *, worker: int, num_workers: int) -> Epoch:
        """Begin the next epoch as `worker` of `num_workers`; the one after it comes next then.

        Raises:
            ArgumentError: there are too many workers, or the topology is not what it was in earlier iterations.
        """
        if num_workers > _MAX_WORKERS:
            raise ArgumentError(f"num_workers must be at most {_MAX_WORKERS}, got {num_workers}")
        return self.enter(_epoch(self._table[worker, _NEXT]), worker=worker, num_workers=num_workers)

    def enter(self, epoch: Epoch, *, worker: int, num_workers: int) -> Epoch:
        """Note that `worker` is in `epoch`, and return that with the topology that is seen now.

        Raises:
            ArgumentError: the topology is not what it was in earlier iterations.
        """
        topology = self.topology
        self._check_same(worker, topology)
        place = epoch.seed, epoch.number, epoch.position
        following = epoch.seed, epoch.number + 1, 0
        is_dealt = self._topology is None and reader() is Reader.DEALER
        cells = [*following, *place, os.getpid(), topology.rank, topology.world_size, is_dealt]
        row = torch.tensor(cells, device="cpu")  # whatever the default device is
        self._table[worker] = row
        # Rows beyond num_workers have no worker of their own in this epoch: whoever uses them later goes on from here.
        self._table[num_workers:] = row
        return replace(epoch, topology=topology)

    def _check_same(self, worker: int, topology: Topology) -> None:
        rank, world_size = self._table[worker, _RANKS].tolist()
        if world_size and (rank, world_size) != (topology.rank, topology.world_size):
            raise ArgumentError(
                f"this was read as rank {rank} of {world_size} before, and now as rank {topology.rank} of "
                f"{topology.world_size}: samples would be repeated or missed. Iterate only once the process group is "
                "initialised, make a new dataset and loader, or pass topology=Topology(rank=..., world_size=...)"
            )


def _epoch(cells: torch.Tensor) -> Epoch:
    seed, number, position = cells.tolist()
    return Epoch(seed=seed, number=number, position=position)


def _room() -> NDArray[np.int64]:
    """Return zeros in memory that is shared with processes which are forked later."""
    return np.frombuffer(mmap.mmap(-1, 8 * math.prod(_SHAPE)), np.int64).reshape(_SHAPE)


def _where_others_find_it(table: torch.Tensor) -> torch.Tensor:
    """Return a table in memory that spawned processes share too, where there is some; unchanged if it is."""
    if table.is_shared():  # type: ignore[no-untyped-call]
        return table
    # As torch's own collate does. `share_memory_` would copy with OpenMP's threads, and a forked process has none.
    try:
        shared = torch.UntypedStorage._new_shared(table.nbytes)  # type: ignore[no-untyped-call]  # noqa: SLF001
    except RuntimeError:  # no /dev/shm, or a full one: some containers have none
        return table
    found = torch.empty(0, dtype=torch.int64, device="cpu").set_(shared).reshape(_SHAPE)
    found.numpy()[:] = table.numpy()
    return found
