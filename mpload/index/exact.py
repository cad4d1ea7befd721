"""Compares integers with floats exactly, as Python does, and computes with integers that were divided by 0.

NumPy would round integers above 2^53 to floats first.
"""

import operator
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIVIDED", "compared", "divided", "floats_of"]

DIVIDED = np.dtype([("integer", np.float64)])
"""The dtype of integers, inf and nan, to tell them from floats."""
_EXACT_IN_FLOAT = float(1 << 53)


def floats_of(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return numbers, or values of the dtype `DIVIDED`, as floats."""
    return values.astype(np.float64)


def divided(compute: Callable[[Any, Any], Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any] | None:
    """Return what is computed with integers, of the dtype `DIVIDED`, or floats for `/`; None if digits are lost."""
    parts = floats_of(left), floats_of(right)
    with np.errstate(all="ignore"):
        found: NDArray[Any] = np.asarray(compute(*parts))
    if any(np.abs(each[np.isfinite(each)]).max(initial=0.0) >= _EXACT_IN_FLOAT for each in (*parts, found)):
        return None
    return found if compute is np.true_divide else found.astype(DIVIDED)


def compared(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return the truth of a comparison from `operator`, such as `operator.lt`, for arrays or Python numbers."""
    if not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        return compare(left, right)
    left, right = (_plain(each) for each in (left, right))
    kinds = _is_float(left), _is_float(right)
    if kinds == (False, True):
        found, floats = compare(_signs(left, np.asarray(right)), 0), right
    elif kinds == (True, False):
        found, floats = compare(0, _signs(right, np.asarray(left))), left
    else:
        return compare(left, right)
    return np.where(np.isnan(floats), compare is operator.ne, found)


def _plain(value: Any) -> Any:
    return floats_of(value) if isinstance(value, np.ndarray) and value.dtype == DIVIDED else value


def _is_float(value: Any) -> bool:
    return value.dtype.kind == "f" if isinstance(value, np.ndarray) else isinstance(value, float)


def _signs(integers: int | NDArray[np.int64], floats: NDArray[np.float64]) -> NDArray[np.int8]:
    """Return -1 where the integer is smaller than the float, 1 where it is larger, and else 0."""
    if not isinstance(integers, np.ndarray):
        nearest = _nearest(integers)
        beyond = int(nearest > integers) - int(nearest < integers)
        signs = _sign_of_difference(nearest, floats)
        return np.where(signs == 0, -beyond, signs).astype(np.int8)
    below = np.floor(floats)
    fits = (below >= -(2.0**63)) & (below < 2.0**63)
    signs = _sign_of_difference(integers, np.where(fits, below, 0).astype(np.int64))
    signs = np.where((signs == 0) & (floats > below), -1, signs)
    return np.where(fits, signs, np.where(below > 0, -1, 1)).astype(np.int8)


def _sign_of_difference(left: Any, right: Any) -> NDArray[np.int8]:
    found: NDArray[np.int8] = np.greater(left, right).astype(np.int8) - np.less(left, right).astype(np.int8)
    return found


def _nearest(integer: int) -> float:
    try:
        return float(integer)
    except OverflowError:
        return inf if integer > 0 else -inf
