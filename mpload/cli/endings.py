"""Ends a command on SIGTERM or SIGHUP as Ctrl-C does, so that it deletes its temporary files and closes its loaders."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ends_cleanly"]

_SIGNALLED = 128
"""Exit codes above this one say which signal has ended a command, as in a shell."""


@contextmanager
def ends_cleanly() -> Iterator[None]:
    """Inside the block, let the signals raise `SystemExit`. Processes that are forked there just end, as ever.

    A signal that is ignored, as SIGHUP under `nohup`, stays so.
    """
    owner = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for each in handled:  # no other signal interrupts the cleaning up
            signal.signal(each, signal.SIG_IGN)
        sys.exit(_SIGNALLED + number)

    signals = (getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # Windows has one
    handled = [number for number in signals if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
