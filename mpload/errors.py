"""Every error that mpload raises on purpose.

```
MploadError
├── ArgumentError      (ValueError)       a value the caller passed breaks a rule
├── IndexFormatError   (ValueError)       a line or header of an index text breaks the format
├── IndexChangedError  (RuntimeError)     the index text is not the one that was opened
├── SidecarError       (RuntimeError)     a sidecar cannot be read or does not fit its text
├── StateError         (ValueError)       a checkpoint belongs to another index or plan
├── StorageError       (OSError)          bytes could not be read
│   └── OutsideRootError                  a path leaves the index's root
├── DecodeError        (ValueError)       bytes are no image that the decoder takes
├── SampleError        (RuntimeError)     one sample failed: says which, where it stands, and why
├── TooManyBadSamples  (RuntimeError)     more samples failed than the error policy allows
├── WorkerError        (RuntimeError)     worker processes cannot start, or die too often
└── WorkerTraceback    (RuntimeError)     where code failed in a worker: the cause of what is raised here
```

Each can be caught as `MploadError` and as the builtin beside it, and can be built from its message alone: a DataLoader
rebuilds an exception of a worker in the parent that way.
"""

__all__ = [
    "ArgumentError",
    "DecodeError",
    "IndexChangedError",
    "IndexFormatError",
    "MploadError",
    "MploadWarning",
    "OutsideRootError",
    "SampleError",
    "SidecarError",
    "StateError",
    "StorageError",
    "TooManyBadSamples",
    "WorkerError",
    "WorkerTraceback",
]


class MploadError(Exception):
    """Base of all errors of mpload."""


class MploadWarning(UserWarning):
    """Something that the user should know and that stops nothing."""


class ArgumentError(MploadError, ValueError):
    """A value that the caller passed breaks a rule."""


class IndexFormatError(MploadError, ValueError):
    """A line or the header of an index text breaks the format."""


class IndexChangedError(MploadError, RuntimeError):
    """The index text is not the one that was opened."""


class SidecarError(MploadError, RuntimeError):
    """A sidecar cannot be read, or does not fit its text."""


class StateError(MploadError, ValueError):
    """A checkpoint cannot be restored here."""


class StorageError(MploadError, OSError):
    """Bytes could not be read."""


class OutsideRootError(StorageError):
    """A path in an index leads out of the index's root."""


class DecodeError(MploadError, ValueError):
    """Bytes are no image that the decoder takes."""


class SampleError(MploadError, RuntimeError):
    """One sample failed; the message says which, where it stands and why, `__cause__` holds the original."""


class TooManyBadSamples(MploadError, RuntimeError):  # noqa: N818  reads as the sentence it is
    """More samples failed than the error policy allows."""


class WorkerError(MploadError, RuntimeError):
    """Worker processes cannot start, or die too often; the message ends with the latest deaths."""

    history: tuple[str, ...] = ()
    """Every death that is remembered, oldest first: which process, why, and over which samples."""


class WorkerTraceback(MploadError, RuntimeError):  # noqa: N818  it is the trace of an error
    """The traceback of an error in a worker, as text: the last `__cause__` of what is raised here in its stead."""


FAILURES = (Exception, SystemExit, GeneratorExit)
"""What code of the user's may raise because it failed. KeyboardInterrupt is the user at the keyboard."""


def cause_of(error: BaseException) -> str:
    """Return why `error` was raised, with its type unless it is ours, whose messages speak for themselves."""
    try:
        text = str(error)
    except FAILURES as failure:  # an error of the user's, whose text is the user's code
        return f"{type(error).__name__}, whose __str__ raised {type(failure).__name__}"
    return text if isinstance(error, MploadError) else f"{type(error).__name__}: {text}"
