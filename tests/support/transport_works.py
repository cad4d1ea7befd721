"""Works for the tests of the transport: the content of each sample is a function of its task and position."""

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.transport.batches import BatchTask
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.transport.worker import ChunkReport
from tests.support.boards import num_unread
from tests.support.zygote_template import prepare_template, template_pid

LAYOUT = SlotLayout(
    num_samples=32,
    fields=(
        Field(name="pixels", shape=(64,), dtype="int32"),
        Field(name="label", dtype="int64"),
        RaggedField(name="text", max_sample_bytes=64),
    ),
)


def pixels_of(batch: int, sample: int) -> NDArray[np.int32]:
    return np.arange(64, dtype=np.int32) * (batch + 1) + sample


def text_of(batch: int, sample: int) -> bytes:
    return b"x" * (sample % 7) + str(batch).encode()


class Numbers:
    """Writes the values of `pixels_of` and `text_of`, after calling `sample` for each sample."""

    def __init__(self, sample: Callable[[int, int], None] | None = None, *, sleep_seconds: float = 0.0) -> None:
        self.sample = sample
        self.sleep_seconds = sleep_seconds

    def open(self, worker: int) -> None:
        pass

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        for sample in range(first, last):
            report.at(sample)
            if self.sleep_seconds:
                time.sleep(self.sleep_seconds)
            if self.sample is not None:
                self.sample(task[0], sample)
            arrays["pixels"][sample] = pixels_of(task[0], sample)
            arrays["label"][sample] = task[0] * 1000 + sample
            arrays["text"].put(sample, text_of(task[0], sample))


def tasks(num_batches: int, num_samples: int = 32) -> list[BatchTask]:
    return [BatchTask(numbers=(number,), num_samples=num_samples) for number in range(num_batches)]


def assert_right(arrays: Mapping[str, Any], batch: int, *, num_samples: int = 32, bad: tuple[int, ...] = ()) -> None:
    good = [sample for sample in range(num_samples) if sample not in bad]
    assert len(arrays["label"]) == len(arrays["text"]) == num_samples
    assert arrays["label"][good].tolist() == [batch * 1000 + sample for sample in good]
    assert (arrays["pixels"][good] == np.array([pixels_of(batch, sample) for sample in good])).all()
    assert [arrays["text"][sample].tobytes() for sample in good] == [text_of(batch, sample) for sample in good]
    for sample in bad:
        assert arrays["label"][sample] == 0
        assert not arrays["pixels"][sample].any()
        assert len(arrays["text"][sample]) == 0


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


class Gate:
    """Blocks workers until the test opens it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "open"

    def open(self) -> None:
        self.path.touch()

    def wait(self, *_: object) -> None:
        if not wait_until(self.path.exists):
            raise TimeoutError(f"{self.path} was not opened")


def wait_until(condition: Callable[[], bool], limit_seconds: float = 60.0) -> bool:
    """Wait until a condition holds; return whether it does within the limit, which is generous for busy machines."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def pid_of(pool: WorkerPool, name: str) -> int:
    """Return the process id of `name`; wait until the pool knows it."""
    deadline = time.monotonic() + 60.0
    while name not in pool.pids:
        assert time.monotonic() < deadline, f"the pool has no process {name}"
        pool._poll(0.1)
    return pool.pids[name]


def are_asleep(pool: WorkerPool) -> bool:
    """Whether all workers are idle, without a byte in the pipe that would cause a spurious wake-up."""
    return not num_unread(pool._board) and pool._crew.are_idle()


def open_files() -> dict[str, str]:
    """Return the open files of this process, by descriptor."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the folder itself
            found[link.name] = str(link.readlink())
    return found


def is_of_multiprocessing(pid: int) -> bool:
    """Whether `pid` is a fork server or resource tracker, which tests of DataLoaders leave running."""
    try:
        return b"from multiprocessing" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def children() -> set[int]:
    """Process ids of all living descendants of this process, except those that outlive a test on purpose."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        pids: set[int] = set()
        with suppress(OSError):  # the process has ended
            for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                with suppress(OSError):  # the thread has ended
                    pids |= {int(pid) for pid in (task / "children").read_text().split()}
        pids -= found | {template_pid()}
        pids = {pid for pid in pids if is_alive(pid) and not is_of_multiprocessing(pid)}
        todo += pids
        found |= pids
    return found


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """Check that the block leaves no descriptor or process behind."""
    gc.collect()  # reference cycles of earlier tests may hold descriptors
    prepare_template()
    files, before = open_files(), children()
    yield
    assert wait_until(lambda: children() <= before)
    wait_until(lambda: open_files().items() <= files.items(), 10.0)  # another thread may be about to close one
    assert open_files().items() <= files.items()  # threads of earlier tests may have closed some


def die(how: str) -> None:
    """Make this process fail in one of the ways in which user code does."""
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(3600)
        case "sys.exit":
            sys.exit("enough")
        case "raise":
            raise ValueError("no good")
