"""Every error that mpload raises on purpose.

```
MploadError
├── ArgumentError      (ValueError)       an argument breaks a rule
├── IndexNotFoundError (FileNotFoundError) there is no index at a path
├── IndexFormatError   (ValueError)       a line or the header of an index text breaks the format
├── IndexChangedError  (RuntimeError)     an index text was changed while it was in use
├── SidecarError       (RuntimeError)     a sidecar cannot be read or written, or does not match its index text
├── StateError         (ValueError)       a checkpoint cannot be restored, or cannot be taken
├── StorageError       (OSError)          bytes could not be read or written
│   ├── OutageError                       a server does not answer
│   └── OutsideRootError                  a path leads outside the index's root
├── DecodeError        (ValueError)       a decoder cannot decode the bytes
├── SampleError        (RuntimeError)     one sample could not be made
├── TooManyBadSamples  (RuntimeError)     more samples failed than the error policy allows
├── ServerError        (RuntimeError)     servers of samples refuse a loader, make other samples, or do not answer
├── WorkerError        (RuntimeError)     worker processes cannot start, or die too often
│   └── RefusedError                      the system refused a process, a file descriptor or memory
└── WorkerTraceback    (RuntimeError)     the worker's traceback, attached to an error as its `__cause__`
```

Each error can be caught as `MploadError` and as the builtin beside it. Each can be constructed from its message alone,
because that is how a DataLoader recreates a worker's exception in the parent. Warnings are of class `MploadWarning`.
"""

import inspect
import warnings
from pathlib import Path
from types import FrameType

__all__ = [
    "ArgumentError",
    "DecodeError",
    "IndexChangedError",
    "IndexFormatError",
    "IndexNotFoundError",
    "MploadError",
    "MploadWarning",
    "OutageError",
    "OutsideRootError",
    "RefusedError",
    "SampleError",
    "ServerError",
    "SidecarError",
    "StateError",
    "StorageError",
    "TooManyBadSamples",
    "WorkerError",
    "WorkerTraceback",
]


class MploadError(Exception):
    """Base class of all errors that mpload raises on purpose.

    Only its subclasses are raised. Each message says what happened, which value caused it, and what to do next.
    """


class MploadWarning(UserWarning):
    """Something that you should know about, but that does not stop the job.

    It is issued, for example, when files were left out of an index, when the first bad sample is skipped, or when
    memory is short. The message says what to do. To turn these warnings into errors, call
    `warnings.filterwarnings("error", category=MploadWarning)`.
    """


class ArgumentError(MploadError, ValueError):
    """An argument breaks a rule.

    A value is out of range, has the wrong type, or conflicts with another argument. Change the argument that the
    message names. This error is also raised if you use a loader after closing it, or an iterator after starting a
    newer one on the same loader: make a new loader, or use the newest iterator.
    """


class IndexNotFoundError(MploadError, FileNotFoundError):
    """There is no index at the path that was given.

    Check the path: a relative one starts at the working directory. To make an index, run `mpload index FOLDER -o
    train.txt` or call `build_index`.
    """


class IndexFormatError(MploadError, ValueError):
    """A line or the header of an index text breaks the format.

    The message starts with the file name and the line number. Fix that line, or rebuild the index with `mpload index`.
    If a script writes the index, fix the script. `mpload inspect --check` lists every bad line.
    """


class IndexChangedError(MploadError, RuntimeError):
    """An index text was changed or replaced while it was in use.

    Or a shard was: a worker that takes the place of another one would read other samples from it than the others do.
    Reading on could mix two versions of the data. Open the index again, by `open_index` or a new `MPDataset`; in a
    training script, restart the job. Do not modify data while a job reads it: write new data to another path.
    """


class SidecarError(MploadError, RuntimeError):
    """A sidecar cannot be read or written, or does not match its index text.

    The sidecar (`train.txt.mpx` for `train.txt`) holds only data derived from the index text, so it is safe to delete.
    Delete the file that the message names and open the index again, which rebuilds it. If it cannot be written, free
    some disk space, or make the index's folder or your cache folder writable.
    """


class StateError(MploadError, ValueError):
    """A checkpoint cannot be restored by this run, or cannot be taken at this moment.

    `load_state_dict` raises it when the checkpoint is damaged, or was made with another index, another `shuffle` or an
    incompatible version of mpload. Restoring it would repeat some samples and skip others. Use the index and `shuffle`
    that the checkpoint was made with, or restart the epoch without it.

    `state_dict` raises it when the position is unknown because a DataLoader's workers have read ahead of the batches
    that you received. Pass `num_batches`, or use an `MPLoader`. Under Accelerate, do what the message says.
    """


class StorageError(MploadError, OSError):
    """Data could not be read from, or written to, a file, a shard, a database or a remote store.

    The message names the file. Check that it exists below the index's `#root`, that you have permission to read it,
    and that the disk or network works. `mpload inspect --check` lists every file that cannot be read. When this error
    occurs while a batch is being made, it is the `__cause__` of a `SampleError`.
    """


