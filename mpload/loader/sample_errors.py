"""Errors of samples: what they mean for an iteration, and how the user's own `except` catches them too."""

from mpload.errors import OutageError, SampleError
from mpload.transport.error_classes import error_like, error_of
from mpload.transport.messages import Failure

__all__ = ["error_of_failure", "is_outage", "sample_error"]


def is_outage(error: SampleError) -> bool:
    """Return whether an outage of a server is to blame. Then the batch is not lost: it is made again."""
    return isinstance(error.__cause__, OutageError)


def sample_error(message: str, error: BaseException) -> SampleError:
    """Return a `SampleError` which is also of the class of `error`, and has its attributes."""
    return error_like(SampleError, message, error)


def error_of_failure(message: str, failure: Failure) -> SampleError:
    """Return a `SampleError` which is also of the class of the error in the worker, if this process knows that class.

    It has the attributes of that error if its class can be made from `args` that are numbers and strings.
    """
    return error_of(SampleError, message, failure)
