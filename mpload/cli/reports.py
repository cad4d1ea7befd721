"""What commands report to a script: JSON on stdout, and nothing else there."""

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

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and all else on stderr.")]
"""The option of every command that reports something."""

_STDOUT, _STDERR = 1, 2


def print_json(report: Mapping[str, Any]) -> None:
    """Print a report as one JSON document.

    Args:
        report: may hold dataclasses and paths; a number that is infinite, or none, becomes null.
    """
    print(json.dumps(_plain(report), indent=2))


def print_json_line(report: Mapping[str, Any]) -> None:
    """Print one of many reports as a line of JSON, at once; else as `print_json`."""
    print(json.dumps(_plain(report)), flush=True)


@contextmanager
def prints_on_stderr(*, wanted: bool = True) -> Iterator[None]:
    """Let everything print on stderr meanwhile: the user's code in this process, its workers, and commands it starts.

    Args:
        wanted: False changes nothing.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


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
