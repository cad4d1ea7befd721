"""Checks that output files can be written. Commands call them before they start to measure."""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from mpload.errors import ArgumentError, MploadError

__all__ = ["check_output", "check_picture", "check_plot"]


def check_output(path: Path | None) -> None:
    """Check that a file can be written to `path`. None means that no file is wanted.

    Raises:
        ArgumentError: `path` is a folder, its parent folder is missing, or it is not writable.
    """
    if path is None:
        return
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder. Name a file in it")
    if not path.parent.is_dir():
        raise ArgumentError(f"{path}: the folder {path.parent} does not exist. Create it, or name another folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentError(f"{path} is not writable. Name another file")


def check_picture(path: Path | None, *, suffixes: Sequence[str] = (".png",)) -> None:
    """Check that a picture can be written to `path`. None means that no picture is wanted.

    Raises:
        ArgumentError: `path` does not end in one of the suffixes, or cannot be written.
    """
    if path is not None and path.suffix.lower() not in suffixes:
        names = " or ".join(path.with_suffix(suffix).name for suffix in suffixes)
        raise ArgumentError(f"{path}: pictures are written as {' or '.join(suffixes)}. Name it {names}")
    check_output(path)


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
