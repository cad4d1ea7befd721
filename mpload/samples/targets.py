"""How libraries that transform whole samples treat the values of a column."""

from collections.abc import Callable
from enum import StrEnum, auto
from functools import partial
from typing import Any

from mpload.errors import ArgumentError

__all__ = ["Target", "checked_sample", "target_of"]


class Target(StrEnum):
    """What a transform does to the values of a column. Values of other kinds stay as they are."""

    IMAGE = auto()
    """uint8 [H, W, C]."""
    VIEWS = auto()
    """Several images [..., H, W, C], which have transforms of their own."""
    MASK = auto()
    """[H, W] of ids or depths, which are never mixed."""
    BOXES = auto()
    """A dict of `boxes`, float32 [n, 4], left, top, right and bottom in pixels, and of one value per box and key."""
    KEYPOINTS = auto()
    """float32 [n, 3]: x, y in pixels, and a visibility, 0 for points that cannot be seen."""

    @property
    def shows_images(self) -> bool:
        """Whether arrays of three or more dimensions are images [..., H, W, C]."""
        return self in {Target.IMAGE, Target.VIEWS}


def target_of(decode: Callable[..., Any]) -> Target | None:
    """Return the target of a decoder's values: its attribute `target`, or `makes_images`; None if it has neither."""
    while isinstance(decode, partial):
        decode = decode.func
    declared = str(getattr(decode, "target", None))
    if declared in {*Target}:
        return Target(declared)
    return Target.IMAGE if getattr(decode, "makes_images", False) else None


def checked_sample(result: Any, transform: Any) -> dict[str, Any]:
    """Return what a transform returned.

    Raises:
        ArgumentError: It is not a sample.
    """
    if not isinstance(result, dict) or not all(isinstance(key, str) for key in result):
        name = getattr(transform, "__qualname__", type(transform).__qualname__)
        raise ArgumentError(
            f"transform {name} returned {type(result).__name__}. With a dict as decode, a transform gets a sample as a "
            "dict and returns one, with names as keys"
        )
    return result
