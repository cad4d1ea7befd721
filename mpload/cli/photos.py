"""Synthetic landscapes, made from a seed: JPEGs that resemble photographs in size, detail and decoding cost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

__all__ = ["SCENES", "make_photos", "photo"]

_Colour = tuple[int, int, int]
_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """The colours of one kind of landscape, as RGB from 0 to 255."""

    zenith: _Colour
    horizon: _Colour
    near: _Colour
    sun: _Colour
    haze: float
    """How strongly distant hills take on the colour of the horizon, from 0 to 1."""


SCENES = {
    "desert": _Scene(zenith=(74, 128, 186), horizon=(238, 214, 178), near=(158, 92, 44), sun=(255, 246, 220), haze=0.7),
    "dusk": _Scene(zenith=(44, 36, 84), horizon=(246, 140, 84), near=(24, 16, 32), sun=(255, 214, 150), haze=0.6),
    "forest": _Scene(
        zenith=(120, 166, 208), horizon=(222, 232, 232), near=(24, 54, 22), sun=(255, 255, 240), haze=0.85
    ),
    "night": _Scene(zenith=(6, 10, 30), horizon=(38, 60, 104), near=(4, 8, 14), sun=(226, 232, 246), haze=0.7),
    "snow": _Scene(zenith=(84, 140, 204), horizon=(214, 230, 242), near=(176, 194, 222), sun=(255, 252, 236), haze=0.6),
}
"""The scenes, keyed by class name."""

_NUM_HILLS = 5
_JPEG_QUALITY = 90


def make_photos(folder: Path, *, num_images: int, seed: int, progress: Callable[[int], None]) -> None:
    """Write `folder/<scene>/<number>.jpg`. The same arguments always write the same bytes.

    Args:
        folder: The folder in which one folder for each class is created.
        num_images: The number of photographs, spread evenly over the scenes.
        seed: The seed of everything random in the photographs.
        progress: Called with the number of photographs written so far.
    """
    names = list(SCENES)
    for name in names[:num_images]:
        (folder / name).mkdir(parents=True)
    for number in range(num_images):
        name = names[number % len(names)]
        pixels = photo(name, np.random.default_rng((seed, number)))
        jpeg = simplejpeg.encode_jpeg(pixels, quality=_JPEG_QUALITY, colorsubsampling="420")
        (folder / name / f"{number:06d}.jpg").write_bytes(jpeg)
        progress(number + 1)


def photo(scene: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a landscape, uint8 RGB [H, W, 3]. Sizes are distributed as in ImageNet: mostly 500 x 375 pixels."""
    height, width = _size(rng)
    colours = SCENES[scene]
    rows = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    image = _between(colours.zenith, colours.horizon, np.sqrt(rows)) * np.ones((1, width, 1), np.float32)
    clouds = np.clip(_fractal(height, width, rng, roughness=0.2), 0, 1)[..., None] * rng.uniform(0.1, 0.6)
    image += (_array(colours.sun) - image) * clouds * (1 - rows)
    _add_sun(image, colours.sun, rng)
    relief = _fractal(height, width, rng, roughness=0.6)[..., None]
    for row, far, skyline in _hills(height, width, rng):
        relief = relief[:, ::-1]
        ground = _between(colours.near, colours.horizon, colours.haze * far)
        lit = ground * (1 + (0.1 + 0.35 * (1 - far)) * relief[: height - row])
        below = np.clip(np.arange(row, height, dtype=np.float32)[:, None] - skyline, 0, 1)[..., None]
        image[row:] += (lit - image[row:]) * below
    grain = rng.standard_normal((height, width), np.float32)[..., None] * 4
    pixels: NDArray[np.uint8] = np.clip(image + grain, 0, 255).astype(np.uint8)
    return pixels


def _size(rng: np.random.Generator) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.75:
        sides = (int(rng.integers(330, 376)), 500)
    elif kind < 0.95:
        sides = (int(rng.integers(200, 501)), int(rng.integers(200, 501)))
    else:
        sides = (int(rng.integers(700, 1000)), int(rng.integers(1000, 1500)))
    return sides if rng.random() < 0.75 else (sides[1], sides[0])


def _array(colour: _Colour) -> _Floats:
    return np.array(colour, np.float32)


def _between(first: _Colour, last: _Colour, part: _Floats | float) -> _Floats:
    return _array(first) + (_array(last) - _array(first)) * part


def _fractal(height: int, width: int, rng: np.random.Generator, *, roughness: float) -> _Floats:
    """Return noise with roughly the 1/f spectrum of natural images, float32 [height, width], mostly in [-1, 1].

    Args:
        height: The number of rows.
        width: The number of columns.
        rng: The source of randomness.
        roughness: The amount of fine detail, from 0 to 1.
    """
    total = np.zeros((height, width), np.float32)
    cell = max(height, width) // 2
    while cell >= 2:
        coarse = rng.standard_normal((height // cell + 2, width // cell + 2), np.float32)
        total += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) * cell ** (1 - roughness)
        cell //= 2
    total /= 2.5 * total.std() + 1e-6
    return total


def _hills(height: int, width: int, rng: np.random.Generator) -> Iterator[tuple[int, float, _Floats]]:
    """Yield each range of hills from far to near: its highest row, distance (0 to 1) and skyline, float32 [width]."""
    top = rng.uniform(0.35, 0.6)
    for hill in range(_NUM_HILLS):
        nearness = hill / (_NUM_HILLS - 1)
        line = _fractal(2, width, rng, roughness=0.2)[0] * rng.uniform(0.05, 0.12) + top
        line += (1.02 - top) * 0.85 * nearness**1.3
        skyline = (np.clip(line, 0, 1) * (height - 2)).astype(np.float32)
        yield int(skyline.min()), 1 - nearness, skyline


def _add_sun(image: _Floats, colour: _Colour, rng: np.random.Generator) -> None:
    height, width, _ = image.shape
    row, column = rng.uniform(0.05, 0.5) * height, rng.uniform(0.05, 0.95) * width
    distance = np.hypot(np.arange(height)[:, None] - row, np.arange(width) - column).astype(np.float32)
    radius = rng.uniform(0.02, 0.06) * min(height, width)
    glow = np.exp(-distance / (6 * radius)) * 0.7 + np.clip(radius + 1 - distance, 0, 1)
    image += (_array(colour) - image) * np.minimum(glow, 1)[..., None]
