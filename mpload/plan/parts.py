"""Parts of a number of samples, chosen by a keyed permutation: an exact share, or one of several folds.

Samples may be stratified. Each stratum, such as a class, is then permuted on its own, and has its part of the samples
that are chosen, to within one. No list of samples is made: any sample can be tested on its own.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.order import round_keys
from mpload.plan.permutation import Permutation, mixed
from mpload.plan.ranges import MAX_SEED, check_range

__all__ = ["Fold", "Part", "Share"]

_MAX_FOLDS = 1 << 20


class Part(Protocol):
    """A part of the samples: a `Share` or a `Fold`."""

    @property
    def stratify(self) -> str | None:
        """The column whose values are the strata; None if there are none."""

    def holds(self, sizes: NDArray[np.int64], strata: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the part holds each of n samples, bool [n].

        Args:
            sizes: int64 [num_strata]: number of samples in each stratum.
            strata: int64 [n]: the stratum of each sample.
            ranks: int64 [n]: how many samples of its stratum come before each sample.
        """


@dataclass(frozen=True, slots=True)
class Share:
    """A random share of the samples: `round(fraction * N)` of them.

    With the same seed and without `stratify`, a smaller share is part of a larger one.

    Attributes:
        fraction: the share, in (0, 1].
        seed: which samples are chosen, in `[0, 2**63)`.
        stratify: a column of integers or texts. Each of its values has its part of the chosen samples, to within one.

    Raises:
        ArgumentError: a value is out of range.
    """

    fraction: float
    seed: int = field(default=0, kw_only=True)
    stratify: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        fraction: object = self.fraction
        if not isinstance(fraction, int | float | np.floating) or not 0 < fraction <= 1:
            raise ArgumentError(f"a share must be in (0, 1], got {fraction!r:.80}. Write Share(0.1) for a tenth")
        check_range("seed", self.seed, 0, MAX_SEED)

    def holds(self, sizes: NDArray[np.int64], strata: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the part holds each of n samples; see `Part.holds`."""
        total = int(sizes.sum())
        wanted = round(self.fraction * total)
        ends = np.cumsum(sizes).tolist()
        # The same rounding at both ends of a stratum: the numbers add up, and each is within one of its part.
        cuts = [0, *(wanted * end // max(1, total) for end in ends)]
        return _places(sizes, strata, ranks, self.seed) < np.diff(cuts)[strata]


@dataclass(frozen=True, slots=True)
class Fold:
    """One of `of` folds, which share no sample and together hold all of them; or with `rest`, all but this fold.

    The sizes of the folds differ by at most one sample.

    Attributes:
        number: which fold, in `[0, of)`.
        of: number of folds, at least 2.
        rest: whether to choose the samples of all other folds: `rest=True` to train on, and `rest=False` to validate.
        seed: how samples are divided among the folds, in `[0, 2**63)`.
        stratify: a column of integers or texts. Each of its values is divided evenly, to within one sample.

    Raises:
        ArgumentError: a value is out of range.
    """

    number: int
    of: int = field(kw_only=True)
    rest: bool = field(default=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    stratify: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_range("of", self.of, 2, _MAX_FOLDS)
        check_range("number", self.number, 0, self.of)
        check_range("seed", self.seed, 0, MAX_SEED)

    def holds(self, sizes: NDArray[np.int64], strata: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the part holds each of n samples; see `Part.holds`."""
        starts = np.cumsum(sizes) - sizes  # a stratum continues where the one before it stopped, so that sizes are even
        places = starts[strata] + _places(sizes, strata, ranks, self.seed)
        is_held: NDArray[np.bool_] = (places % self.of == self.number) ^ self.rest
        return is_held


def _places(
    sizes: NDArray[np.int64], strata: NDArray[np.int64], ranks: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Return the place of each sample in the random order of its stratum, int64 [n]."""
    keys = round_keys("select", seed, 0)
    places = np.empty_like(ranks)
    tweaks, sizes_here = mixed(strata.view(np.uint64)), sizes[strata]
    for size in np.unique(sizes_here).tolist():
        same = sizes_here == size
        places[same] = Permutation(size, keys)(ranks[same].view(np.uint64), tweaks[same]).view(np.int64)
    return places
