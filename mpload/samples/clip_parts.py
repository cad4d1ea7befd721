"""Which part of a video or of audio a clip is, in seconds."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from mpload.errors import ArgumentError, DecodeError

__all__ = ["check_begin", "check_seconds", "drawn_part", "seconds_in"]


def drawn_part(
    start: float | str,
    end: float | str | None,
    seconds: float | None,
    record: Mapping[str, Any],
    whole_seconds: Callable[[], float],
    dice: float,
) -> tuple[float, float]:
    """Return where the part of a clip begins, and its length, in seconds.

    Args:
        start: The earliest time it may begin, or the column that says so.
        end: The latest time it may end, likewise; None means the end of the file.
        seconds: Its length, if that is less; None takes all.
        record: The cells of the sample's line, by the name of their column.
        whole_seconds: Called for the length of the file if that is needed.
        dice: Where it lies, from 0 to 1.

    Raises:
        ArgumentError: A column does not hold seconds.
        DecodeError: There is no such part.
    """
    first = seconds_in(record, start)
    last = whole_seconds() if end is None else seconds_in(record, end)
    if not 0 <= first < last < math.inf:
        raise DecodeError(
            f"there is nothing from {first} to {last} seconds: the file has {whole_seconds():.3f} seconds"
        )
    if seconds is None:
        return first, last - first
    length = min(seconds, last - first)
    return first + dice * (last - first - length), length


def check_begin(begin: float, whole_seconds: float) -> None:
    """Raise a `DecodeError` if a part begins after the end of the file."""
    if begin >= whole_seconds:
        raise DecodeError(
            f"the part begins at {begin} seconds, but the file has {whole_seconds:.3f} seconds. Correct the start, or "
            "remove the sample from the index"
        )


def seconds_in(record: Mapping[str, Any], given: float | str) -> float:
    """Return seconds that were given, or those in the column that was named."""
    if not isinstance(given, str):
        return given
    if not isinstance(record.get(given), int | float):
        raise ArgumentError(
            f"the column {given!r} must hold seconds, but a record has {dict(record)!r:.200}. Declare {given}:float in "
            "#columns"
        )
    return float(record[given])


def check_seconds(seconds: float | None) -> None:
    """Raise an `ArgumentError` if the length of a part is not positive."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise ArgumentError(f"seconds must be a positive number, got {seconds!r}")
