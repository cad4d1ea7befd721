"""Checks in forked children, which have one thread, and whose signals hit no other test."""

import os
import signal
import sys
from collections.abc import Callable

__all__ = ["check_in_a_child", "in_child"]


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process, and return its exit code, or the negative number of the signal that killed it."""
    if (pid := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  the forked process must not continue here
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_in_a_child(check: Callable[[], bool]) -> None:
    """Run a check in a forked child, within 20 s."""

    def work() -> None:
        signal.alarm(20)
        assert check()

    assert in_child(work) == 0
