"""Tells what a handler of a signal has raised from failures of samples."""

import signal
import traceback
from functools import partial
from types import CodeType

__all__ = ["raise_if_from_handler"]


def raise_if_from_handler(error: BaseException) -> None:
    """Raise an error again if a handler of a signal has raised it. It says nothing of the sample that it interrupted.

    So a handler for SIGTERM or SIGALRM may raise an exception of any class to leave the training loop.
    """
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {code for handler in handlers if (code := _code_of(handler)) is not None}
    if codes and any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


def _code_of(handler: object) -> CodeType | None:
    """Return the code of a function, a method, a partial or an object that can be called; None of all others."""
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler):  # SIG_DFL, SIG_IGN
        return None
    for found in (handler, getattr(handler, "__func__", None), type(handler).__call__):
        if isinstance(code := getattr(found, "__code__", None), CodeType):
            return code
    return None
