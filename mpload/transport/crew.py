"""The workers of a pool: as many as wanted, replaced as they die, killed when they are stuck."""

import signal
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from mpload.errors import ArgumentError, MploadWarning, RefusedError, WorkerError
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
"""Forking or killing takes milliseconds; a zygote that needs this long is stopped, and is replaced."""
_HOUR_SECONDS = 3600.0
_HISTORY_LINES = 10
_FAILED_STARTS = 3
"""In a row, by exiting: what a process does of its own accord when it starts, the next one will do as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker that died, or (worker None) the zygote with all workers."""

    worker: int | None
    cause: str
    serial: int = 0
    """Serial number of the chunk that it was filling; 0: none."""
    sample: int | None = None
    """The sample of the batch that it was at."""
    is_from_outside: bool = False
    """Whether it was killed (SIGKILL), and not by us."""


class ObservedClock:
    """Counts the seconds that passed while this process observed.

    A time limit on another process must not count the time in which this one was stopped (Ctrl-Z, a debugger) or busy
    elsewhere: the other's answer may be waiting unread. A gap between two observations counts as one second at most.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._observed = monotonic()
        self._now_seconds = 0.0

    def observe(self) -> float:
        """Return the seconds observed so far."""
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
    ) -> None:
        self._zygote = zygote
        self._board = board
        self._options = options
        self._count_oom_kills = count_oom_kills
        self._num_oom_kills = count_oom_kills() if count_oom_kills else 0
        self._clock = ObservedClock()
        self._pids: dict[int, int | None] = {}  # by worker number; None until the zygote has told
        self._seen: dict[int, tuple[WorkerRow, float]] = {}  # where a worker was, and since when
        self._asked: dict[int, float] = {}  # worker numbers that the zygote was asked about, and when
        self._stuck: dict[int, str] = {}
        self._num_leaving = 0
        self._stalled_since: float | None = None
        self._zygotes_end: str | None = None  # how the zygote ended that is yet to be replaced
        self._deaths: list[Death] = []  # yet to be told
        self._refused: WorkerRefused | None = None
        self._history: deque[tuple[float, str]] = deque()
        self._num_failed_starts = 0
        self.num_wanted = 0
        self.num_deaths = 0

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker number, of workers that the zygote has told of."""
        return {worker: pid for worker, pid in self._pids.items() if pid is not None}

    def resize(self, num_workers: int) -> None:
        """Have this many workers from now on; those too many leave when they have finished their chunk."""
        if not 1 <= num_workers <= MAX_WORKERS:
            raise ArgumentError(f"num_workers must be in [1, {MAX_WORKERS}], got {num_workers}")
        self.num_wanted = num_workers
        while len(self._pids) - self._num_leaving > num_workers and self._board.post_stop():
            self._num_leaving += 1
            self._board.wake(1)
        self._fork_missing()

    def start(self) -> None:
        """Start the zygote. One that is killed while it starts is replaced, as it is later.

        Raises:
            WorkerError: it cannot load the work, dies over it again and again, or was killed more often than
                `max_restarts` or for longer than `start_timeout_seconds`.
            RefusedError: the system gives no process or descriptor.
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
        """Whether a living worker has taken the chunk of this serial number."""
        return any(self._board.row(worker).serial == serial for worker in self._pids)

    def are_idle(self) -> bool:
        """Whether no worker fills a chunk or starts."""
        rows = [self._board.row(worker) for worker in self._pids]
        return not any(row.is_filling or row.is_opening for row in rows)

    def check(self) -> list[Death]:
        """Hear what the zygote tells, replace who has died, kill who is stuck; return the deaths.

        Raises:
            WorkerError: more workers than `max_restarts` died within an hour, or the zygote does not start again.
            RefusedError: the system gives no process or descriptor. The next check tries again.
        """
        now = self._clock.observe()
        for event in self._zygote.read():
            self._asked.pop(event.worker, None)
            if isinstance(event, WorkerForked):
                self._pids[event.worker] = event.pid
            elif isinstance(event, WorkerRefused):
                del self._pids[event.worker]
                self._seen.pop(event.worker, None)
                self._refused = event
            elif (death := self._ended(event)) is not None:
                self._deaths.append(death)
        if self._refused is not None and not self._asked:
            self._do_without(refusal(self._refused.error_number))
        self._judge(now)
        overdue = any(now - asked > _ZYGOTE_SECONDS for asked in self._asked.values())
        if self._zygotes_end is None and (self._zygote.is_dead() or overdue or self._is_stalled(now)):
            self._zygotes_end = self._bury_zygote(overdue=not self._zygote.is_dead())
        if self._zygotes_end is not None:
            self.start()
            self._deaths.append(Death(worker=None, cause=self._zygotes_end))
            self._zygotes_end = None
        self._fork_missing()
        deaths, self._deaths = self._deaths, []
        return deaths

    def _do_without(self, why: str) -> None:
        """Be content with the workers that there are."""
        self._refused = None
        text = f"a worker cannot start: {why}"
        num_workers = len(self._pids) - self._num_leaving
        if num_workers < 1:
            raise RefusedError(text)
        if num_workers < self.num_wanted:
            warnings.warn(f"{text}. Going on with {num_workers} of {self.num_wanted}", MploadWarning, stacklevel=2)
            self.num_wanted = num_workers

    def _ended(self, event: WorkerEnded) -> Death | None:
        row = self._board.row(event.worker)
        del self._pids[event.worker]
        self._seen.pop(event.worker, None)
        stuck = self._stuck.pop(event.worker, None)
        self._board.wake(1)  # it may have died with a byte that was to wake it
        if row.has_stopped:
            self._num_leaving = max(0, self._num_leaving - 1)
            return None
        cause = stuck or describe_status(event.status) + self._oom_note()
        self._num_failed_starts = self._num_failed_starts + 1 if row.is_opening and event.status >= 0 else 0
        where = f" at sample {row.sample} of its batch" if row.is_filling and row.sample is not None else ""
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

    def _judge(self, now: float) -> None:
        rows = {worker: self._board.row(worker) for worker in self._pids}
        is_watched = any(row.is_filling and not row.waits_for_turn for row in rows.values())
        for worker, row in rows.items():
            seen, since = self._seen.setdefault(worker, (row, now))
            if row != seen or (row.waits_for_turn and is_watched):  # the one that has its turn is watched
                self._seen[worker] = row, now
                continue
            limit = self._options.start_timeout_seconds if row.is_opening else self._options.sample_timeout_seconds
            if (row.is_filling or row.is_opening) and now - since > limit and worker not in self._stuck:
                self._stuck[worker] = f"stuck for more than {limit:g} s"
                self._asked.setdefault(worker, now)
                self._zygote.kill_worker(worker)

    def _is_stalled(self, now: float) -> bool:
        """Whether chunks wait, nobody takes them, and waking does not help.

        A worker that is stopped just while it takes a chunk holds the lock that the others wait for.
        """
        if not (self._board.has_untaken and self._pids and self.are_idle()):
            self._stalled_since = None
            return False
        self._board.wake(len(self._pids))
        if self._stalled_since is None:
            self._stalled_since = now
        return now - self._stalled_since > self._options.sample_timeout_seconds

    def _bury_zygote(self, *, overdue: bool) -> str:
        """Kill what is left of the zygote and its workers; return how it ended."""
        self._zygote.kill()
        cause = "the zygote did not answer" if overdue else f"the zygote died: {self._zygote.end_cause()}"
        cause += self._oom_note()
        for table in (self._pids, self._seen, self._asked, self._stuck):
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
            self._give_up(
                f"{len(self._history)} workers died within an hour, more than max_restarts={self._options.max_restarts}"
            )
        if self._num_failed_starts > _FAILED_STARTS:
            self._give_up("workers end before they begin, see their own output")

    def _give_up(self, why: str) -> NoReturn:
        lines = tuple(text for _, text in self._history)
        latest = "".join(f"\n  {text}" for text in lines[-_HISTORY_LINES:])
        error = WorkerError(f"{why}. The latest deaths:{latest}")
        error.history = lines
        raise error

    def _fork_missing(self) -> None:
        worker = 0
        while len(self._pids) - self._num_leaving < self.num_wanted and len(self._pids) < MAX_WORKERS:
            while worker in self._pids:
                worker += 1
            self._board.expect(worker)
            self._pids[worker] = None
            self._asked[worker] = self._clock.observe()
            self._zygote.fork(worker)
