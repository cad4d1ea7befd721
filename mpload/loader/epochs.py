"""The current and next epoch, their start positions and the rank, shared by all processes that read a dataset."""

import math
import mmap
import os
import weakref
from dataclasses import dataclass, replace
from multiprocessing.util import register_after_fork
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from mpload.errors import ArgumentError
from mpload.loader.frameworks import Reader, reader
from mpload.plan.batching import AnyPlan
from mpload.plan.bucket_plan import MAX_SEGMENTS, Segments
from mpload.plan.checkpoint import State
from mpload.plan.topology import Topology, detect_topology
from mpload.plan.turns import Phase

__all__ = ["Epoch", "EpochTable"]

_MAX_WORKERS = 512
_NUM_PLACE = 4 + 2 * MAX_SEGMENTS
_NEXT, _CURRENT = slice(0, _NUM_PLACE), slice(_NUM_PLACE, 2 * _NUM_PLACE)
_READER = 2 * _NUM_PLACE
_RANKS = slice(_READER + 1, _READER + 3)
_DEALT = _READER + 3
_WEIGHTS = _READER + 4
_NUM_SAMPLES = _READER + 5
_SHAPE = _MAX_WORKERS, _NUM_SAMPLES + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch, and the position in it where reading starts or resumes."""

    seed: int
    number: int
    position: int = 0
    num_samples: int = 0
    """How many samples of the index it goes over, the first ones; 0 until it begins, and where that never changes."""
    segments: Segments = ()
    """With buckets, where the position is; see `BucketPlan`."""
    topology: Topology | None = None
    """The rank that reads it; None until the epoch begins."""

    @property
    def whole(self) -> Self:
        """The same epoch, from its beginning."""
        return replace(self, position=0, segments=())

    def after(self, num_batches: int, plan: AnyPlan) -> "Epoch":
        """Return the epoch and position of a run that has received `num_batches` batches of this epoch's `plan`."""
        if num_batches >= plan.num_batches:
            return Epoch(seed=self.seed, number=self.number + 1)
        position, segments = plan.position_after(num_batches), plan.segments_after(num_batches)
        return replace(self, position=position, segments=segments, topology=None)

    def state(
        self,
        *,
        fingerprint: str,
        order: str,
        changes: tuple[Phase, ...] = (),
        num_samples: int | None = None,
        sampler: str | None = None,
        batch_size: int | None = None,
        world_size: int | None = None,
    ) -> dict[str, Any]:
        """Return the state of a run that continues this epoch from its position."""
        return State(
            fingerprint=fingerprint,
            order=order,
            seed=self.seed,
            epoch=self.number,
            position=self.position,
            segments=self.segments,
            changes=tuple(change.in_state() for change in changes),
            num_samples=num_samples,
            sampler=sampler,
            batch_size=batch_size,
            world_size=world_size,
        ).to_dict()


