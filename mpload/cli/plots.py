"""Whether a plot can be drawn, asked before an hour of measuring."""

import importlib
from pathlib import Path

from mpload.errors import ArgumentError, MploadError

__all__ = ["check_plot"]


def check_plot(path: Path | None) -> None:
    """See that a PNG can be drawn to `path`; None is no plot.

    Raises:
        ArgumentError: It does not end in `.png`, or its folder is missing.
        MploadError: matplotlib is not installed.
    """
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise ArgumentError(f"{path}: a plot is a PNG. Name it {path.with_suffix('.png').name}")
    if not path.parent.is_dir():
        raise ArgumentError(f"{path}: the folder {path.parent} does not exist. Make it, or name another")
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise MploadError("a plot needs matplotlib: pip install 'mpload[plot]'") from error
