"""What a node of a Ray cluster does: it checks that it sees the shared folder, then does one job."""

import pickle
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import mpload
from mpload.errors import ArgumentError, StorageError

__all__ = ["check_version", "do_job", "probe_in"]


@contextmanager
def probe_in(folder: Path) -> Iterator[Path]:
    """Yield a new file in a folder. A node that does not see it does not share the folder with this machine.

    Raises:
        StorageError: the file cannot be written.
    """
    probe = folder / f".probe.{token_hex(8)}.tmp"
    try:
        probe.touch(exist_ok=False)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}. Choose a writable folder") from error
    try:
        yield probe
    finally:
        probe.unlink(missing_ok=True)


def do_job(pickled_work: bytes, job: Any, probe: Path, version: str) -> Any:
    """Return what a pickled function returns for a job.

    Args:
        pickled_work: the function.
        job: its argument.
        probe: the file of `probe_in`.
        version: the version of mpload that pickled the function.

    Raises:
        ArgumentError: this node has another version of mpload.
        StorageError: this node does not see the probe.
        Exception: what the function raises.
    """
    check_version(version)
    if not probe.exists():
        raise StorageError(
            f"{probe.parent}: node {platform.node()} does not see a file that this machine wrote there. All nodes "
            "must share the folder, at the same path: name one on a network file system"
        )
    return pickle.loads(pickled_work)(job)  # noqa: S301  by the program that started this task


def check_version(version: str) -> None:
    """Check that this node has the version of mpload that the program has.

    Raises:
        ArgumentError: it has another one.
    """
    if mpload.__version__ != version:
        raise ArgumentError(
            f"node {platform.node()} has mpload {mpload.__version__}, but this machine has {version}. Install one "
            "version on all nodes"
        )
