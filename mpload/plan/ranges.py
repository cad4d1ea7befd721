"""The largest numbers of samples, seeds and epochs."""

from typing import Any

import numpy as np

from mpload.errors import ArgumentError

__all__ = ["MAX_NUM_SAMPLES", "MAX_SEED", "check_range", "plain_integer"]

MAX_NUM_SAMPLES = 1 << 62
MAX_SEED = 1 << 63


def plain_integer(value: Any) -> Any:
    """Return an integer of NumPy as an `int`, and anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def check_range(name: str, value: object, first: int, stop: int) -> None:
    """Raise an error unless `value` is an integer in `[first, stop)`.

    Raises:
        ArgumentError: `value` is not an integer, or is out of range.
    """
    if not isinstance(value, int) or not first <= value < stop:
        raise ArgumentError(f"{name} must be in [{first}, {stop}), got {value!r}")
