"""The workers of a pool: keeps the wanted number alive, replaces those that die, kills those that are stuck."""

import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from mpload.errors import ArgumentError, RefusedError, WorkerError, warn
from mpload.transport.batches import PoolOptions
from mpload.transport.board import MAX_WORKERS, ParentBoard, WorkerRow
from mpload.transport.launch import (
    WorkerEnded,
    WorkerForked,
    WorkerRefused,
    ZygoteDiedError,
    ZygoteProcess,
    describe_status,
)
from mpload.transport.limits import refusal

__all__ = ["Crew", "Death", "ObservedClock"]

_ZYGOTE_SECONDS = 10.0
"""Forking or killing takes milliseconds. A zygote that takes this long is assumed to be stopped, and is replaced."""
_HOUR_SECONDS = 3600.0
_HISTORY_LINES = 10
_FAILED_STARTS = 3
"""More consecutive workers than this that exit while they start end the job: the next one would exit as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The death of a worker, or of the zygote and all its workers (`worker` is None)."""

    worker: int | None
    cause: str
    serial: int = 0
    """Serial number of the chunk that it was filling, or 0 if none."""
    sample: int | None = None
    """Position in the batch of the sample that it was making, if known."""
    is_from_outside: bool = False
    """Whether it was killed by SIGKILL, but not by this pool."""


