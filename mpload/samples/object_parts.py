"""Arrays that belong to an image's objects and must move with the image: a mask and points for each object."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from mpload.samples.targets import Target

__all__ = ["moving_parts"]

_POINTS: Final = "keypoints"


def moving_parts(objects: Any, size: tuple[int, int]) -> dict[str, Target]:
    """Return which values of objects must move with their image, by name.

    Args:
        objects: a dict with `boxes`, float32 [n, 4], and a value per object and name, as `Boxes` returns it.
        size: height and width of the image.

    Returns:
        `Target.MASK` for integers [n, height, width], and `Target.KEYPOINTS` for `keypoints` [n, k, 2 or 3].
    """
    if not isinstance(objects, Mapping):
        return {}
    found = {}
    for name, value in objects.items():
        if not isinstance(value, np.ndarray) or value.ndim != 3 or len(value) != len(objects["boxes"]):
            continue
        if name == _POINTS and value.shape[2] in {2, 3}:
            found[name] = Target.KEYPOINTS
        elif value.shape[1:] == tuple(size) and value.dtype.kind in "biu":
            found[name] = Target.MASK
    return found
