"""Errors of samples: what they mean for an iteration, and how the user's own `except` catches them too."""

from contextlib import suppress

from mpload.errors import MploadError, OutageError, SampleError
from mpload.transport.messages import Failure

__all__ = ["error_of_failure", "is_outage", "sample_error"]

_FIELDS = ("errno", "strerror", "filename")  # of an OSError


def is_outage(error: SampleError) -> bool:
    """Return whether an outage of a server is to blame. Then the batch is not lost: it is made again."""
    return isinstance(error.__cause__, OutageError)


def sample_error(message: str, error: BaseException) -> SampleError:
    """Return a `SampleError` which is also of the class of `error`, and has its attributes."""
    made = _of_class(message, type(error))
    vars(made).update(vars(error))
    if isinstance(error, OSError) and isinstance(made, OSError):
        for name in _FIELDS:
            setattr(made, name, getattr(error, name))
    return made


def error_of_failure(message: str, failure: Failure) -> SampleError:
    """Return a `SampleError` which is also of the class of the error in the worker, if this process knows that class.

    It has the attributes of that error if its class can be made from `args` that are numbers and strings.
    """
    if failure.kind is None:
        return SampleError(message)
    if failure.arguments is not None:
        with suppress(Exception):  # some constructors take other arguments than `args`
            return sample_error(message, failure.kind(*failure.arguments))
    return _of_class(message, failure.kind)


def _of_class(message: str, kind: type[BaseException]) -> SampleError:
    # An iterator that raises StopIteration seems to be at its end. Exceptions that are no `Exception` end the process.
    if not issubclass(kind, Exception) or issubclass(kind, MploadError | StopIteration | StopAsyncIteration):
        return SampleError(message)
    try:
        both = type(SampleError.__name__, (SampleError, kind), {"__str__": _text, "__reduce__": _reduced})
        made: SampleError = kind.__new__(both)  # without `__init__`, which may take other arguments
    except TypeError:  # the class is final, or made from other memory
        return SampleError(message)
    made.args = (message,)
    return made


def _text(error: BaseException) -> str:
    return str(error.args[0])


def _reduced(error: BaseException) -> tuple[type[SampleError], tuple[str]]:
    return SampleError, (str(error),)