class OutageError(StorageError):
    """A server does not answer, for longer than `RemoteStorage.retry_seconds`.

    The message names the URL, what happened, and what was tried. The samples are not to blame, so they are neither
    skipped nor substituted: the epoch ends, for every value of `on_error`. Check the server, the network and the URL.
    If outages last longer than that, pass `storage=RemoteStorage(retry_seconds=...)` to the `MPDataset`.

    It is also raised if a sample needs OpenCV, and OpenCV cannot be imported.
    """


class OutsideRootError(StorageError):
    """A path in an index leads outside the index's root, through `..`, a link or an absolute path.

    Such paths are refused because an index written by someone else could otherwise make your job read any file that
    you can read. If you trust the index, open it by `open_index(path, allow_outside_root=True)`. Otherwise fix the
    path, or set `#root` to a folder that contains all files.
    """


class DecodeError(MploadError, ValueError):
    """A decoder cannot decode the bytes: they are damaged, of an unknown format, or larger than its limits allow.

    Replace the file, remove it from the index, or raise the limit in the decoder's `Limits`. To train without such
    files, pass `on_error="skip"` or `on_error="substitute"` to the `MPDataset`. When this error occurs while a batch
    is being made, it is the `__cause__` of a `SampleError`.
    """


class SampleError(MploadError, RuntimeError):
    """One sample could not be made: it could not be read, decoded or transformed, or it repeatedly killed its worker.

    The message names the sample, the line of the index that lists it, and the cause. `__cause__` holds the original
    error. Fix or remove the sample, fix the transform, or pass `on_error="skip"` or `on_error="substitute"` to the
    `MPDataset`. If you catch the error, the next `next()` returns the batch after the one that failed.
    """


class ServerError(MploadError, RuntimeError):
    """The servers of an `MPLoader` refuse it, make other samples than it wants, or do not answer.

    The message names each server and what it did. A server refuses a loader whose token, index, decoders or version of
    mpload differ from its own: start it with the same dataset. With `fallback="raise"` this error also means that no
    server has answered for `Servers.retry_seconds`: check the servers and the network, or pass `fallback="local"`.
    No sample is to blame, so none is skipped. If you catch the error, the next `next()` makes the same batch again.
    """


class TooManyBadSamples(MploadError, RuntimeError):  # noqa: N818  reads as a sentence
    """More samples failed than the error policy allows.

    Single bad files rarely cause this. More often a disk is not mounted, or the index's `#root` is wrong. The message
    names the report that lists every failed sample and its cause: read that first. Then fix the data or, if you really
    want to train without so many samples, raise `max_error_fraction` in the `ErrorPolicy`.
    """


class WorkerError(MploadError, RuntimeError):
    """Worker processes cannot start, or die too often.

    If workers cannot start, the message contains the reason, often the traceback of a failed import. Check that
    `decode` and `transform` can be pickled and that a new process can import what they need. An error that
    `worker_init_fn` raises is also of its own class, so that your `except` catches it.

    If workers died, the message names the latest deaths. A worker that died of SIGKILL was usually killed for
    lack of memory: lower `num_workers` or the decoder's `Limits.max_pixels`. A worker that died of SIGSEGV crashed in
    native code: `num_workers=0` makes the batches in your own process, where a debugger can see the crash. If a module
    breaks after a fork, pass `options=PoolOptions(starts_fresh=True)`.
    """

    history: tuple[str, ...] = ()
    """One line for each recent death, oldest first: the process, the cause, and the samples it was working on."""


class RefusedError(WorkerError):
    """The system refused to give a process, a file descriptor or memory.

    A limit of the user, the container or the machine is reached. The message names the limit and how to raise it.
    Raise it, or use fewer workers, and try again.
    """


class WorkerTraceback(MploadError, RuntimeError):  # noqa: N818  it is a traceback, not an error
    """The traceback of an error in a worker, as text.

    It is never raised by itself. It is attached as the last `__cause__` of the error raised in the training process,
    so that Python prints both tracebacks. Read it from the bottom up to find the line of your code that failed.
    """


_FOLDER = f"{Path(__file__).parent}/"
_BETWEEN = {"concurrent", "contextlib", "functools", "mpload", "runpy", "threading", "typing"}
"""Packages whose code may lie between a warning and the line of the user's that led to it."""


def warn(text: str) -> None:
    """Issue an `MploadWarning` that shows the innermost line of the call stack that is not mpload's.

    A worker or a thread may have no such line. Its warnings show none.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and _is_between(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, MploadWarning, stacklevel=level)  # noqa: TID251


def _is_between(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]  # also of code that `dataclass` writes
    return package in _BETWEEN or frame.f_code.co_filename.startswith(_FOLDER)  # a module of ours may be `__main__`


FAILURES = (Exception, SystemExit, GeneratorExit)
"""Exceptions that mean that user code failed. KeyboardInterrupt is not one: the person at the keyboard raised it."""


def cause_of(error: BaseException) -> str:
    """Return the message of `error`, preceded by its type unless it is an `MploadError`, whose messages need none."""
    try:
        text = str(error)
    except FAILURES as failure:  # the error's class is user code, and so is its __str__
        return f"{type(error).__name__}, whose __str__ raised {type(failure).__name__}"
    return text if isinstance(error, MploadError) else f"{type(error).__name__}: {text}"
