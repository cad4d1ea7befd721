"""The processes of a tree: new and dead ones are noticed, and reading them takes bounded CPU time."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from mpload.memory.process_tree import ProcessTree
from mpload.memory.usage import ProcessMemory, memory_of

FAMILY = """
import os, signal, sys
children = []
for line in sys.stdin:
    if line == "fork\\n":
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
    else:
        pid = children.pop()
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    print(pid, flush=True)
"""


@contextlib.contextmanager
def family(num_children: int) -> Iterator[Callable[[str], int]]:
    """Start a process with children. Yields a function: "fork" and "kill" return a child's pid, "" the parent's."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def order(command: str) -> int:
            if not command:
                return process.pid
            stdin.write(f"{command}\n")
            stdin.flush()
            return int(stdout.readline())

        for _ in range(num_children):
            order("fork")
        try:
            yield order
        finally:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()


@pytest.mark.processes
def test_new_and_dead_processes_are_noticed() -> None:
    with family(3) as order:
        tree = ProcessTree(order(""))

        def pids() -> set[int]:
            return {process.pid for process in tree.read(max_seconds=10.0)}

        before = pids()
        assert len(before) == 4
        assert pids() == before
        child = order("fork")
        assert pids() == before | {child}
        assert order("kill") == child
        assert pids() == before
    assert tree.read(max_seconds=10.0) == ()


@pytest.mark.processes
def test_a_process_that_is_skipped_keeps_its_figures_and_is_read_soon() -> None:
    with family(20) as order:
        tree = ProcessTree(order(""))
        first = tree.read(max_seconds=1e-9)
        assert len(first) == 21  # new processes are always read
        assert all(one is other for one, other in zip(first, tree.read(max_seconds=1e-9), strict=True))
        latest = first
        for _ in range(200):
            latest = tree.read(max_seconds=1e-3)
        assert not {id(process) for process in first} & {id(process) for process in latest}


@pytest.mark.processes
def test_reading_large_processes_takes_no_more_cpu_time_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory_of_large(process: psutil.Process) -> ProcessMemory:
        memory = memory_of(process)
        until = time.thread_time() + 5e-3
        while time.thread_time() < until:
            pass
        return memory

    monkeypatch.setattr("mpload.memory.process_tree.memory_of", memory_of_large)
    with family(10) as order:
        tree = ProcessTree(order(""))
        tree.read(max_seconds=1.0)
        started = time.thread_time()
        for _ in range(200):
            tree.read(max_seconds=1e-3)
        assert 0.5 * 200e-3 < time.thread_time() - started < 1.5 * 200e-3
