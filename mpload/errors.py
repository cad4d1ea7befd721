"""Every error that mpload raises on purpose.

```
MploadError
├── ArgumentError      (ValueError)       an argument breaks a rule
├── IndexNotFoundError (FileNotFoundError) there is no index at a path
├── IndexFormatError   (ValueError)       a line or the header of an index text breaks the format
├── IndexChangedError  (RuntimeError)     an index text was changed while it was in use
├── SidecarError       (RuntimeError)     a sidecar cannot be read, cannot be written or does not fit its text
├── StateError         (ValueError)       a checkpoint belongs to another index or order
├── StorageError       (OSError)          bytes could not be read or written
│   └── OutsideRootError                  a path leads out of the index's root
├── DecodeError        (ValueError)       a decoder cannot decode the bytes
├── SampleError        (RuntimeError)     one sample failed: says which, where it is listed, and why
├── TooManyBadSamples  (RuntimeError)     more samples failed than the error policy allows
├── WorkerError        (RuntimeError)     worker processes cannot start, or die too often
│   └── RefusedError                      the system refuses a process, a file descriptor or memory
└── WorkerTraceback    (RuntimeError)     the traceback of an error in a worker, as its `__cause__`
```

Each can be caught as `MploadError` and as the builtin beside it, and can be built from its message alone: a DataLoader
rebuilds an exception of a worker in the parent that way. Warnings are `MploadWarning`.
"""

__all__ = [
    "ArgumentError",
    "DecodeError",
    "IndexChangedError",
    "IndexFormatError",
    "IndexNotFoundError",
    "MploadError",
    "MploadWarning",
    "OutsideRootError",
    "RefusedError",
    "SampleError",
    "SidecarError",
    "StateError",
    "StorageError",
    "TooManyBadSamples",
    "WorkerError",
    "WorkerTraceback",
]


class MploadError(Exception):
    """Base class of all errors that mpload raises on purpose.

    Raised only as one of its subclasses. The message says what happened, with which value, and what to do next.
    """


class MploadWarning(UserWarning):
    """Something that you should know and that does not stop the job.

    Issued, for example, when files were left out of an index, when the first bad sample was skipped, or when memory is
    short. The message says what to do. `warnings.filterwarnings("error", category=MploadWarning)` makes it an error.
    """


class ArgumentError(MploadError, ValueError):
    """An argument breaks a rule.

    Raised when a value is out of range, has the wrong type or does not go with another argument. Change the argument
    that the message names. It is also raised when an iterator is used after its loader was closed or iterated anew.
    """


class IndexNotFoundError(MploadError, FileNotFoundError):
    """There is no index at the path that was given.

    Check the path: a relative one starts at the working directory. To make an index, run `mpload index FOLDER -o
    train.txt` or call `build_index`.
    """


class IndexFormatError(MploadError, ValueError):
    """A line or the header of an index text breaks the format.

    The message begins with the file and the number of the line. Correct that line, or build the index again. `mpload
    inspect --check` lists every such line.
    """


class IndexChangedError(MploadError, RuntimeError):
    """An index text was changed or replaced while it was in use.

    Open the index again, with `open_index` or a new `MPDataset`. Leave an index alone while a job reads it: write
    a new one to another path.
    """


class SidecarError(MploadError, RuntimeError):
    """A sidecar cannot be read, cannot be written or does not fit its index text.

    A sidecar is derived from the text: delete the file that the message names, and it is built again. Where it cannot
    be written, make the folder of the index or your cache folder writable.
    """


class StateError(MploadError, ValueError):
    """A checkpoint cannot be restored here, or a state cannot be taken now.

    Raised by `load_state_dict` when the state is damaged or belongs to another index, another order or another version
    of mpload: use the index and the `shuffle` that it was made with, or start the epoch without the checkpoint. Raised
    by `state_dict` when a DataLoader's workers read ahead: pass `num_batches`, or use an `MPLoader`.
    """


class StorageError(MploadError, OSError):
    """Bytes could not be read from a file, a shard, a database or a remote store, or could not be written.

    The message names the file. Check that it exists, that you may read it, and that the disk or the network works.
    While a loader makes batches, it is the `__cause__` of a `SampleError`.
    """


class OutsideRootError(StorageError):
    """A path in an index leads out of the index's root, by `..`, by a link or as an absolute path.

    If you trust the index, open it with `open_index(path, allow_outside_root=True)`. Otherwise correct the path or
    build the index again with a `root` above all files.
    """


class DecodeError(MploadError, ValueError):
    """A decoder cannot decode the bytes: they are damaged, of an unknown format or larger than its limits allow.

    Replace the file, take it out of the index, or raise the decoder's `Limits`. While a loader makes batches, it is the
    `__cause__` of a `SampleError`.
    """


class SampleError(MploadError, RuntimeError):
    """One sample failed: the message says which, where it is listed and why; `__cause__` holds the original error.

    Correct or remove the sample, or pass `on_error="skip"` or `on_error="substitute"` to the `MPDataset`. If you catch
    it, the next `next()` gives the batch after the one that failed.
    """


class TooManyBadSamples(MploadError, RuntimeError):  # noqa: N818  reads as the sentence it is
    """More samples failed than the error policy allows.

    The message names the report that lists them. Correct the data, or raise `max_error_fraction` of the `ErrorPolicy`.
    """


class WorkerError(MploadError, RuntimeError):
    """Worker processes cannot start, or die too often.

    The message ends with the latest deaths. A worker that was killed by SIGKILL usually met a memory limit: lower
    `num_workers` or the decoder's `Limits.max_pixels`. If a module does not survive forking, pass
    `options=PoolOptions(starts_fresh=True)`.
    """

    history: tuple[str, ...] = ()
    """Every death that is remembered, oldest first: which process, why, and over which samples."""


class RefusedError(WorkerError):
    """The system refuses a process, a file descriptor or memory at present.

    The message names the limit and how to raise it. What failed may be tried again.
    """


class WorkerTraceback(MploadError, RuntimeError):  # noqa: N818  it is the trace of an error
    """The traceback of an error in a worker, as text.

    It is never raised: it is the last `__cause__` of the error that is raised in the training process, so that Python
    prints both tracebacks. Read it to find the line that failed.
    """


FAILURES = (Exception, SystemExit, GeneratorExit)
"""What code of the user's may raise because it failed. KeyboardInterrupt is the user at the keyboard."""


def cause_of(error: BaseException) -> str:
    """Return why `error` was raised, with its type unless it is ours, whose messages speak for themselves."""
    try:
        text = str(error)
    except FAILURES as failure:  # an error of the user's, whose text is the user's code
        return f"{type(error).__name__}, whose __str__ raised {type(failure).__name__}"
    return text if isinstance(error, MploadError) else f"{type(error).__name__}: {text}"