class ObservedClock:
    """Counts the seconds during which this process was observing.

    A time limit for another process must exclude the time when this process was stopped (Ctrl-Z, a debugger) or busy
    elsewhere, because the other's answer may have been waiting unread. So the gap between two observations counts as
    one second at most.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._observed = monotonic()
        self._now_seconds = 0.0

    def observe(self) -> float:
        """Record an observation and return the seconds counted so far."""
        now = self._monotonic()
        self._now_seconds += min(now - self._observed, 1.0)
        self._observed = now
        return self._now_seconds


class Crew:
    """Keeps `num_wanted` workers alive."""

    def __init__(
        self,
        zygote: ZygoteProcess,
        board: ParentBoard,
        *,
        options: PoolOptions,
        count_oom_kills: Callable[[], int] | None,
        explain: Callable[[str], str] | None = None,
    ) -> None:
        self._zygote = zygote
        self._board = board
        self._options = options
        self._count_oom_kills = count_oom_kills
        self._explain = explain
        self._num_oom_kills = count_oom_kills() if count_oom_kills else 0
        self._clock = ObservedClock()
        self._pids: dict[int, int | None] = {}  # by worker number; None until the zygote reports the fork
        self._last_changes: dict[int, tuple[WorkerRow, float]] = {}  # each worker's state, and since when
        self._requested: dict[int, float] = {}  # when the zygote was asked about a worker, until it answers
        self._stuck: dict[int, str] = {}
        self._num_leaving = 0
        self._stalled_since: float | None = None
        self._zygote_end: str | None = None  # cause of death of a zygote that has not been replaced yet
        self._deaths: list[Death] = []  # not reported yet
        self._refused: WorkerRefused | None = None
        self._history: deque[tuple[float, str]] = deque()
        self._num_failed_starts = 0
        self.num_wanted = 0
        self.num_deaths = 0

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker number, of the workers whose fork the zygote has reported."""
        return {worker: pid for worker, pid in self._pids.items() if pid is not None}

    def resize(self, num_workers: int) -> None:
        """Set the wanted number of workers. Surplus workers exit after their current chunk."""
        if not 1 <= num_workers <= MAX_WORKERS:
            raise ArgumentError(f"num_workers must be in [1, {MAX_WORKERS}], got {num_workers}")
        self.num_wanted = num_workers
        while len(self._pids) - self._num_leaving > num_workers and self._board.post_stop():
            self._num_leaving += 1
            self._board.wake(1)
        self._fork_missing()

    def start(self) -> None:
        """Start the zygote. If it is killed while it starts, start another, as after a later death.

        Raises:
            WorkerError: it cannot load the work, dies repeatedly while loading it, was killed more than `max_restarts`
                times, or was still being killed after `start_timeout_seconds`.
            RefusedError: the system refuses a process or descriptor.
        """
        deadline = time.monotonic() + self._options.start_timeout_seconds
        num_own_deaths = 0
        while True:
            try:
                self._zygote.start()
            except ZygoteDiedError as error:
                note = self._oom_note()
                self._record(f"{error}{note}")
                num_own_deaths += not error.is_from_outside or bool(note)
                if num_own_deaths > _FAILED_STARTS or time.monotonic() > deadline:
                    raise
            else:
                return

    def holds(self, serial: int) -> bool:
        """Whether a living worker has taken the chunk with this serial number."""
        return any(self._board.row(worker).serial == serial for worker in self._pids)

    def rows(self) -> dict[int, WorkerRow]:
        """Return the state of each worker that is alive or starting, by worker number."""
        return {worker: self._board.row(worker) for worker in self._pids}

    def are_idle(self) -> bool:
        """Whether no worker is filling a chunk or starting."""
        return not any(row.is_filling or row.is_opening for row in self.rows().values())

    def check(self) -> list[Death]:
        """Read the zygote's messages, replace dead workers, kill stuck ones, and return the deaths.

        Raises:
            WorkerError: more workers than `max_restarts` died within an hour, or the zygote does not start again.
            RefusedError: the system refuses a process or descriptor. The next check tries again.
        """
        now = self._clock.observe()
        for event in self._zygote.read():
            self._requested.pop(event.worker, None)
            if isinstance(event, WorkerForked):
                self._pids[event.worker] = event.pid
            elif isinstance(event, WorkerRefused):
                del self._pids[event.worker]
                self._last_changes.pop(event.worker, None)
                self._refused = event
            elif (death := self._note_end(event)) is not None:
                self._deaths.append(death)
        if self._refused is not None and not self._requested:
            self._continue_with_fewer(refusal(self._refused.error_number))
        self._kill_stuck(now)
        overdue = any(now - asked > _ZYGOTE_SECONDS for asked in self._requested.values())
        if self._zygote_end is None and (self._zygote.is_dead() or overdue or self._is_stalled(now)):
            self._zygote_end = self._reap_zygote(overdue=not self._zygote.is_dead())
        if self._zygote_end is not None:
            self.start()
            self._deaths.append(Death(worker=None, cause=self._zygote_end))
            self._zygote_end = None
        self._fork_missing()
        deaths, self._deaths = self._deaths, []
        return deaths

    def _continue_with_fewer(self, why: str) -> None:
        """Lower the wanted number to the workers that are alive."""
        self._refused = None
        text = f"cannot start a worker: {why}"
        num_workers = len(self._pids) - self._num_leaving
        if num_workers < 1:
            raise RefusedError(text)
        if num_workers < self.num_wanted:
            warn(f"{text}. Continuing with {num_workers} of {self.num_wanted}")
            self.num_wanted = num_workers

    def _note_end(self, event: WorkerEnded) -> Death | None:
        row = self._board.row(event.worker)
        del self._pids[event.worker]
        self._last_changes.pop(event.worker, None)
        stuck = self._stuck.pop(event.worker, None)
        self._board.wake(1)  # it may have died after reading a byte that was meant to wake a worker
        if row.has_stopped:
            self._num_leaving = max(0, self._num_leaving - 1)
            return None
        cause = stuck or describe_status(event.status) + self._oom_note()
        self._num_failed_starts = self._num_failed_starts + 1 if row.is_opening and event.status >= 0 else 0
        is_known = row.is_filling and row.sample is not None and self._explain is None
        where = f" at sample {row.sample} of its batch" if is_known else ""
        self._record(f"worker {event.worker} (process {event.pid}): {cause}{where}")
        return Death(
            worker=event.worker,
            cause=cause,
            serial=max(row.serial, 0),
            sample=row.sample,
            is_from_outside=stuck is None and event.status == -signal.SIGKILL,
        )

    def _oom_note(self) -> str:
        if self._count_oom_kills is None:
            return ""
        before, self._num_oom_kills = self._num_oom_kills, self._count_oom_kills()
        return ", out of memory" if self._num_oom_kills > before else ""

    def _kill_stuck(self, now: float) -> None:
        rows = self.rows()
        is_watched = any(row.is_filling and not row.waits_for_turn for row in rows.values())
        for worker, row in rows.items():
            seen, since = self._last_changes.setdefault(worker, (row, now))
            if row != seen or (row.waits_for_turn and is_watched):  # the worker that has its turn is watched instead
                self._last_changes[worker] = row, now
                continue
            limit = self._options.start_timeout_seconds if row.is_opening else self._options.sample_timeout_seconds
            if (row.is_filling or row.is_opening) and now - since > limit and worker not in self._stuck:
                self._stuck[worker] = f"stuck for more than {limit:g} s"
                self._requested.setdefault(worker, now)
                self._zygote.kill_worker(worker)

    def _is_stalled(self, now: float) -> bool:
        """Wake the workers if chunks wait and none is taken; return whether that has not helped for too long.

        A worker that is stopped while it takes a chunk holds the lock that the others wait for.
        """
        if not (self._board.has_untaken and self._pids and self.are_idle()):
            self._stalled_since = None
            return False
        self._board.wake(len(self._pids))
        if self._stalled_since is None:
            self._stalled_since = now
        return now - self._stalled_since > self._options.sample_timeout_seconds

    def _reap_zygote(self, *, overdue: bool) -> str:
        """Kill the zygote, if it is alive, and its workers; return the cause of its death."""
        self._zygote.kill()
        cause = "the zygote did not answer" if overdue else f"the zygote died: {self._zygote.end_cause()}"
        cause += self._oom_note()
        for table in (self._pids, self._last_changes, self._requested, self._stuck):
            table.clear()
        self._num_leaving = 0
        self._stalled_since = None
        self._record(cause)
        return cause

    def _record(self, line: str) -> None:
        self.num_deaths += 1
        now = time.monotonic()
        self._history.append((now, line))
        while now - self._history[0][0] > _HOUR_SECONDS:
            self._history.popleft()
        if len(self._history) > self._options.max_restarts:
            workers = "1 worker" if len(self._history) == 1 else f"{len(self._history)} workers"
            self._give_up(f"{workers} died within an hour, more than max_restarts={self._options.max_restarts}")
        if self._num_failed_starts > _FAILED_STARTS:
            self._give_up("workers exit while they start. See the output that they printed")

    def _give_up(self, why: str) -> NoReturn:
        lines = tuple(text for _, text in self._history)
        if self._explain is None:
            latest = "".join(f"\n  {text}" for text in lines[-_HISTORY_LINES:])
            error = WorkerError(f"{why}. Latest deaths:{latest}")
        else:
            error = WorkerError(self._explain(lines[-1]))
        error.history = lines
        raise error

    def _fork_missing(self) -> None:
        worker = 0
        while len(self._pids) - self._num_leaving < self.num_wanted and len(self._pids) < MAX_WORKERS:
            while worker in self._pids:
                worker += 1
            self._board.prepare_row(worker)
            self._pids[worker] = None
            self._requested[worker] = self._clock.observe()
            self._zygote.fork(worker)
