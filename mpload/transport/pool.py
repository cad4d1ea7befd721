"""WorkerPool: hands chunks out, delivers batches in order, and does again what died on the way."""

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Self

from mpload.errors import ArgumentError, WorkerError
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample, PendingBatch, PoolOptions, PoolStats
from mpload.transport.chunks import Chunk, after_death, cut
from mpload.transport.crew import Crew, Death
from mpload.transport.messages import Failure, cannot_open
from mpload.transport.parts import CloseOnError, PoolParts
from mpload.transport.ring import SlotRing, blank
from mpload.transport.slots import SlotLayout
from mpload.transport.stream import Stream
from mpload.transport.worker import Work

__all__ = ["WorkerPool"]

_POLL_SECONDS = 0.25
"""How long a waiting parent hears nothing from its workers before it checks on them."""
_CREW_SECONDS = 0.9 * _POLL_SECONDS
"""How often a parent checks on its workers while it hears from them."""
_KEPT_SLOTS = 2
"""Slots that are not lent out, so that workers have somewhere to write while the user holds all they can."""


class WorkerPool:
    """Worker processes that fill batches, delivered in the order in which they were submitted.

    Content does not depend on the number of workers, on which of them fills what, or on who dies meanwhile.

    Memory: the ring, and a few MB for the zygote and each worker.
    Process: for one thread of the process that made it. A forked child may only close its copy, which disturbs nobody.
    When the pool is closed, collected, or its process dies however suddenly, zygote and workers go too.
    """

    def __init__(
        self,
        work: Work,
        layout: SlotLayout,
        *,
        num_slots: int,
        num_workers: int,
        options: PoolOptions | None = None,
        on_killed: Callable[[KilledSample], tuple[int, ...] | None] | None = None,
        count_oom_kills: Callable[[], int] | None = None,
    ) -> None:
        """Start the zygote and ask it for workers.

        Args:
            work: what workers do; anything that cloudpickle can pickle.
            layout: the fields of a batch.
            num_slots: batches that can be under way or held by the user.
            num_workers: processes to fill them.
            options: how workers are treated.
            on_killed: decides about a sample that kills its workers: returns the task numbers by which its place is to
                be filled instead, or None to leave it a failure of its batch, or raises.
            count_oom_kills: how often the kernel has killed for lack of memory here, to name the cause of deaths.

        Raises:
            ArgumentError: `work` cannot be pickled, or a number is out of range.
            WorkerError: the work does not load in the zygote, or the system gives no memory, descriptor or process.
        """
        if sys.platform != "linux":
            raise WorkerError(f"worker pools need Linux (memfd, pidfd), this is {sys.platform}. Use num_workers=0")
        options = options or PoolOptions()
        parts = PoolParts.make(work, layout, num_slots=num_slots, options=options)
        self._owner_pid = os.getpid()
        self._close = weakref.finalize(self, parts.close, self._owner_pid)
        self._close_on_error = CloseOnError(self._close)
        self._ring, self._board, self._inbox, self._zygote = parts.ring, parts.board, parts.inbox, parts.zygote
        self._on_killed = on_killed
        self._serial = 0
        self._batches: dict[int, PendingBatch] = {}
        self._line: deque[int] = deque()  # numbers of batches to be delivered, in order
        self._issued: dict[int, Chunk] = {}  # by serial number: chunks that wait or are being filled
        self._backlog: deque[Chunk] = deque()  # chunks that the board has no room for
        self._num_quiet_checks = 0
        self._crew_checked = time.monotonic()
        self.stats = PoolStats()
        self.depth = num_slots
        """Batches that `stream` keeps under way at most; may be set while it runs, to use less memory."""
        try:
            self._crew = Crew(parts.zygote, parts.board, options=options, count_oom_kills=count_oom_kills)
            self._crew.start()
            self._crew.resize(num_workers)
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and let go of all memory that is not lent. May be called again."""
        self._close()

    @property
    def is_closed(self) -> bool:
        """Whether it is of no use any more: it was closed, or an error has left a step half done."""
        return not self._close.alive

    @property
    def num_free_slots(self) -> int:
        """Batches that may be submitted now."""
        return self._ring.num_free

    @property
    def has_room(self) -> bool:
        """Whether one more batch can be under way: fewer than `depth` are, and a slot is free."""
        return len(self._line) < max(1, self.depth) and self._ring.num_free > 0

    @property
    def num_pending(self) -> int:
        """Batches submitted and not yet delivered."""
        return len(self._line)

    @property
    def num_workers(self) -> int:
        """Workers wanted; may be set while the pool runs."""
        return self._crew.num_wanted

    @num_workers.setter
    def num_workers(self, num_workers: int) -> None:
        self._check_usable()
        self._crew.resize(num_workers)

    @property
    def num_deaths(self) -> int:
        """Processes that died and were replaced so far."""
        return self._crew.num_deaths

    @property
    def pids(self) -> dict[str, int]:
        """Process ids, of the zygote and the workers, by the names that `ps` shows."""
        workers = {f"mpload-worker-{worker}": pid for worker, pid in sorted(self._crew.pids.items())}
        return {"mpload-zygote": self._zygote.pid, **workers}

    @property
    def ring(self) -> SlotRing:
        """The slots, for whoever accounts for their memory or registers it with a device."""
        return self._ring

    def submit(self, task: BatchTask) -> None:
        """Have a batch made. Needs a free slot.

        Raises:
            ArgumentError: no slot is free, or the task does not fit one.
        """
        self._check_usable()
        if not 0 < task.num_samples <= self._ring.layout.num_samples:
            raise ArgumentError(f"num_samples must be in [1, {self._ring.layout.num_samples}], got {task.num_samples}")
        if not self._ring.num_free:
            raise ArgumentError("no slot is free. Take a batch with next() first, or make the pool with more slots")
        with self._close_on_error:
            slot = self._ring.take()
            assert slot is not None
            self._serial += 1
            number = self._serial
            self._batches[number] = PendingBatch(task=task, slot=slot, num_left=task.num_samples)
            self._line.append(number)
            share = self._ring.num_slots * task.num_samples // self._crew.num_wanted
            chunks = cut(
                batch=number,
                slot=slot,
                num_samples=task.num_samples,
                task=task.numbers,
                share=share,
                sample_ns=self.stats.sample_ns,
            )
            self._issue(chunks, urgent=False)

    def next(self) -> FilledBatch:
        """Wait for the oldest batch and return it.

        Raises:
            ArgumentError: nothing was submitted.
            WorkerError: a worker cannot open what it works with, or too many died.
        """
        self._check_usable()
        if not self._line:
            raise ArgumentError("no batch is under way. Submit one first")
        batch = self._batches[self._line[0]]
        while batch.num_left:
            self._poll(_POLL_SECONDS, batch)
        if time.monotonic() - self._crew_checked > _CREW_SECONDS:
            self._poll(0.0, batch)
        with self._close_on_error:
            del self._batches[self._line.popleft()]
            return self._deliver(batch)

    def stream(self, tasks: Iterable[BatchTask]) -> Stream:
        """Return the batches of `tasks` in order; while they are taken, `depth` are kept under way."""
        return Stream(self, self._close_on_error, tasks)

    def wait(self) -> None:
        """Wait a moment until something is heard, such as that a slot of a cancelled batch is free."""
        self._check_usable()
        self._poll(_POLL_SECONDS)

    def cancel(self) -> None:
        """Forget all batches that are not yet delivered. Their slots are free as soon as no worker writes into them."""
        if not self._close.alive or os.getpid() != self._owner_pid:
            return
        with self._close_on_error:
            self._board.cancel()
            for number in self._line:
                batch = self._batches[number]
                batch.is_cancelled = True
                if not batch.num_left:
                    self._settle(number, batch)
            self._line.clear()
            dropped, self._backlog = self._backlog, deque()
            for chunk in dropped:
                self._account(chunk)

    def _deliver(self, batch: PendingBatch) -> FilledBatch:
        num_samples = batch.task.num_samples
        num_kept = min(_KEPT_SLOTS, max(1, self._ring.num_slots - 1))
        if self._ring.num_lent + num_kept < self._ring.num_slots:
            arrays = self._ring.lend(batch.slot, num_samples)
        else:
            arrays = self._ring.copy_out(batch.slot, num_samples)
            self.stats.num_copied_batches += 1
        self.stats.num_batches += 1
        self.stats.num_samples += num_samples
        failures = tuple(sorted(batch.failures, key=lambda failure: failure.sample)) if batch.failures else ()
        return FilledBatch(task=batch.task, arrays=arrays, failures=failures)

    def _check_usable(self) -> None:
        if os.getpid() != self._owner_pid:
            raise WorkerError(
                f"these workers belong to process {self._owner_pid}. Make a loader in process {os.getpid()}"
            )
        if not self._close.alive:
            raise WorkerError("the pool is closed. Make a new one")

    def _poll(self, wait_seconds: float, batch: PendingBatch | None = None) -> None:
        """Wait at most this long until something is heard, and act on it: on what is of `batch`, or on all."""
        is_told = self._inbox.wait(self._zygote.control, wait_seconds)
        now = time.monotonic()
        with self._close_on_error:
            self._read_answers(batch)
            if is_told or now - self._crew_checked > _CREW_SECONDS:
                self._crew_checked = now
                self._check_crew()
            if self._backlog:
                dropped, self._backlog = self._backlog, deque()
                self._issue(dropped, urgent=True)

    def _check_crew(self) -> None:
        deaths = self._crew.check()
        self._read_answers()  # what the dead had answered is done
        for death in deaths:
            self._redo(death)
        if not deaths and self._issued and self._crew.are_idle() and not self._board.has_untaken:
            self._num_quiet_checks += 1
            # Chunks that nobody has and that do not wait. Nothing that we know of does this; still we must not hang.
            if self._num_quiet_checks > 2:
                self._redo_untaken()
        else:
            self._num_quiet_checks = 0

    def _read_answers(self, batch: PendingBatch | None = None) -> None:
        """Read what workers have answered, all of it or until `batch` is complete."""
        while (batch is None or batch.num_left) and (answer := self._inbox.read()) is not None:
            if not answer.serial:
                raise cannot_open(answer)
            self.stats.add(answer)
            chunk = self._issued.pop(answer.serial, None)
            if chunk is not None:
                self._account(chunk, answer.failures)

    def _account(self, chunk: Chunk, failures: Sequence[Failure] = ()) -> None:
        batch = self._batches[chunk.batch]
        batch.num_left -= chunk.num_samples
        batch.failures.extend(failures)
        if batch.is_cancelled and not batch.num_left:
            self._settle(chunk.batch, batch)

    def _settle(self, number: int, batch: PendingBatch) -> None:
        del self._batches[number]
        self._ring.give_back(batch.slot)

    def _issue(self, chunks: Iterable[Chunk], *, urgent: bool) -> None:
        num_posted = 0
        for chunk in chunks:
            self._serial += 1
            if self._board.post(self._serial, chunk, urgent=urgent):
                self._issued[self._serial] = chunk
                num_posted += 1
            else:
                self._backlog.append(chunk)
        self._board.wake(num_posted)

    def _redo(self, death: Death) -> None:
        if death.worker is None:
            self._redo_untaken()
            return
        # A worker that died just while it took a chunk leaves it in the queue, or to the next one.
        if death.serial in self._board.queued_serials() or self._crew.holds(death.serial):
            return
        chunk = self._issued.pop(death.serial, None)
        if chunk is None:
            return
        again = after_death(chunk, death.sample, is_from_outside=death.is_from_outside)
        if self._batches[chunk.batch].is_cancelled:
            self._account(chunk)
        elif again:
            self._issue(again, urgent=True)
        else:
            self._convict(chunk, f"killed its worker ({death.cause})")

    def _redo_untaken(self) -> None:
        """Do again all chunks that neither wait nor are being filled, after all workers died or fell idle."""
        queued = self._board.queued_serials()  # before we ask who holds them: a new worker may be taking one just now
        lost = [serial for serial in self._issued if serial not in queued and not self._crew.holds(serial)]
        self._issue([self._issued.pop(serial) for serial in lost], urgent=True)
        self._board.wake(len(queued))

    def _convict(self, chunk: Chunk, cause: str) -> None:
        killed = KilledSample(task=chunk.task, sample=chunk.first, cause=cause)
        numbers = self._on_killed(killed) if self._on_killed else None
        if numbers is not None:
            instead = BatchTask(numbers=numbers, num_samples=1)
            self._issue([replace(chunk, task=instead.numbers, num_deaths=0)], urgent=True)
            return
        blank(self._ring.views(chunk.slot), chunk.first)
        self._account(chunk, [Failure(sample=chunk.first, cause=cause, details={"killed": True})])
