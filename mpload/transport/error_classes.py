"""Errors of mpload that are also of the class of the user's error, so that the user's own `except` catches them."""

from collections.abc import Sequence
from contextlib import suppress
from types import BuiltinMethodType
from typing import Any, TypeVar, cast

from mpload.errors import MploadError, WorkerError
from mpload.transport.messages import Answer, Failure

__all__ = ["again", "cannot_open", "error_like", "error_of"]

_Ours = TypeVar("_Ours", bound=MploadError)
_Group = tuple[str, Sequence[Exception]]
"""What a group of exceptions is made of: message and exceptions."""
_FIELDS = ("errno", "strerror", "filename")  # of an OSError


def error_like(ours: type[_Ours], message: str, error: BaseException) -> _Ours:
    """Return an error of the class `ours` which is also of the class of `error`, and has its attributes."""
    made = _of_class(ours, message, type(error), _group_of(error))
    _copy_attributes(made, error)
    return made


def error_of(ours: type[_Ours], message: str, failure: Failure) -> _Ours:
    """Return an error of the class `ours` which is also of that of the error in the worker, if it is known here.

    It has the attributes of that error that are numbers and strings. If its class can be made from `args` that are so
    too, it has those that the class makes of them as well. The exceptions of a group stay in the worker: the group here
    holds an error of the class `ours` instead.
    """
    if failure.kind is None:
        return ours(message)
    made: Any = None
    if failure.arguments is not None:
        with suppress(Exception):  # some constructors take other arguments than `args`
            made = error_like(ours, message, failure.kind(*failure.arguments))
    if made is None:
        made = _of_class(ours, message, failure.kind, (message, [ours(message)]))
    vars(made).update(failure.attributes)
    return cast("_Ours", made)


def cannot_open(answer: Answer) -> WorkerError:
    """Return the error for an answer with serial number 0: `Work.open` failed."""
    failure = answer.failures[0]
    text = failure.details.get("traceback", "").rstrip()
    return error_of(
        WorkerError, f"worker {answer.worker} cannot prepare for its work: {failure.cause}\n{text}", failure
    )


def again(error: _Ours) -> _Ours:
    """Return another error like `error`, to be raised later. Its traceback would keep the variables of frames alive."""
    made: Any = _new(type(error), _group_of(error), first=type(error))
    made.args = error.args
    _copy_attributes(made, error)
    if error.__cause__ is not None and error.__cause__.__traceback__ is None:
        made.__cause__ = error.__cause__
    return cast("_Ours", made)


def _group_of(error: BaseException) -> _Group | None:
    return (error.message, error.exceptions) if isinstance(error, ExceptionGroup) else None


def _copy_attributes(made: BaseException, error: BaseException) -> None:
    vars(made).update(vars(error))
    if isinstance(error, OSError) and isinstance(made, OSError):
        for name in _FIELDS:
            setattr(made, name, getattr(error, name))


def _of_class(ours: type[_Ours], message: str, kind: type[BaseException], group: _Group | None = None) -> _Ours:
    # An iterator that raises StopIteration seems to be at its end. Exceptions that are no `Exception` end the process.
    if not issubclass(kind, Exception) or issubclass(kind, MploadError | StopIteration | StopAsyncIteration):
        return ours(message)

    def reduced(error: BaseException) -> tuple[type[_Ours], tuple[str]]:
        return ours, (str(error),)

    made: Any = None
    with suppress(Exception):  # the class is final, or its own code fails
        made = _new(type(ours.__name__, (ours, kind), {"__str__": _text, "__reduce__": reduced}), group, first=kind)
    if made is None:
        return ours(message)
    made.args = (message,)
    return cast("_Ours", made)


def _new(kind: Any, group: _Group | None, *, first: Any) -> Any:
    """Return an object of a class of errors, made without `__init__`, which may take other arguments.

    `__new__` of `first` is tried, which may set attributes, and then `__new__` of each built-in base class. Python
    accepts only the right one. That of a group takes its message and exceptions.
    """
    makers = [first, *(base for base in kind.__mro__ if type(vars(base).get("__new__")) is BuiltinMethodType)]
    arguments: Any = group if issubclass(kind, BaseExceptionGroup) else ()
    for maker in makers:
        with suppress(Exception):
            made = maker.__new__(kind, *arguments)
            if type(made) is kind:
                return made
    return None


def _text(error: BaseException) -> str:
    return str(error.args[0])
