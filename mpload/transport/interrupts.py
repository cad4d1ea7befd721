"""Holds Ctrl-C back while something must not be left half done."""

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["interrupts_held"]


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Let SIGINT wait until the end of the block. Handlers of other signals are called, and may raise.

    SIGINT is also blocked in this thread. A child inherits that, so Ctrl-C cannot hit a zygote before it ignores SIGINT
    and unblocks it.
    """
    is_main = threading.current_thread() is threading.main_thread()  # only this one may set handlers, and calls them
    handler = signal.getsignal(signal.SIGINT)
    arrived: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        if is_main and callable(handler):  # the system may deliver it in another thread
            signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
        yield
    finally:
        if is_main and callable(handler):
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if arrived:
            signal.raise_signal(signal.SIGINT)
