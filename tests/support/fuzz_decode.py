"""Decode damaged files: each must give an image or a `DecodeError`, without crashes or growing memory.

    python -m tests.support.fuzz_decode --num 100000 --seed 0

The test suite decodes the first few thousand of the same files. After a crash, --last holds the file that caused it.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.images.limits import Limits
from mpload.memory.usage import anonymous_bytes
from mpload.units import format_bytes
from tests.golden.make_formats import FOLDER

_LIMITS = Limits(max_pixels=1_000_000)
_LENIENT = Limits(max_pixels=1_000_000, allow_truncated=True)
_WARM_UP = 2000
_ODD_BYTES = (0, 1, 0x7F, 0x80, 0xFF)

DECODERS: tuple[Callable[[bytes], NDArray[np.uint8]], ...] = (
    ImageDecoder(limits=_LIMITS),
    ImageDecoder(limits=_LENIENT),
    lambda data: RandomResizedCrop(16, limits=_LIMITS)(data, np.random.default_rng(0)),
    lambda data: RandomResizedCrop(64, limits=_LENIENT)(data, np.random.default_rng(1)),
    ResizeCenterCrop(16, limits=_LIMITS),
    lambda data: RandomResizedCrop(16, limits=_LIMITS, backend="simplejpeg")(data, np.random.default_rng(2)),
    ResizeCenterCrop(16, limits=_LIMITS, antialias=True, backend="simplejpeg"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcomes of decoding damaged files."""

    num_images: int
    num_errors: int
    growth_bytes: int
    """Growth of the process's private memory after the first 2,000 files."""


def damage(data: bytes, dice: random.Random, others: Sequence[bytes]) -> bytes:
    """Return `data` with a few bytes changed, sometimes also truncated, partly repeated or mixed with another file."""
    damaged = bytearray(data)
    reach = len(damaged) if dice.random() < 0.5 else min(len(damaged), 64)  # damage to headers matters most
    for _ in range(dice.choice((1, 1, 2, 8))):
        damaged[dice.randrange(reach)] = dice.choice((*_ODD_BYTES, dice.randrange(256)))
    kind = dice.random()
    at = dice.randrange(len(damaged))
    if kind < 0.15:
        del damaged[at:]
    elif kind < 0.2:
        damaged[at:at] = damaged[at : at + dice.randrange(1, 200)]
    elif kind < 0.25:
        damaged[at:] = dice.choice(others)[at:]
    return bytes(damaged)


def fuzz(*, num: int, seed: int, last: Path | None = None) -> Found:
    """Decode `num` damaged files.

    Raises:
        AssertionError: A decoder returned something other than an image within its limits.
        Exception: A decoder raised something other than a `DecodeError`.
    """
    dice = random.Random(seed)
    files = [path.read_bytes() for path in sorted(FOLDER.iterdir())]
    num_images, before = 0, 0
    for number in range(num):
        if number == min(_WARM_UP, num // 2):
            before = anonymous_bytes(os.getpid())
        data = damage(dice.choice(files), dice, files)
        if last is not None:
            last.write_bytes(data)
        try:
            pixels = DECODERS[number % len(DECODERS)](data)
        except DecodeError:
            continue
        num_images += 1
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
        assert 0 < pixels.size <= 3 * _LIMITS.max_pixels
    growth_bytes = anonymous_bytes(os.getpid()) - before
    return Found(num_images=num_images, num_errors=num - num_images, growth_bytes=growth_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--last", type=Path, help="write each file here before it is decoded")
    options = parser.parse_args()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    found = fuzz(num=options.num, seed=options.seed, last=options.last)
    grown = format_bytes(found.growth_bytes)
    print(f"{found.num_images:,} images, {found.num_errors:,} errors, memory grew by {grown}")
    sys.exit(found.growth_bytes > 32 << 20)


if __name__ == "__main__":
    main()
