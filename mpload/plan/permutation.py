"""A keyed permutation of a range of integers, computed value by value and never stored."""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.native import native_module

__all__ = ["Permutation", "mixed"]


class _Native(Protocol):
    """The module `mpload.plan._permutation`."""

    def permute(
        self,
        values: NDArray[np.uint64],
        side: int,
        keys: NDArray[np.uint64],
        tweaks: NDArray[np.uint64] | None,
        permuted: NDArray[np.uint64],
    ) -> None: ...


NATIVE: Final[_Native | None] = native_module("plan._permutation")


@dataclass(frozen=True, slots=True)
class Permutation:
    """A keyed permutation of `[0, num_values)`."""

    num_values: int
    keys: tuple[int, ...]

    def __call__(self, values: NDArray[np.uint64], tweaks: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """Return the image of each value. Each element of `tweaks` selects one of many unrelated permutations."""
        return self._walk(values ^ (values < 2) if self._swaps else values, self.keys, tweaks)

    def inverse(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the value that the permutation maps to each of `values`."""
        # A Feistel network with its keys reversed is its own inverse.
        walked = self._walk(values, self.keys[::-1], None)
        return walked ^ (walked < 2) if self._swaps else walked

    @property
    def side(self) -> int:
        """The side of the smallest square that covers all values; the network permutes the numbers below its area."""
        return max(2, math.isqrt(max(self.num_values, 1) - 1) + 1)

    @property
    def _swaps(self) -> bool:
        """Whether 0 and 1 are swapped first. Without this, a network with an odd side gives even permutations only."""
        return self.num_values > 1 and self.keys[0] & 1 == 1

    def _walk(
        self, values: NDArray[np.uint64], keys: tuple[int, ...], tweaks: NDArray[np.uint64] | None
    ) -> NDArray[np.uint64]:
        side = self.side
        walked = _feistel(values, side, keys, tweaks)
        outside = np.flatnonzero(walked >= self.num_values)
        while outside.size:
            again = _feistel(walked[outside], side, keys, None if tweaks is None else tweaks[outside])
            walked[outside] = again
            outside = outside[again >= self.num_values]
        return walked


def _feistel(
    values: NDArray[np.uint64], side: int, keys: tuple[int, ...], tweaks: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    """Permute `[0, side**2)` with a balanced Feistel network that has one round per key.

    The same arithmetic is in _permutation.c: orders must not depend on which of both runs.
    """
    if NATIVE is not None:
        permuted = np.empty_like(values)
        NATIVE.permute(np.ascontiguousarray(values), side, np.array(keys, np.uint64), tweaks, permuted)
        return permuted
    left = values // np.uint64(side)
    right = values - left * np.uint64(side)
    hashed, scratch = np.empty_like(values), np.empty_like(values)
    for key in keys:
        np.bitwise_xor(right, key, out=hashed)
        if tweaks is not None:
            hashed ^= tweaks
        _mix_in_place(hashed, scratch)
        hashed >>= 32
        hashed *= side
        hashed >>= 32
        # left = (hashed - left) mod side, its own inverse. A negative difference wraps to a huge one: take the minimum.
        np.subtract(hashed, left, out=left)
        np.add(left, side, out=scratch)
        np.minimum(left, scratch, out=left)
        left, right = right, left
    right *= side
    right += left
    return right


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each value, whose high bits depend on all bits of the value."""
    hashed = values + np.uint64(1)  # the hash maps 0 to 0
    _mix_in_place(hashed, np.empty_like(hashed))
    return hashed


def _mix_in_place(values: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """Hash each value so that its high bits depend on all its bits. Multipliers: Stafford's Mix13, as in SplitMix64."""
    values *= 0xBF58476D1CE4E5B9
    np.right_shift(values, 32, out=scratch)
    values ^= scratch
    values *= 0x94D049BB133111EB
