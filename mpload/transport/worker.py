"""The loop of a worker process: take a chunk, fill it, send an answer."""

import contextlib
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from mpload.transport.board import BoardFds, WorkerBoard
from mpload.transport.chunks import Chunk
from mpload.transport.kernel import die_with_parent, prefer_for_oom_kill, set_process_name, set_up_heaps
from mpload.transport.messages import NOTICE, Answer, Failure, Tally, cause_of, details_of
from mpload.transport.ragged import RaggedArray
from mpload.transport.ring import SlotArrays, SlotRing, blank
from mpload.transport.settings import Settings, apply_settings, apply_settings_for_imports
from mpload.transport.slots import SlotLayout

__all__ = [
    "ChunkReport",
    "FinishingWork",
    "SharingWork",
    "Work",
    "WorkerSetup",
    "Workplace",
    "report_cannot_open",
    "run_worker",
]


class Work(Protocol):
    """The work of the workers. It is pickled once (cloudpickle), loaded in the zygote and forked into each worker."""

    def open(self, worker: int) -> None:
        """Prepare this process, which is worker number `worker`: open files, make clients and generators."""
        ...

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: "ChunkReport"
    ) -> None:
        """Write samples `first` to `last` (exclusive) of the batch that `task` describes into `arrays`.

        `arrays[name]` is the field's array [B, *shape], or its `RaggedArray`. The bytes written must depend only on
        `task` and the sample, because another process may fill the chunk again, or a part of it. An exception is the
        failure of one sample. In a chunk of several samples each is then filled again alone, to find the one that
        fails.
        """
        ...


@runtime_checkable
class FinishingWork(Work, Protocol):
    """Work with a last step for each batch, after all its samples have been made, by any workers."""

    def finish(self, task: tuple[int, ...], arrays: Mapping[str, Any], num_samples: int, report: "ChunkReport") -> None:
        """Finish the batch of `num_samples` samples that `task` describes; `arrays` holds them.

        The arguments are those of `fill`. An exception is a failure of the batch, reported at place `num_samples`.
        """
        ...


@runtime_checkable
class StatefulWork(Work, Protocol):
    """Work whose state is lost with a worker. No worker can be replaced, so `max_restarts` must be 0."""

    def explain_end(self, death: str) -> str:
        """Return the message of the error that ends the job: what `death` means for it, and what to do."""
        ...


@runtime_checkable
class SharingWork(Work, Protocol):
    """Work with a step for all workers together."""

    def share(self) -> None:
        """Prepare what workers share, in the process from which all of them will be forked. It must not fail."""
        ...


