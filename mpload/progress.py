"""Which epoch comes next and where it starts, known to every process that reads a dataset."""

import math
import mmap
import os
from dataclasses import dataclass

import torch

from mpload.errors import ArgumentError

__all__ = ["Epoch", "SharedProgress"]

_MAX_WORKERS = 512
_NEXT, _CURRENT = slice(0, 3), slice(3, 6)
_READER = 6
_SHAPE = _MAX_WORKERS, _READER + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch, from the position where it starts or resumes."""

    seed: int
    number: int
    position: int = 0


class SharedProgress:
    """A table in shared memory with a row per DataLoader worker: the epoch it begins next, and the one it is in.

    A row is written by its own worker, and by the parent between epochs. So `set_epoch` in the parent reaches workers
    that live on (`persistent_workers=True`), and the parent learns that fresh workers have begun an epoch.

    Process: shared under fork and, where there is a /dev/shm, with `torch.multiprocessing` (spawn); a plain pickle or
    deep copy stands alone.
    """

    def __init__(self, *, seed: int) -> None:
        self._table = _shared_table()
        self.set_next(Epoch(seed=seed, number=0))

    @property
    def next(self) -> Epoch:
        """The epoch that is begun next."""
        return _epoch(self._table[0, _NEXT])

    @property
    def current(self) -> Epoch | None:
        """The epoch that was begun last; None before the first, and after `set_next`."""
        return _epoch(self._table[0, _CURRENT]) if self.reader_pid else None

    @property
    def reader_pid(self) -> int:
        """The process that began the current epoch; 0 where there is none."""
        return int(self._table[0, _READER])

    def set_next(self, epoch: Epoch, *, worker: int | None = None) -> None:
        """Fix the epoch that all workers, or just one, begin next."""
        rows = slice(None) if worker is None else slice(worker, worker + 1)
        self._table[rows, _NEXT] = torch.tensor([epoch.seed, epoch.number, epoch.position])
        self._table[rows, _READER] = 0

    def begin(self, *, worker: int, num_workers: int) -> Epoch:
        """Begin the next epoch as `worker` of `num_workers`; the one after it comes next then."""
        if num_workers > _MAX_WORKERS:
            raise ArgumentError(f"num_workers must be at most {_MAX_WORKERS}, got {num_workers}")
        epoch = _epoch(self._table[worker, _NEXT])
        self.enter(epoch, worker=worker, num_workers=num_workers)
        return epoch

    def enter(self, epoch: Epoch, *, worker: int, num_workers: int) -> None:
        """Note that `worker` is in `epoch`."""
        row = torch.tensor([epoch.seed, epoch.number + 1, 0, epoch.seed, epoch.number, epoch.position, os.getpid()])
        self._table[worker] = row
        # Rows beyond num_workers have no worker of their own in this epoch: whoever uses them later goes on from here.
        self._table[num_workers:] = row


def _epoch(cells: torch.Tensor) -> Epoch:
    seed, number, position = cells.tolist()
    return Epoch(seed=seed, number=number, position=position)


def _shared_table() -> torch.Tensor:
    try:
        return torch.zeros(_SHAPE, dtype=torch.int64).share_memory_()  # type: ignore[no-any-return,no-untyped-call]
    except RuntimeError:  # no /dev/shm, or a full one: some containers have none
        return torch.frombuffer(mmap.mmap(-1, 8 * math.prod(_SHAPE)), dtype=torch.int64).reshape(_SHAPE)
