"""Crops of a photo as its decoders make them, one after the other."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.images.geometry import open_as, show

__all__ = ["Groups", "one_by_one"]

Groups = list[tuple[int, Any]]
"""Decoders, and how many crops each makes."""


def one_by_one(data: bytes, groups: Groups, rng: Any) -> list[NDArray[np.uint8]]:
    """Return the crops of each decoder as the decoders alone make them."""
    made = []
    for count, decode in groups:
        image = open_as(decode, data)
        drawn = [decode.draw_geometry(image.height, image.width, rng) for _ in range(count)]
        made.append(np.stack([show(decode, image, geometry) for geometry in drawn]))
    return made
