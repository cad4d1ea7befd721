"""Many permutations of different lengths, evaluated at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpload.plan.permutation import Permutation
from mpload.plan.shares import NATIVE

__all__ = ["Permutations"]


class Permutations:
    """Several permutations, prepared for the native module if it was built."""

    def __init__(self, permutations: Sequence[Permutation]) -> None:
        self._each = permutations
        self._nums_values = np.array([each.num_values for each in permutations], np.uint64)
        self._sides = np.array([each.side for each in permutations], np.uint64)
        self._keys = np.array([each.keys for each in permutations], np.uint64)

    def __call__(self, values: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the image of each value, int64 [n], under the permutation whose number is in `rows`, int64 [n]."""
        permuted = np.empty(len(values), np.uint64)
        if NATIVE is not None and len(values):
            NATIVE.permute_each(
                np.ascontiguousarray(values).view(np.uint64),
                np.ascontiguousarray(rows).view(np.uint64),
                self._nums_values,
                self._sides,
                self._keys,
                permuted,
            )
            return permuted.view(np.int64)
        for row in np.unique(rows).tolist():
            here = rows == row
            permuted[here] = self._each[row](values[here].view(np.uint64))
        return permuted.view(np.int64)
