"""Functions that run in a thread beside a test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["in_background"]


@contextmanager
def in_background(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread within this context. It gets an event that is set when it has to end."""
    end = threading.Event()
    thread = threading.Thread(target=run, args=(end,))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
