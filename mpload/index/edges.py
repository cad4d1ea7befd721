"""Where one bucket ends and the next one begins."""

import math
import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.ranges import check_range

__all__ = ["MAX_BUCKETS", "aspect_shapes", "is_number", "least_padding_edges"]

MAX_BUCKETS: Final = 256
_NUM_QUANTILES = 768
_NUM_STEPS = 256
_MAX_SIDE = 1 << 16
_MAX_RATIO = 64.0


def least_padding_edges(values: NDArray[np.float64], num_buckets: int) -> list[float]:
    """Return the largest value of each bucket but the last, so that padding samples to these adds least.

    Args:
        values: float64 [n], in ascending order.
        num_buckets: the most buckets.

    Up to 1,024 of the values are candidates. Among these, dynamic programming finds the best edges.
    """
    quantiles = values[np.linspace(0, len(values) - 1, _NUM_QUANTILES).astype(np.int64)]
    steps = np.linspace(values[0], values[-1], _NUM_STEPS)
    evenly = values[np.searchsorted(values, steps).clip(max=len(values) - 1)]
    edges = np.unique(np.concatenate([quantiles, evenly]))
    counts = np.searchsorted(values, edges, side="right").astype(np.float64)
    # Between edges i < j: the length of all samples of a bucket that begins after i and ends at j, when padded.
    costs = np.where(np.arange(len(edges))[:, None] < np.arange(len(edges)), edges * (counts - counts[:, None]), np.inf)
    best, chosen = edges * counts, list[NDArray[np.int64]]()
    for _ in range(min(num_buckets, len(edges)) - 1):
        totals = best[:, None] + costs
        chosen.append(totals.argmin(axis=0))
        best = totals.min(axis=0)
    at, found = len(edges) - 1, list[float]()
    for before in reversed(chosen):
        at = int(before[at])
        found.append(float(edges[at]))
    return found[::-1]


def aspect_shapes(*, area: int, step: int, max_ratio: float) -> tuple[tuple[int, int], ...]:
    """Return heights and widths: multiples of `step`, as large as `area` pixels allow, by ascending ratio.

    Raises:
        ArgumentError: a number is out of range, or there is no such shape.
    """
    check_range("step", step, 1, _MAX_SIDE)
    check_range("area", area, 1, _MAX_SIDE * _MAX_SIDE)
    if not (is_number(max_ratio) and 1 <= max_ratio <= _MAX_RATIO):
        raise ArgumentError(f"max_ratio must be in [1, {_MAX_RATIO:g}], got {max_ratio!r}")
    longest = {}
    for short in range(step, math.isqrt(area) + 1, step):
        long = area // short // step * step
        if long <= max_ratio * short:
            divisor = math.gcd(long, short)
            longest[long // divisor, short // divisor] = long, short  # of equal ratios, the largest is the last
    shapes = {*longest.values(), *((short, long) for long, short in longest.values())}
    if not shapes:
        raise ArgumentError(f"no shape has sides of {step} pixels or a multiple and up to {area} pixels. Raise area")
    if len(shapes) > MAX_BUCKETS:
        raise ArgumentError(
            f"area={area}, step={step} and max_ratio={max_ratio:g} make {len(shapes)} shapes, but there may be "
            f"{MAX_BUCKETS} buckets. Raise step"
        )
    return tuple(sorted(shapes, key=lambda shape: shape[1] / shape[0]))


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
