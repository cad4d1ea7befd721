"""The order of a `Curriculum`, over a table of the sorted rows. Without pyarrow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.index.table_files import MappedTable
from mpload.plan.order import checked_positions, round_keys
from mpload.plan.permutation import Permutation, mixed
from mpload.plan.ranges import MAX_SEED, check_range

__all__ = ["CurriculumChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumChoice:
    """The orders of all epochs of a `Curriculum`: an `OrderChoice`."""

    spec: str
    shown: str
    """How the user wrote it."""
    table: MappedTable
    """The rows of the index in the order of their numbers."""
    window_samples: int
    descending: bool

    def order(self, *, num_samples: int, seed: int, epoch: int) -> "CurriculumOrder":
        """Return the order of an epoch; see `OrderChoice.order`."""
        check_range("num_samples", num_samples, self.table.num_samples, self.table.num_samples + 1)
        check_range("seed", seed, 0, MAX_SEED)
        check_range("epoch", epoch, 0, MAX_SEED)
        return CurriculumOrder(choice=self, keys=round_keys("sorted", seed, epoch))

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumOrder:
    """The order of one epoch of a `Curriculum`: see `Order`."""

    choice: CurriculumChoice
    keys: tuple[int, ...]

    @property
    def num_samples(self) -> int:
        """The number of positions, which is also the number of sample_ids."""
        return self.choice.table.num_samples

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample_ids at `positions`; see `Order.sample_ids`."""
        places = checked_positions(positions, self.num_samples)
        if not places.size:
            return np.empty(0, np.int64)
        window = np.uint64(self.choice.window_samples)
        windows = places // window
        starts = windows * window
        sizes = np.minimum(np.uint64(self.num_samples) - starts, window)
        shuffled = np.empty_like(places)
        for size in np.unique(sizes).tolist():  # at most two: the last window may be shorter
            same = sizes == size
            tweaks = mixed(windows[same])
            shuffled[same] = starts[same] + Permutation(size, self.keys)((places - starts)[same], tweaks)
        places = shuffled.view(np.int64)
        if self.choice.descending:
            places = self.num_samples - 1 - places
        return self.choice.table.entries[places]
