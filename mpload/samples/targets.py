"""What a column's values are to libraries that transform whole samples."""

from collections.abc import Callable
from enum import StrEnum, auto
from functools import partial
from typing import Any

__all__ = ["Target", "target_of"]


class Target(StrEnum):
    """What a transform does to the values of a column. Values of other kinds stay as they are."""

    IMAGE = auto()
    """uint8 [H, W, C]."""
    MASK = auto()
    """[H, W] of ids or depths, which are never mixed."""
    BOXES = auto()
    """A dict of `boxes`, float32 [n, 4], left, top, right and bottom in pixels, and of one value per box and key."""
    KEYPOINTS = auto()
    """float32 [n, 3]: x, y in pixels, and a visibility, 0 for points that cannot be seen."""


def target_of(decode: Callable[..., Any]) -> Target | None:
    """Return what a decoder's values are: its attribute `target`, or `makes_images`; None if it has neither."""
    while isinstance(decode, partial):
        decode = decode.func
    if getattr(decode, "makes_images", False):
        return Target.IMAGE
    declared = getattr(decode, "target", None)
    return Target(declared) if declared in {*Target} else None
