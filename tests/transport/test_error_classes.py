"""Errors of mpload that are also of the class of the user's error, whatever that class needs to be made."""

import copy
import errno
import pickle
from typing import Any, Self

import pytest

from mpload.errors import SampleError, WorkerError
from mpload.transport.error_classes import again, error_like, error_of
from mpload.transport.messages import Failure, details_of


class CodedError(Exception):
    """Its `__new__` wants an argument."""

    def __new__(cls, code: int) -> Self:
        """Make an error with a code."""
        made = super().__new__(cls)
        made.code = code
        return made

    code: int


class CodedOSError(OSError):
    """Its `__new__` wants an argument, and it has other memory than most errors."""

    def __new__(cls, code: int) -> Self:
        """Make an error."""
        return super().__new__(cls, code, "no such code")


class MarkedError(ValueError):
    """Its `__new__` sets an attribute."""

    def __new__(cls, *_: object) -> Self:
        """Make an error with a mark."""
        made = super().__new__(cls)
        made.mark = {1, 2}
        return made

    mark: set[int]


class StubbornError(Exception):
    """Its `__new__` always makes the same error."""

    def __new__(cls, *_: object) -> "StubbornError":  # noqa: PYI034  that is what it tests
        """Return an error of this class."""
        return Exception.__new__(StubbornError)


class SeveralError(ExceptionGroup):
    """A group of the user, whose `__new__` takes other arguments."""

    def __new__(cls, *errors: Exception) -> Self:
        """Make a group."""
        return super().__new__(cls, "several", errors)


class ClosedError(Exception):
    """No class can be derived from it."""

    def __init_subclass__(cls) -> None:
        raise LookupError("it is final")


ERRORS: list[Exception] = [
    ValueError("v"),
    MemoryError("cannot allocate 3 GiB"),
    KeyError("k"),
    FileNotFoundError(errno.ENOENT, "none", "a.jpg"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"),
    CodedError(3),
    CodedOSError(4),
    MarkedError("m"),
    StubbornError("s"),
    ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    SeveralError(ValueError("a")),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_from_worker", [False, True])
def test_an_error_is_also_of_its_own_class(error: Exception, *, is_from_worker: bool) -> None:
    made: Any
    if is_from_worker:
        made = error_of(SampleError, "sample 3", Failure(sample=3, cause="c", details=details_of(error)))
    else:
        made = error_like(SampleError, "sample 3", error)
    assert isinstance(made, type(error))
    assert isinstance(made, SampleError)
    assert str(made) == "sample 3"
    assert getattr(made, "code", None) == getattr(error, "code", None)
    assert getattr(made, "mark", None) == getattr(error, "mark", None)
    for each in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert (type(each), str(each)) == (SampleError, "sample 3")


@pytest.mark.parametrize("error", [None, *ERRORS], ids=lambda error: type(error).__name__)
def test_an_error_that_is_raised_again_keeps_no_frames(error: Exception | None) -> None:
    failure = Failure(sample=3, cause="c", details={} if error is None else details_of(error))
    first: Any = error_of(WorkerError, "worker 3", failure)
    first.history = ("worker 3",)
    with pytest.raises(WorkerError) as raised:
        raise first from failure.origin
    second: Any = again(raised.value)
    assert first.__traceback__ is not None
    assert second.__traceback__ is None
    assert (type(second), str(second), vars(second)) == (type(first), str(first), vars(first))
    assert second.__cause__ is first.__cause__
    assert getattr(second, "errno", None) == getattr(first, "errno", None)
    second.__cause__ = first
    assert again(second).__cause__ is None


def test_a_group_is_divided_as_the_users_own() -> None:
    caught: list[Any] = []
    try:
        raise error_like(SampleError, "sample 3", ERRORS[-2])
    except* ValueError as part:
        caught += part.exceptions
    except* KeyError as part:
        caught += part.exceptions
    assert [str(each) for each in caught] == ["a", "'b'"]
    there: Any = error_of(SampleError, "sample 3", Failure(sample=3, cause="c", details=details_of(ERRORS[-1])))
    assert [type(each) for each in there.exceptions] == [SampleError]  # they have stayed in the worker


@pytest.mark.parametrize("error", [ClosedError(1), StopIteration(1), BaseExceptionGroup("b", [KeyboardInterrupt()])])
def test_an_error_that_can_have_no_such_class_is_a_sample_error(error: BaseException) -> None:
    assert type(error_like(SampleError, "sample 3", error)) is SampleError
    failure = Failure(sample=3, cause="c", details=details_of(error))
    assert type(error_of(SampleError, "sample 3", failure)) is SampleError
