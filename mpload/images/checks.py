"""Checks of the arguments that several decoders have."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mpload.errors import ArgumentError

__all__ = ["check_fill", "check_interval", "check_probability", "pair", "set_max_pixels", "set_size"]


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


def set_size(decoder: Any) -> None:
    """Make the `size` of a decoder a number or a tuple of two, so that decoders of the same size are equal.

    Raises:
        ArgumentError: it is neither a positive number nor two of them.
    """
    size = decoder.size
    sides = size if isinstance(size, Sequence) and not isinstance(size, str) and len(size) == 2 else (size,)
    if not all(isinstance(side, int | np.integer) and side > 0 for side in sides):
        raise ArgumentError(f"size must be a positive number of pixels, or (height, width), got {size!r}")
    plain = tuple(map(int, sides))
    object.__setattr__(decoder, "size", plain if len(plain) == 2 else plain[0])


def check_fill(fill: object) -> None:
    """Raise `ArgumentError` if `fill` is not a value of a channel."""
    if not isinstance(fill, int) or not 0 <= fill <= 255:
        raise ArgumentError(f"fill must be a value of a channel, 0 to 255, got {fill!r}")


def check_probability(name: str, probability: float) -> None:
    """Raise `ArgumentError` if `probability` is not in [0, 1]."""
    if not 0 <= probability <= 1:
        raise ArgumentError(f"{name} must be in [0, 1], got {probability}")


def check_interval(name: str, interval: object) -> None:
    """Raise `ArgumentError` if `interval` is not two positive numbers, the smaller first."""
    match interval:
        case (int() | float() as low, int() | float() as high) if 0 < low <= high < math.inf:
            return
    raise ArgumentError(f"{name} must be two positive numbers, the smaller first, got {interval!r}")


def set_max_pixels(decoder: Any, max_pixels: int | None) -> None:
    """Move `max_pixels` into `limits`, so that decoders with the same limits are equal, however they were written."""
    if max_pixels is not None:
        object.__setattr__(decoder, "limits", replace(decoder.limits, max_pixels=max_pixels))