class EpochTable:
    """A table in shared memory with one row per DataLoader worker: the next epoch of the worker, and its current one.

    Each worker writes its own row; the parent writes rows between epochs. That is how `set_epoch` in the parent reaches
    persistent workers, and how the parent learns that new workers have begun an epoch.

    Process: the workers of a DataLoader share the table of their parent: after a fork, and if /dev/shm exists also
    with the spawn and forkserver methods of `torch.multiprocessing`. Any other process, such as a forked or spawned
    rank, has its own copy.
    """

    _restored_for: "weakref.ref[Any] | None" = None
    """The loader that has restored the position of the next epoch, in this process."""

    def __init__(self, *, seed: int, topology: Topology | None = None) -> None:
        """Start with epoch 0.

        Args:
            seed: seed of the run.
            topology: the rank that reads; None detects it whenever an iteration begins.
        """
        self._topology = topology
        self._seen_by_parent: Topology | None = None
        self._unpickled_in = 0
        self._own = self._of_parent = _sharable(torch.from_numpy(_empty_table()))
        self.set_next(Epoch(seed=seed, number=0))
        register_after_fork(self, EpochTable._after_fork)

    def __getstate__(self) -> dict[str, Any]:
        if get_worker_info() is None:
            self._own = _sharable(self._own)
        return {"table": self._shared, "topology": self._topology, "seen": self.topology}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._topology = state["topology"]
        self._seen_by_parent = state["seen"]
        self._unpickled_in = os.getpid()
        self._own = state["table"]
        self._copy_table()
        register_after_fork(self, EpochTable._after_fork)

    def _after_fork(self) -> None:
        if self._unpickled_in != os.getpid():  # forkserver workers also call this, after unpickling
            self._copy_table()

    def _copy_table(self) -> None:
        """Keep the parent's table and a copy of it. Later it turns out whether this process is a DataLoader worker."""
        # Copied with NumPy: torch may use threads, which a forked process does not have.
        self._of_parent, copy = self._own, _empty_table()
        copy[:] = self._of_parent.numpy()
        copy[:, _READER:_WEIGHTS] = 0  # no epoch has begun in this process, and it may be another rank
        self._own = torch.from_numpy(copy)

    @property
    def _shared(self) -> torch.Tensor:
        return self._own if get_worker_info() is None else self._of_parent

    @property
    def _table(self) -> NDArray[np.int64]:
        """The table, for NumPy: outside of `torch.inference_mode`, torch does not write to a tensor made within it."""
        table: NDArray[np.int64] = self._shared.numpy()
        return table

    @property
    def topology(self) -> Topology:
        """The rank that reads: as passed in, or as detected now. A world of one if the reader deals out the samples.

        Raises:
            ArgumentError: the reader deals out the samples although `topology` was passed in.
        """
        is_dealt = reader() is Reader.DEALER
        if self._topology is not None:
            if is_dealt and self._topology.world_size > 1:
                raise ArgumentError(
                    f"topology= says rank {self._topology.rank} of {self._topology.world_size}, but Accelerate also "
                    "splits the samples among the ranks, so most of them would be missed. Leave topology= out, or use "
                    "an MPLoader, which Accelerate does not wrap"
                )
            return self._topology
        if is_dealt:
            return Topology()
        if self._seen_by_parent is not None and self._unpickled_in == os.getpid() and get_worker_info() is not None:
            return self._seen_by_parent  # a spawned worker has no process group
        return detect_topology()

    @property
    def next(self) -> Epoch:
        """The epoch that begins next."""
        return _epoch(self._table[0, _NEXT])

    @property
    def current(self) -> Epoch | None:
        """The epoch that began last; None before the first one, and after `set_next`."""
        if not self.reader_pid:
            return None
        rank, world_size = self._table[0, _RANKS].tolist()
        return replace(_epoch(self._table[0, _CURRENT]), topology=Topology(rank=rank, world_size=world_size))

    @property
    def reader_pid(self) -> int:
        """Id of the process that began the current epoch; 0 if there is none."""
        return int(self._table[0, _READER])

    @property
    def is_dealt(self) -> bool:
        """Whether the current epoch is read for all ranks by a reader that deals it out."""
        return bool(self._table[0, _DEALT])

    def set_next(self, epoch: Epoch, *, worker: int | None = None) -> None:
        """Set the epoch that all workers, or just one, begin next.

        Raises:
            ArgumentError: the topology differs from earlier iterations.
        """
        rows = slice(None) if worker is None else slice(worker, worker + 1)
        if worker is None and not self.is_dealt:
            self._check_same(0, self.topology)
        self._table[rows, _NEXT] = _cells(epoch)
        self._table[rows, _READER] = 0

    def note_restored(self, loader: object | None) -> None:
        """Note which loader of the dataset has restored the position of the next epoch; None if no loader has."""
        self._restored_for = None if loader is None else weakref.ref(loader)

    def next_for(self, loader: object) -> Epoch:
        """Return the epoch that a loader is about to begin.

        Raises:
            ArgumentError: another loader of the dataset has restored a position in it, and has not begun it.
        """
        other = None if self._restored_for is None else self._restored_for()
        if other is not None and other is not loader and self.next.position:
            raise ArgumentError(
                f"another loader of this dataset has restored position {self.next.position} of epoch "
                f"{self.next.number}, and has not gone on from there. This one would read the rest of that epoch, "
                "which the other would then miss. Give each loader a dataset of its own"
            )
        self._restored_for = None
        return self.next

    def set_number(self, number: int) -> None:
        """Set the number of the next epoch for all workers. If it is already next, its position is kept."""
        following = self.next
        if number != following.number or self.reader_pid:
            self.set_next(Epoch(seed=following.seed, number=number))

    def weights_are(self, number: int, *, worker: int) -> bool:
        """Return whether `number` stands for the weights that the parent, or this worker, has noted last."""
        return int(self._table[worker, _WEIGHTS]) == number

    def note_weights(self, number: int, *, worker: int | None = None) -> None:
        """Note a number that stands for the weights of a mixture, for all workers or just one."""
        rows = slice(None) if worker is None else slice(worker, worker + 1)
        self._table[rows, _WEIGHTS] = number

    def note_num_samples(self, num_samples: int) -> None:
        """Note how many samples of the index an epoch goes over that begins from now on, for all workers."""
        self._table[:, _NUM_SAMPLES] = num_samples

    def begin(self, *, worker: int, num_workers: int) -> Epoch:
        """Begin the next epoch as `worker` of `num_workers`. The epoch after it becomes the next one.

        Raises:
            ArgumentError: there are too many workers, or the topology differs from earlier iterations.
        """
        if num_workers > _MAX_WORKERS:
            raise ArgumentError(f"num_workers must be at most {_MAX_WORKERS}, got {num_workers}")
        return self.enter(_epoch(self._table[worker, _NEXT]), worker=worker, num_workers=num_workers)

    def enter(self, epoch: Epoch, *, worker: int, num_workers: int) -> Epoch:
        """Record that `worker` is in `epoch`, and return the epoch with the current topology.

        Raises:
            ArgumentError: the topology differs from earlier iterations.
        """
        topology = self.topology
        self._check_same(worker, topology)
        latest = int(self._table[worker, _NUM_SAMPLES])
        epoch = replace(epoch, num_samples=epoch.num_samples or latest)
        following = Epoch(seed=epoch.seed, number=epoch.number + 1)
        is_dealt = self._topology is None and reader() is Reader.DEALER
        noted = int(self._table[worker, _WEIGHTS])
        ranks = topology.rank, topology.world_size
        row = [*_cells(following), *_cells(epoch), os.getpid(), *ranks, is_dealt, noted, latest]
        self._table[worker] = row
        # Rows beyond num_workers have no worker in this epoch. A worker that uses one later continues from here.
        self._table[num_workers:] = row
        return replace(epoch, topology=topology)

    def _check_same(self, worker: int, topology: Topology) -> None:
        rank, world_size = self._table[worker, _RANKS].tolist()
        if world_size and (rank, world_size) != (topology.rank, topology.world_size):
            raise ArgumentError(
                f"the dataset was read as rank {rank} of {world_size} before, and is now read as rank {topology.rank} "
                f"of {topology.world_size}: samples would be repeated or missed. Iterate only after the process group "
                "is initialised, create a new dataset and loader, or pass topology=Topology(rank=..., world_size=...)"
            )


