"""Checks that output files can be written. Commands call them before they start to measure."""

import importlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from mpload.errors import ArgumentError, MploadError
from mpload.index.publishing import file_at, is_index
from mpload.units import printable

__all__ = ["check_output", "check_picture", "check_plot", "is_stream"]


def check_output(path: Path | None, *, source: Path | None = None) -> None:
    """Check that a file can be written to `path`, and that this replaces no index. None means that no file is wanted.

    Args:
        path: the file.
        source: the file that the command reads.

    Raises:
        ArgumentError: `path` is a folder, a device or a pipe, its parent folder is missing, it is not writable, or it
            is the source or an index.
    """
    if path is None:
        return
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder. Name a file in it")
    file = file_at(path)
    if not file.parent.is_dir():
        raise ArgumentError(f"{path}: the folder {file.parent} does not exist. Create it, or name another folder")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ArgumentError(f"{path} is not writable. Name another file")
    if not os.access(file.parent, os.W_OK):  # the new file replaces the old one
        raise ArgumentError(f"{path}: the folder {file.parent} is not writable. Name a file in another folder")
    _refuse_index(file, source, shown=printable(str(path)))


def _refuse_index(file: Path, source: Path | None, *, shown: str) -> None:
    """Raise `ArgumentError` if a file that is about to be replaced is the source of a command, or an index."""
    if source is not None and file.exists() and source.exists() and file.samefile(source):
        raise ArgumentError(f"{shown}: is the file that the command reads. Name another file for its output")
    if is_index(file):
        raise ArgumentError(f"{shown}: is an index, and is not replaced by a report. Name another file")


def is_stream(path: Path) -> bool:
    """Whether `path` is a pipe or a device such as `/dev/stdout`, which is written to and not replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def check_picture(path: Path | None, *, suffixes: Sequence[str] = (".png",), source: Path | None = None) -> None:
    """Check that a picture can be written to `path`, as in `check_output`. None means that no picture is wanted.

    Raises:
        ArgumentError: `path` does not end in one of the suffixes, or cannot be written.
    """
    if path is not None and path.suffix.lower() not in suffixes:
        names = " or ".join(path.with_suffix(suffix).name for suffix in suffixes)
        raise ArgumentError(f"{path}: pictures are written as {' or '.join(suffixes)}. Name it {names}")
    check_output(path, source=source)


def check_plot(path: Path | None) -> None:
    """Check that a plot can be written to `path` as a PNG. None means that no plot is wanted.

    Raises:
        ArgumentError: `path` does not end in `.png`, or cannot be written.
        MploadError: matplotlib is not installed.
    """
    check_picture(path)
    if path is None:
        return
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise MploadError("a plot needs matplotlib: pip install 'mpload[plot]'") from error
