"""Closing, releasing or dropping an MPLoader, or ending its process, leaves nothing behind."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mpload import (
    MPLoader,
)
from mpload.errors import ArgumentError, WorkerError
from mpload.memory.usage import anonymous_bytes
from tests.support.batches import ids, numbers
from tests.support.transport_works import is_alive, leaves_nothing, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Check that a test leaves no processes and no descriptors behind."""
    gc.collect()
    with leaves_nothing():
        yield
        gc.collect()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("nothing_left")
def test_closing_collecting_and_releasing_leave_nothing(folder: Path) -> None:
    for _ in range(2):
        loader = MPLoader(numbers(folder, 60), num_workers=2)
        next(iter(loader))
        loader.close()
        loader.close()
        with pytest.raises(ArgumentError, match="the loader is closed"):
            iter(loader)
    forgotten = MPLoader(numbers(folder, 60), num_workers=1)
    batch = next(iter(forgotten))
    del forgotten
    gc.collect()
    assert ids([batch])
    with MPLoader(numbers(folder, 60), num_workers=1) as loader:
        first = ids(loader)
        loader.release()
        assert not loader.pids
        assert ids(loader) != first
    del loader, batch


@pytest.mark.processes
@pytest.mark.usefixtures("nothing_left")
def test_using_a_loader_in_a_forked_child_fails_without_affecting_the_parent(folder: Path) -> None:
    with MPLoader(numbers(folder, 60), num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        pid = os.fork()
        if not pid:
            try:
                next(iterator)
            except WorkerError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(ids(iterator)) == len(loader) - 1


PROGRAM = """
import signal, sys
from tests.support.decoders import add_noise, broken, changing, slow_number
from tests.support.batches import numbers
from mpload import MPLoader
from pathlib import Path
loader = MPLoader(numbers(Path(sys.argv[1]), 60), num_workers=3)
iterator = iter(loader)
next(iterator)
try:
    print("ready", flush=True)
    for batch in iterator: signal.pause()
except KeyboardInterrupt:
    print('interrupted', flush=True)
    sys.exit(3)
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_all_processes_end_with_the_parent(folder: Path, how: signal.Signals) -> None:
    numbers(folder, 60)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(pids) >= 2  # the zygote, and workers that have started so far
        process.send_signal(how)
        out, _ = process.communicate(timeout=60)
        assert ("interrupted" in out) == (how is signal.SIGINT)
    assert wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_dozens_of_loaders_leak_no_descriptors_and_no_memory(folder: Path) -> None:
    def cycle() -> None:
        with MPLoader(numbers(folder, 8), num_workers=1) as loader:
            assert len(ids(loader)) == 2

    for _ in range(5):
        cycle()
    gc.collect()
    before = anonymous_bytes(os.getpid())
    for _ in range(20):
        cycle()
    gc.collect()
    assert anonymous_bytes(os.getpid()) - before < 4 * 2**20