def _epoch(cells: NDArray[np.int64]) -> Epoch:
    seed, number, position, num_samples, *rest = cells.tolist()
    segments = tuple(pair for pair in zip(rest[::2], rest[1::2], strict=True) if pair[0])
    return Epoch(seed=seed, number=number, position=position, num_samples=num_samples, segments=segments)


def _cells(epoch: Epoch) -> list[int]:
    numbers = [number for segment in epoch.segments for number in segment]
    unused = [0] * (2 * MAX_SEGMENTS - len(numbers))
    return [epoch.seed, epoch.number, epoch.position, epoch.num_samples, *numbers, *unused]


def _empty_table() -> NDArray[np.int64]:
    """Return a table of zeros in memory that is shared with processes forked later."""
    return np.frombuffer(mmap.mmap(-1, 8 * math.prod(_SHAPE)), np.int64).reshape(_SHAPE)


def _sharable(table: torch.Tensor) -> torch.Tensor:
    """Return the table in memory that spawned processes can share too; unchanged if it is, or if there is none."""
    if table.is_shared():  # type: ignore[no-untyped-call]
        return table
    # As torch's own collate does. `share_memory_` would copy with OpenMP threads, which a forked process does not have.
    try:
        shared = torch.UntypedStorage._new_shared(table.nbytes)  # type: ignore[no-untyped-call]  # noqa: SLF001
    except RuntimeError:  # /dev/shm is full, or missing as in some containers
        return table
    copy = torch.empty(0, dtype=torch.int64, device="cpu").set_(shared).reshape(_SHAPE)
    copy.numpy()[:] = table.numpy()
    return copy