@dataclass(slots=True, kw_only=True)
class ChunkReport:
    """How a work reports on a chunk while it fills it. By default, nothing is reported."""

    at: Callable[[int], None] = lambda _: None
    """Records which sample of the batch is next. It is blamed for a death, and the call is a sign of life."""
    upcoming: Callable[[int], list[Chunk]] = lambda _: []
    """Reserves and returns up to so many chunks that this worker will most likely fill next, so it can read ahead."""
    begun: Callable[[int], None] = lambda _: None
    """Tells the other workers that so many of the chunks that `upcoming` last returned are being read here."""
    sample: "memoryview[int]" = field(default_factory=lambda: memoryview(bytearray(8)).cast("q"))
    """One int64, which `at` sets. Native code that makes many samples writes the number of each one there."""
    wait_for_turn: Callable[[], None] = lambda: None
    """Waits for this worker's turn to use much memory, which it keeps until its next sample or chunk."""
    notify: Callable[[str, Mapping[str, Any]], None] = lambda _, __: None
    """Passes a text and JSON-compatible facts to the parent at once. May be called later too, in any thread."""
    arrays_of: Callable[[Chunk], Mapping[str, Any]] = lambda _: {}
    """Returns the arrays of the slot of an upcoming chunk, to read the input of its task. It must have a slot."""
    layout: SlotLayout | None = None
    """The layout of the slot; None if it has the first one."""
    private_arrays: Callable[[], SlotArrays] | None = None
    """Returns the arrays of the slot for code of the user that may change them. The step may run again after a death,
    so it must find them as they were: the changes stay in this process, except those to whole fields."""
    tally: Tally = field(default_factory=Tally)
    """The work may add to its `counts`."""
    failures: list[Failure] = field(default_factory=list)

    def failed(self, sample: int, cause: str, details: Mapping[str, Any] | None = None) -> None:
        """Report a sample that could not be made, instead of raising. The caller decides what its arrays hold."""
        self.failures.append(Failure(sample=sample, cause=cause, details=details or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """All that a worker process needs, as plain data: descriptors, layout and the pickled work."""

    ring_fd: int
    answers_fd: int
    board: BoardFds
    num_slots: int
    layout: SlotLayout
    huge_pages: bool
    work: bytes
    shared_fds: tuple[int, ...]
    """Descriptors of shared memory that the work refers to, by these numbers."""
    settings: Settings
    sys_path: tuple[str, ...]
    python_path: str | None
    """The user's PYTHONPATH. These processes start with one that also names the folder of mpload."""
    python_hash_seed: str | None
    """The user's PYTHONHASHSEED. These processes start with a fixed one if there is none."""

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that a worker inherits."""
        return self.ring_fd, self.answers_fd, self.board.board, self.board.tokens, *self.shared_fds

    @classmethod
    def read(cls, fd: int) -> "WorkerSetup":
        """Read the setup that the parent wrote to `fd`."""
        size = os.fstat(fd).st_size
        setup = pickle.loads(os.pread(fd, size, 0))  # noqa: S301  from the parent's own memory
        assert isinstance(setup, cls)
        return setup

    def load_work(self) -> Work:
        """Unpickle the work, with the parent's module search path."""
        sys.path[:] = self.sys_path
        for name, value in (("PYTHONPATH", self.python_path), ("PYTHONHASHSEED", self.python_hash_seed)):
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        apply_settings_for_imports(self.settings)
        work: Work = pickle.loads(self.work)  # noqa: S301  from the parent's own memory
        apply_settings(self.settings)
        return work


@dataclass(frozen=True, slots=True)
class Workplace:
    """The resources of a worker process: inherited from the zygote, or made in a fresh process."""

    work: Work
    ring: SlotRing
    board: WorkerBoard
    answers: socket.socket

    @classmethod
    def enter(cls, setup: WorkerSetup) -> "Workplace":
        """Load the work, map the shared memory and open the socket."""
        return cls.of(setup, setup.load_work())

    @classmethod
    def of(cls, setup: WorkerSetup, work: Work) -> "Workplace":
        """Map the shared memory and open the socket, for a work that is already in this process."""
        for fd in setup.fds:
            os.set_inheritable(fd, False)
        if isinstance(work, SharingWork):
            work.share()
        ring = SlotRing.attach(
            setup.ring_fd, num_slots=setup.num_slots, layout=setup.layout, huge_pages=setup.huge_pages
        )
        return cls(work, ring, WorkerBoard(setup.board), socket.socket(fileno=setup.answers_fd))


def run_worker(number: int, place: Workplace, *, parent_pid: int) -> int:
    """Run as worker `number` until asked to exit; return the exit status."""
    die_with_parent(parent_pid)
    prefer_for_oom_kill()
    set_up_heaps()
    set_process_name(f"mpload-worker-{number}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    place.board.use_row(number)
    with contextlib.suppress(ConnectionError):  # the parent is gone
        _use_one_thread()
        try:
            place.work.open(number)
        except BaseException as error:  # noqa: BLE001  the parent must learn of a SystemExit too
            report_cannot_open(number, place.answers, error)
            return 1
        _use_one_thread()
        _serve(number, place)
    return 0


def report_cannot_open(number: int, answers: socket.socket, error: BaseException) -> None:
    """Report to the parent, from the handler of `error`, that worker `number` cannot start its work."""
    failure = Failure(sample=-1, cause=cause_of(error), details=details_of(error))
    answers.send(Answer(worker=number, serial=0, failures=(failure,)).encode())


def _notify(number: int, answers: socket.socket, text: str, facts: Mapping[str, Any]) -> None:
    notice = Failure(sample=-1, cause=text, details=facts)
    with contextlib.suppress(OSError):  # the parent is gone
        answers.send(Answer(worker=number, serial=NOTICE, failures=(notice,)).encode())


def _serve(number: int, place: Workplace) -> None:
    slots: dict[tuple[int, int], SlotArrays] = {}
    while (taken := place.board.take()) is not None:
        serial, chunk = taken
        board = place.board
        report = ChunkReport(
            at=board.at,
            upcoming=board.reserve,
            begun=board.begin,
            arrays_of=lambda upcoming: place.ring.views(upcoming.slot, upcoming.layout),
            sample=board.sample,
            wait_for_turn=board.wait_for_turn,
            notify=partial(_notify, number, place.answers),
        )
        if chunk is not None:
            start_ns = time.perf_counter_ns()
            key = chunk.slot, chunk.layout
            if key not in slots:
                slots[key] = place.ring.views(*key)
            report.private_arrays = partial(place.ring.private_views, *key)
            if chunk.layout:
                report.layout = place.ring.layout_at(chunk.layout)
            _fill(place.work, chunk, slots[key], report)
            report.tally.num_samples = report.tally.num_samples or chunk.num_samples
            report.tally.busy_ns = time.perf_counter_ns() - start_ns
        place.board.end_turn()
        answer = Answer(worker=number, serial=serial, tally=report.tally, failures=tuple(report.failures))
        place.answers.send(answer.encode())


def _fill(work: Work, chunk: Chunk, arrays: SlotArrays, report: ChunkReport) -> None:
    if chunk.is_last_step:
        assert isinstance(work, FinishingWork)
        report.at(chunk.first)
        try:
            work.finish(chunk.task, arrays, chunk.first, report)
        except BaseException as error:  # noqa: BLE001  as below
            report.failed(chunk.first, cause_of(error), details_of(error))
        return
    try:
        _fill_range(work, chunk.task, arrays, range(chunk.first, chunk.last), report)
    except BaseException as error:  # noqa: BLE001  anything that user code raises is a failure, even SystemExit
        if chunk.num_samples == 1:
            _fail(arrays, chunk.first, error, report)
            return
    else:
        return
    report.failures.clear()
    for sample in range(chunk.first, chunk.last):  # not in the handler: tracebacks would show both errors
        try:
            _fill_range(work, chunk.task, arrays, range(sample, sample + 1), report)
        except BaseException as error:  # noqa: BLE001  as above
            _fail(arrays, sample, error, report)


def _fill_range(work: Work, task: tuple[int, ...], arrays: SlotArrays, samples: range, report: ChunkReport) -> None:
    for array in arrays.values():
        if isinstance(array, RaggedArray) and not array.field.is_input:
            array.begin(samples.start, samples.stop)
    report.at(samples.start)
    work.fill(task, arrays, samples.start, samples.stop, report)


def _fail(arrays: SlotArrays, sample: int, error: BaseException, report: ChunkReport) -> None:
    blank(arrays, sample)
    report.failed(sample, cause_of(error), details_of(error))


def _use_one_thread() -> None:
    """Turn off the threads of libraries: with one worker per core they would only compete for cores."""
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"  # if it is imported later
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
