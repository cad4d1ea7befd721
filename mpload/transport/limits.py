"""Readable errors for resources that the system refuses: which limit was hit, and what to do."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from mpload.errors import RefusedError

__all__ = ["os_errors_as_refused", "refusal", "shared_memory"]

_LIMITS = {
    errno.EMFILE: (resource.RLIMIT_NOFILE, "RLIMIT_NOFILE", "open files", "Close files, or raise it: ulimit -n"),
    errno.EFBIG: (resource.RLIMIT_FSIZE, "RLIMIT_FSIZE", "bytes in a file", "Raise it: ulimit -f"),
    errno.EAGAIN: (
        resource.RLIMIT_NPROC, "RLIMIT_NPROC", "processes of this user",
        "Use fewer workers, or raise it (ulimit -u) or the container's limit (pids.max)",
    ),
    errno.ENOMEM: (
        resource.RLIMIT_AS, "RLIMIT_AS", "bytes of address space",
        "Lower batch_size or num_workers, or close other loaders",
    ),
}  # fmt: skip


@contextmanager
def os_errors_as_refused(what: str) -> Iterator[None]:
    """Turn an OSError into a `RefusedError` that says `what` failed, which limit was hit, and what to do.

    One without a number is not the system's. A signal handler of the user may have raised a `TimeoutError`.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise RefusedError(f"{what}: {refusal(error.errno)}") from error


def refusal(error_number: int) -> str:
    """Return the text of an error number, with the resource limit that it stands for and the next step."""
    text = os.strerror(error_number)
    if error_number in {errno.EPERM, errno.ENOSYS}:
        return (
            f"{text}. Workers need memfd_create and pidfd_open, which the container's seccomp profile or an old kernel "
            "may forbid. Allow them, or use num_workers=0"
        )
    if error_number not in _LIMITS:
        return text
    which, name, unit, remedy = _LIMITS[error_number]
    limit = resource.getrlimit(which)[0]
    allowed = "any number of" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    return f"{text}. {name} allows {allowed} {unit}. {remedy}"


def shared_memory(name: str, num_bytes: int) -> int:
    """Return the descriptor of new shared memory of `num_bytes` zeros. The kernel frees it with its last user.

    Raises:
        RefusedError: the system refuses to allocate it.
    """
    with os_errors_as_refused(f"cannot allocate {num_bytes:,} bytes of shared memory for {name}"):
        fd = os.memfd_create(name)
        try:
            os.ftruncate(fd, num_bytes)
        except OSError:
            os.close(fd)
            raise
    return fd
