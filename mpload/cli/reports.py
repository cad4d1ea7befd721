"""Reports for scripts: JSON on stdout, with all other output on stderr."""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["AsJson", "print_json", "print_json_line", "prints_on_stderr"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and everything else on stderr.")]
"""The `--json` option, which every reporting command has."""

_STDOUT, _STDERR = 1, 2


def print_json(report: Mapping[str, Any]) -> None:
    """Print a report as one JSON document.

    Args:
        report: May hold dataclasses and paths. Infinite numbers and NaN become null.
    """
    print(json.dumps(_plain(report), indent=2))


def print_json_line(report: Mapping[str, Any]) -> None:
    """Print one of a series of reports as a line of JSON and flush stdout. Values are converted as in `print_json`."""
    print(json.dumps(_plain(report)), flush=True)


@contextmanager
def prints_on_stderr(*, is_wanted: bool = True) -> Iterator[None]:
    """Redirect stdout to stderr inside the block, for the user's code, for workers and for commands started here.

    Args:
        is_wanted: False leaves stdout as it is.
    """
    if not is_wanted:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, _STDOUT)
        os.close(saved)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
