"""Ctrl-C, or a handler that raises, leaves no process of a pool behind, whenever it arrives."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import psutil
import pytest

from mpload import MPLoader
from mpload.transport import launch
from mpload.transport.board import ParentBoard
from mpload.transport.interrupts import interrupts_held
from tests.support.children import check_in_a_child
from tests.support.map_styles import Tuples

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture
def children() -> Any:
    before = {process.pid for process in psutil.Process().children()}
    return lambda: [each.name() for each in psutil.Process().children() if each.pid not in before]


@pytest.mark.processes
@pytest.mark.parametrize(
    "interrupt",
    [
        pytest.param(lambda: signal.raise_signal(signal.SIGINT), id="this thread"),
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGINT), id="any thread"),
    ],
)
def test_an_interrupt_waits_until_the_end_of_the_block(interrupt: Callable[[], None]) -> None:
    def waits() -> bool:
        done: list[bool] = []
        blocked: list[int] = []  # as it must be in a child that is started meanwhile

        def hold() -> None:
            with interrupts_held():
                blocked.extend(signal.pthread_sigmask(signal.SIG_BLOCK, []))
                interrupt()
                time.sleep(0.2)
                done.append(True)

        other_thread = threading.Thread(target=time.sleep, args=(1,))
        other_thread.start()
        with pytest.raises(KeyboardInterrupt):
            hold()
        other_thread.join()
        with interrupts_held():
            pass
        is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return (
            bool(done)
            and signal.SIGINT in blocked
            and not is_blocked
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )

    check_in_a_child(waits)


@pytest.mark.processes
def test_blocks_may_be_nested_and_entered_in_other_threads() -> None:
    def waits() -> bool:
        with pytest.raises(KeyboardInterrupt), interrupts_held(), interrupts_held():
            signal.raise_signal(signal.SIGINT)
        entered: list[bool] = []

        def run() -> None:
            with interrupts_held():
                entered.append(True)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return entered == [True]

    check_in_a_child(waits)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("step", ["_launch", "_await_ready"])
def test_an_interrupt_at_the_start_leaves_no_process(
    method: str, step: str, monkeypatch: pytest.MonkeyPatch, children: Any
) -> None:
    real = getattr(launch.ZygoteProcess, step)

    def interrupted(self: Any, *arguments: Any) -> Never:
        real(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch.ZygoteProcess, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        MPLoader(Tuples(), num_workers=1, batch_size=4, multiprocessing_context=method)
    assert children() == []


@pytest.mark.processes
def test_a_handler_that_raises_while_a_loader_is_closed_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, children: Any
) -> None:
    def exit_at_once(_: Any) -> Never:
        raise SystemExit

    loader = MPLoader(Tuples(), num_workers=2, batch_size=4, multiprocessing_context="fork")
    next(iter(loader))
    monkeypatch.setattr(ParentBoard, "cancel", exit_at_once)
    with pytest.raises(SystemExit):
        loader.close()
    assert children() == []
    loader.close()


@pytest.mark.processes
def test_workers_start_without_standard_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    with MPLoader(Tuples(), num_workers=1, batch_size=4, multiprocessing_context="fork") as loader:
        assert len(list(loader)) == 6
