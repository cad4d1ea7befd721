"""Errors of mpload that are also of the class of the user's error, so that the user's own `except` catches them."""

from contextlib import suppress
from typing import Any, TypeVar, cast

from mpload.errors import MploadError, WorkerError
from mpload.transport.messages import Answer, Failure

__all__ = ["cannot_open", "error_like", "error_of"]

_Ours = TypeVar("_Ours", bound=MploadError)
_FIELDS = ("errno", "strerror", "filename")  # of an OSError


def error_like(ours: type[_Ours], message: str, error: BaseException) -> _Ours:
    """Return an error of the class `ours` which is also of the class of `error`, and has its attributes."""
    made: Any = _of_class(ours, message, type(error))
    vars(made).update(vars(error))
    if isinstance(error, OSError) and isinstance(made, OSError):
        for name in _FIELDS:
            setattr(made, name, getattr(error, name))
    return cast("_Ours", made)


def error_of(ours: type[_Ours], message: str, failure: Failure) -> _Ours:
    """Return an error of the class `ours` which is also of that of the error in the worker, if it is known here.

    It has the attributes of that error that are numbers and strings. If its class can be made from `args` that are so
    too, it has those that the class makes of them as well.
    """
    if failure.kind is None:
        return ours(message)
    made: Any = None
    if failure.arguments is not None:
        with suppress(Exception):  # some constructors take other arguments than `args`
            made = error_like(ours, message, failure.kind(*failure.arguments))
    if made is None:
        made = _of_class(ours, message, failure.kind)
    vars(made).update(failure.attributes)
    return cast("_Ours", made)


def cannot_open(answer: Answer) -> WorkerError:
    """Return the error for an answer with serial number 0: `Work.open` failed."""
    failure = answer.failures[0]
    text = failure.details.get("traceback", "").rstrip()
    return error_of(
        WorkerError, f"worker {answer.worker} cannot prepare for its work: {failure.cause}\n{text}", failure
    )


def _of_class(ours: type[_Ours], message: str, kind: type[BaseException]) -> _Ours:
    # An iterator that raises StopIteration seems to be at its end. Exceptions that are no `Exception` end the process.
    if not issubclass(kind, Exception) or issubclass(kind, MploadError | StopIteration | StopAsyncIteration):
        return ours(message)

    def reduced(error: BaseException) -> tuple[type[_Ours], tuple[str]]:
        return ours, (str(error),)

    try:
        both = type(ours.__name__, (ours, kind), {"__str__": _text, "__reduce__": reduced})
        made: _Ours = kind.__new__(both)  # without `__init__`, which may take other arguments
    except TypeError:  # the class is final, or made from other memory
        return ours(message)
    made.args = (message,)
    return made


def _text(error: BaseException) -> str:
    return str(error.args[0])
