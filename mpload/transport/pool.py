"""WorkerPool: hands out chunks, delivers batches in order, and retries chunks whose worker died."""

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
from mpload.transport.forking import Forks
from mpload.transport.issuing import Issuing
from mpload.transport.messages import NOTICE, Failure
from mpload.transport.parts import CloseOnError, PoolParts
from mpload.transport.progress import Progress, progress_of
from mpload.transport.ring import SlotRing, blank
from mpload.transport.slots import SlotLayout
from mpload.transport.stream import LatestStream, Stream
from mpload.transport.worker import FinishingWork, StatefulWork, Work

__all__ = ["WorkerPool"]

_POLL_SECONDS = 0.25
"""A waiting parent checks its workers after this much silence."""
_CREW_CHECK_SECONDS = 0.9 * _POLL_SECONDS
"""A parent that does receive answers checks its workers this often."""


class WorkerPool:
    """Worker processes that fill batches, delivered in the order of submission.

    The content of a batch does not depend on the number of workers, on which worker fills it, or on deaths.

    Memory: the ring, and a few MB for the zygote and each worker.
    Process: for one thread of the process that made it. A forked child may only close its copy, without effect on other
    processes. When the pool is closed or garbage-collected, or its process dies in any way, the zygote and workers end.
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
        on_notice: Callable[[Failure], None] | None = None,
        forks: Forks = Forks.NEVER,
    ) -> None:
        """Start the zygote and ask it for workers.

        Args:
            work: the work of the workers, which cloudpickle must be able to pickle.
            layout: the fields of a batch.
            num_slots: maximum number of batches in flight or held by the user.
            num_workers: number of worker processes.
            options: time limits, restarts and other options for workers.
            on_killed: decides what to do about a sample that kills its workers. It returns the task numbers of a
                replacement for the sample, or None to report it as a failure of its batch, or raises.
            count_oom_kills: returns the number of out-of-memory kills so far, so that a death's cause can name them.
            on_notice: is called with what the work passes to `ChunkReport.notify`.
            forks: whether the zygote is a fork of this process. `work` is then not pickled.

        Raises:
            ArgumentError: `work` cannot be pickled, or a number is out of range.
            WorkerError: the work does not load in the zygote, or the system refuses memory, a descriptor or a process.
        """
        if sys.platform != "linux":
            raise WorkerError(f"worker pools need Linux (memfd, pidfd), this is {sys.platform}. Use num_workers=0")
        options = options or PoolOptions()
        parts = PoolParts.make(work, layout, num_slots=num_slots, options=options, forks=forks)
        self._owner_pid = os.getpid()
        self._close = weakref.finalize(self, parts.close, self._owner_pid)
        self._close_on_error = CloseOnError(self._close)
        self._ring, self._board, self._inbox, self._zygote = parts.ring, parts.board, parts.inbox, parts.zygote
        self._on_killed = on_killed
        self._on_notice = on_notice or (lambda _: None)
        self._notices: deque[Failure] = deque()  # that have arrived
        self._has_last_steps = isinstance(work, FinishingWork)
        self._batches: dict[int, PendingBatch] = {}
        self._undelivered: deque[int] = deque()  # serial numbers of batches to deliver, in order
        self._issuing, self._streams = Issuing(parts.board), LatestStream()
        self._num_idle_checks = 0
        self._crew_checked_at = time.monotonic()
        self.stats = PoolStats()
        self.depth = num_slots
        """Maximum number of batches that `stream` keeps in flight. It may be lowered at any time to save memory."""
        try:
            explain = work.explain_end if isinstance(work, StatefulWork) else None
            self._crew = Crew(
                parts.zygote, parts.board, options=options, count_oom_kills=count_oom_kills, explain=explain
            )
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
        """End all processes and release all memory that is not lent. May be called again."""
        self._close()

    @property
    def is_closed(self) -> bool:
        """Whether the pool was closed, by `close` or by an error that left a step half done."""
        return not self._close.alive

    @property
    def num_free_slots(self) -> int:
        """Number of batches that may be submitted now."""
        return self._ring.num_free

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be submitted: fewer than `depth` are in flight, and a slot is free."""
        return len(self._undelivered) < max(1, self.depth) and self._ring.num_free > 0

    @property
    def num_pending(self) -> int:
        """Number of batches submitted and not yet delivered."""
        return len(self._undelivered)

    @property
    def num_workers(self) -> int:
        """Wanted number of workers. It may be changed at any time."""
        return self._crew.num_wanted

    @num_workers.setter
    def num_workers(self, num_workers: int) -> None:
        self._check_usable()
        self._crew.resize(num_workers)

    @property
    def num_deaths(self) -> int:
        """Number of processes that have died and were replaced."""
        return self._crew.num_deaths

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the zygote, which comes first, and of the workers, by the names that `ps` shows."""
        workers = {f"mpload-worker-{worker}": pid for worker, pid in sorted(self._crew.pids.items())}
        return {"mpload-zygote": self._zygote.pid, **workers}

    @property
    def ring(self) -> SlotRing:
        """The slots, for callers that measure their memory or register it with a device."""
        return self._ring

    def announce_up_to(self, num_samples: int) -> None:
        """Set how many samples workers may know of beyond the batches in flight, so that they can read ahead."""
        self._issuing.max_announced = num_samples

    def announce(self, task: BatchTask) -> bool:
        """Tell workers about a batch that will be submitted later; return False if they know of enough.

        Announced batches must be submitted in the same order, before any others.
        """
        self._check_usable()
        if not self._issuing.may_announce(task):
            return False
        number = self._issuing.new_number()
        chunks = self._cut(task, batch=number)
        return self._issuing.announce(task, number, chunks, num_workers=self._crew.num_wanted)

    def submit(self, task: BatchTask) -> None:
        """Queue a batch for the workers. This needs a free slot.

        Raises:
            ArgumentError: no slot is free, the task has more samples than a slot, or another one was announced first.
        """
        self._check_usable()
        if not 0 < task.num_samples <= self._ring.layout.num_samples:
            raise ArgumentError(f"num_samples must be in [1, {self._ring.layout.num_samples}], got {task.num_samples}")
        if not self._ring.num_free:
            raise ArgumentError("no slot is free. Take a batch with next() first, or make a pool with more slots")
        self._issuing.check_next(task)
        with self._close_on_error:
            if task.layout is not None:
                self._ring.adopt(task.layout)
            slot = self._ring.take()
            assert slot is not None
            announced = self._issuing.next_number
            number = self._issuing.new_number() if announced is None else announced
            if task.input is not None:
                self._ring.write_input(slot, task.input)
            num_left = task.num_samples + self._has_last_steps
            self._batches[number] = PendingBatch(task=task, slot=slot, num_left=num_left)
            self._undelivered.append(number)
            layout = self._ring.number_of(slot)
            if announced is None:
                self._issuing.issue(self._cut(task, batch=number, slot=slot, layout=layout), urgent=False)
            else:
                self._issuing.post_announced(slot, layout=layout)

    def _cut(self, task: BatchTask, *, batch: int, slot: int = -1, layout: int = 0) -> list[Chunk]:
        share = self._ring.num_slots * task.num_samples // self._crew.num_wanted
        where, mean = {"batch": batch, "slot": slot, "layout": layout}, self.stats.sample_ns
        return cut(num_samples=task.num_samples, task=task.numbers, share=share, sample_ns=mean, **where)

    def next(self) -> FilledBatch:
        """Wait for the oldest undelivered batch and return it.

        Raises:
            ArgumentError: no batch is in flight.
            WorkerError: `Work.open` failed in a worker, or too many workers died.
        """
        self._check_usable()
        if not self._undelivered:
            raise ArgumentError("no batch is in flight. Submit one first")
        batch = self._batches[self._undelivered[0]]
        while batch.num_left:
            self._poll(_POLL_SECONDS, batch)
        if self._has_last_steps:
            self._poll(0.0)  # so that the last steps of later batches begin
        elif time.monotonic() - self._crew_checked_at > _CREW_CHECK_SECONDS:
            self._poll(0.0, batch)
        with self._close_on_error:
            del self._batches[self._undelivered.popleft()]
            return self._deliver(batch)

    def await_next(self) -> bool:
        """Wait for a short time, or until a message arrives; return whether the oldest undelivered batch is complete.

        Raises:
            WorkerError: as for `next`.
        """
        self._check_usable()
        batch = self._batches[self._undelivered[0]]
        if batch.num_left:
            self._poll(_POLL_SECONDS, batch)
        return not batch.num_left

    @property
    def answers_fd(self) -> int:
        """A descriptor that becomes readable when there are answers, for an event loop that calls `take_complete`."""
        return self._inbox.answers_fd

    def take_complete(self) -> list[FilledBatch]:
        """Return the complete batches, in any order, without waiting. Call it often, so that dead workers are replaced.

        Raises:
            WorkerError: as for `next`.
        """
        self._check_usable()
        self._poll(0.0)
        with self._close_on_error:
            complete = [number for number in self._undelivered if not self._batches[number].num_left]
            self._undelivered = deque(number for number in self._undelivered if number not in complete)
            return [self._deliver(self._batches.pop(number)) for number in complete]

    def progress(self) -> Progress:
        """Return how far the workers have come. Takes about a microsecond per worker."""
        self._check_usable()
        with self._close_on_error:
            self._read_answers()
        return progress_of(self.stats, self._crew.rows(), self._issuing.issued)

    def stream(self, tasks: Iterable[BatchTask], *, on_wait: Callable[[], object] = lambda: None) -> Stream:
        """Return an iterator over the batches of `tasks`, in order, that keeps up to `depth` in flight.

        Args:
            tasks: what to make.
            on_wait: called repeatedly while a batch is awaited. It may change `num_workers` and `depth`.
        """
        return self._streams.begin(lambda: Stream(self, self._close_on_error, tasks, on_wait=on_wait))

    def wait(self) -> None:
        """Wait for a short time, or until a message arrives: it may free the slot of a cancelled batch."""
        self._check_usable()
        self._poll(_POLL_SECONDS)

    def cancel(self) -> None:
        """Drop all undelivered batches. Their slots become free as soon as no worker writes to them."""
        if not self._close.alive or os.getpid() != self._owner_pid:
            return
        with self._close_on_error:
            self._board.cancel()
            for number in self._undelivered:
                batch = self._batches[number]
                batch.is_cancelled = True
                if not batch.num_left:
                    self._ring.give_back(self._batches.pop(number).slot)
            self._undelivered.clear()
            for chunk in self._issuing.withdraw():
                self._complete(chunk)

    def _deliver(self, batch: PendingBatch) -> FilledBatch:
        layout = self._ring.layout_at(self._ring.number_of(batch.slot))
        arrays, is_copy = self._ring.hand_over(batch.slot, batch.task.num_samples)
        self.stats.add_batch(batch.task, is_copy=is_copy)
        return batch.filled(arrays, layout)

    def _check_usable(self) -> None:
        if (pid := os.getpid()) != self._owner_pid:
            raise WorkerError(f"these workers belong to process {self._owner_pid}. Make a loader in process {pid}")
        if not self._close.alive:
            self._close_on_error.raise_cause()

    def _poll(self, wait_seconds: float, batch: PendingBatch | None = None) -> None:
        """Wait up to `wait_seconds` for messages and process them: answers until `batch` is complete, or all."""
        zygote_has_message = self._inbox.wait(self._zygote.control, wait_seconds)
        now = time.monotonic()
        with self._close_on_error:
            self._read_answers(batch)
            if zygote_has_message or now - self._crew_checked_at > _CREW_CHECK_SECONDS:
                self._crew_checked_at = now
                self._check_crew()
            self._issuing.issue_rest()
        while self._notices:
            self._on_notice(self._notices.popleft())

    def _check_crew(self) -> None:
        deaths = self._crew.check()
        self._read_answers()  # a chunk that a dead worker had answered is done
        for death in deaths:
            self._retry(death)
        if not deaths and self._issuing.issued and self._crew.are_idle() and not self._board.has_untaken:
            self._num_idle_checks += 1
            # Chunks that are neither queued nor taken. We know of no way to get here, but must not hang.
            if self._num_idle_checks > 2:
                self._reissue_lost()
        else:
            self._num_idle_checks = 0

    def _read_answers(self, batch: PendingBatch | None = None) -> None:
        """Process the answers that have arrived: all of them, or only until `batch` is complete."""
        while (batch is None or batch.num_left) and (answer := self._inbox.read()) is not None:
            if answer.serial == NOTICE:
                self._notices.extend(answer.failures)
                continue
            self.stats.add(answer)
            chunk = self._issuing.issued.pop(answer.serial, None)
            if chunk is not None:
                self._batches[chunk.batch].tally.add(answer.tally)
                self._complete(chunk, answer.failures)

    def _complete(self, chunk: Chunk, failures: Sequence[Failure] = ()) -> None:
        batch = self._batches[chunk.batch]
        batch.num_left -= 1 if chunk.is_last_step else chunk.num_samples
        batch.failures.extend(failures)
        if self._has_last_steps and batch.num_left == 1:
            num_samples = batch.task.num_samples
            last_step = replace(chunk, first=num_samples, last=num_samples, task=batch.task.numbers, num_deaths=0)
            if batch.is_cancelled:
                batch.num_left = 0
            else:
                self._issuing.issue([last_step], urgent=True)
        if batch.is_cancelled and not batch.num_left:
            self._ring.give_back(self._batches.pop(chunk.batch).slot)

    def _retry(self, death: Death) -> None:
        if death.worker is None:
            self._reissue_lost()
            return
        # A worker that died while it took a chunk left it in the queue, or another worker has taken it since.
        if death.serial in self._board.queued_serials() or self._crew.holds(death.serial):
            return
        chunk = self._issuing.issued.pop(death.serial, None)
        if chunk is None:
            return
        again = after_death(chunk, death.sample, is_from_outside=death.is_from_outside)
        if self._batches[chunk.batch].is_cancelled:
            self._complete(chunk)
        elif again:
            self._issuing.issue(again, urgent=True)
        else:
            self._give_up_sample(chunk, death)

    def _reissue_lost(self) -> None:
        """Reissue all chunks that are neither queued nor taken, after all workers died or became idle."""
        queued = self._board.queued_serials()  # read before the rows: a new worker may be taking a chunk now
        lost = [serial for serial in self._issuing.issued if serial not in queued and not self._crew.holds(serial)]
        self._issuing.issue([self._issuing.issued.pop(serial) for serial in lost], urgent=True)
        self._board.wake(len(queued))

    def _give_up_sample(self, chunk: Chunk, death: Death) -> None:
        cause = f"killed its worker ({death.cause})"
        killed = KilledSample(task=chunk.task, sample=chunk.first, at=death.sample, cause=cause)
        numbers = self._on_killed(killed) if self._on_killed and not chunk.is_last_step else None
        if numbers is not None:
            instead = BatchTask(numbers=numbers, num_samples=1)
            self._issuing.issue([replace(chunk, task=instead.numbers, num_deaths=0)], urgent=True)
            return
        if not chunk.is_last_step:
            blank(self._ring.views(chunk.slot, chunk.layout), chunk.first)
        self._complete(chunk, [Failure(sample=chunk.first, cause=cause, details={"killed": True, "at": death.sample})])
