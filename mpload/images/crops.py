"""The part of an image that a crop shows, chosen from the image's height and width alone.

_crop.c makes the same choices for many photos at once: a change here needs the same change there.
"""

import math

import numpy as np

from mpload.images.resize import Box

__all__ = ["middle_strip", "random_crop_box"]

_NUM_TRIES = 10  # as in torchvision


def random_crop_box(
    height: int,
    width: int,
    rng: np.random.Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """Choose the region of an image that a random resized crop shows.

    The region is chosen as in torchvision's `RandomResizedCrop.get_params`: up to ten times, draw an area uniform in
    `scale` (relative to the image's) and an aspect ratio (width to height) log-uniform in `ratio`. The first crop that
    fits is placed uniformly at random; if none fits, the largest centred crop within `ratio` is taken. One rule is
    stricter: crops must fit before their sides are rounded to pixels, so that resolution does not change the region.

    Args:
        height: The image's height in pixels.
        width: The image's width in pixels.
        rng: The generator to draw from: always 22 doubles, for every image and any number of tries.
        scale: Smallest and largest area of the region, as fractions of the image's area.
        ratio: Smallest and largest ratio of the region's width to its height.
    """
    draws = rng.random(2 * _NUM_TRIES + 2).tolist()
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    aspect = width / height
    for attempt in range(0, 2 * _NUM_TRIES, 2):
        area = scale[0] + (scale[1] - scale[0]) * draws[attempt]
        crop_ratio = math.exp(log_low + (log_high - log_low) * draws[attempt + 1])
        crop_width = math.sqrt(area * crop_ratio / aspect)  # as a fraction of the image's width
        crop_height = math.sqrt(area / crop_ratio * aspect)
        if crop_width <= 1 and crop_height <= 1:
            pixels_high = max(1, round(crop_height * height))
            pixels_wide = max(1, round(crop_width * width))
            return Box(
                top=int(draws[-2] * (height - pixels_high + 1)),
                left=int(draws[-1] * (width - pixels_wide + 1)),
                height=pixels_high,
                width=pixels_wide,
            )
    if aspect < ratio[0]:
        pixels_high, pixels_wide = max(1, min(height, round(width / ratio[0]))), width
    elif aspect > ratio[1]:
        pixels_high, pixels_wide = height, max(1, min(width, round(height * ratio[1])))
    else:
        pixels_high, pixels_wide = height, width
    top, left = (height - pixels_high) // 2, (width - pixels_wide) // 2
    return Box(top=top, left=left, height=pixels_high, width=pixels_wide)


def middle_strip(height: int, width: int) -> Box:
    """Return the box of the whole image, or of the middle of a very long one: 1 x 100,000 pixels would become 20 GB.

    Both ends are cut off equally, so that the centre stays in place.
    """
    cut_rows, cut_columns = max(0, height - 4 * width) // 2, max(0, width - 4 * height) // 2
    return Box(top=cut_rows, left=cut_columns, height=height - 2 * cut_rows, width=width - 2 * cut_columns)
