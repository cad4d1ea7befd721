"""The order of `PKBatches`, and the table of the rows of each class. Without pyarrow."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.table_files import MappedTable
from mpload.plan.order import checked_positions, round_keys
from mpload.plan.permutation import Permutation
from mpload.plan.permutations import Permutations
from mpload.plan.ranges import MAX_NUM_SAMPLES, MAX_SEED, check_range
from mpload.plan.repeats import repeated

__all__ = ["ClassBatchChoice", "ClassTable"]


@dataclass(frozen=True, kw_only=True)
class ClassTable(MappedTable):
    """The rows of each class. The largest classes come first."""

    num_classes: int

    def first_row_of(self, classes: Any) -> Any:
        """Return the number of rows of all classes before each of these; for the number of classes, that of all."""
        return self.entries[classes]

    def rows(self, classes: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row at each place of a class, int64 [n]."""
        found: NDArray[np.int64] = self.entries[self.num_classes + 1 + self.first_row_of(classes) + places]
        return found

    def num_classes_of(self, min_samples: int) -> int:
        """Return the number of classes that have at least so many samples. They are the first ones."""
        low, high = 0, self.num_classes
        while low < high:
            middle = (low + high) // 2
            if self.first_row_of(middle + 1) - self.first_row_of(middle) >= min_samples:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBatchChoice:
    """The orders of all epochs of `PKBatches`: an `OrderChoice`."""

    spec: str
    shown: str
    """How the user wrote it."""
    table: ClassTable
    num_classes: int
    """The classes that are used: the first ones of the table."""
    classes_per_batch: int
    samples_per_class: int
    epoch_samples: int
    """The number of positions of an epoch."""

    @property
    def batch_size(self) -> int:
        """The number of samples that a batch must have."""
        return self.classes_per_batch * self.samples_per_class

    def with_epoch(self, epoch_samples: int) -> Self:
        """Return the same order in epochs of another length."""
        if epoch_samples % self.batch_size:
            raise ArgumentError(
                f"epoch_samples={epoch_samples} is not a multiple of {self.batch_size}, the size of a batch of "
                f"{self.shown}. Pass a multiple"
            )
        return replace(self, spec=f"{self.spec},epoch_samples={epoch_samples}", epoch_samples=epoch_samples)

    def order(self, *, num_samples: int, seed: int, epoch: int) -> "ClassBatchOrder":
        """Return the order of an epoch; see `OrderChoice.order`."""
        check_range("num_samples", num_samples, self.epoch_samples, self.epoch_samples + 1)
        check_range("seed", seed, 0, MAX_SEED)
        check_range("epoch", epoch, 0, MAX_NUM_SAMPLES // self.epoch_samples)
        return ClassBatchOrder(choice=self, seed=seed, start=epoch * self.epoch_samples)

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBatchOrder:
    """The order of one epoch of `PKBatches`: see `Order`.

    A *group* is the K samples of a class in one batch. A class has one group in each lap through the classes, unless it
    is left out. So the number of the lap tells how far the class has gone through its own samples.
    """

    choice: ClassBatchChoice
    seed: int
    start: int
    """The position at which the epoch begins, counted over all epochs."""

    @property
    def num_samples(self) -> int:
        """The number of positions."""
        return self.choice.epoch_samples

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample_ids at `positions`; see `Order.sample_ids`."""
        choice, table = self.choice, self.choice.table
        places = checked_positions(positions, self.num_samples).view(np.int64) + self.start
        group_numbers, of_group = np.unique(places // choice.samples_per_class, return_inverse=True)
        classes, turns = self._classes(group_numbers)
        sizes = table.first_row_of(classes + 1) - table.first_row_of(classes)
        groups_per_lap = np.maximum(sizes // choice.samples_per_class, 1)
        laps_per_group = -(-choice.samples_per_class // sizes)
        own_laps, own_groups = np.divmod(turns, groups_per_lap)
        firsts = own_laps * laps_per_group
        in_lap = (own_groups * choice.samples_per_class)[of_group] + places % choice.samples_per_class
        laps, in_lap = np.divmod(in_lap, sizes[of_group])
        laps += firsts[of_group]
        rows = table.rows(classes[of_group], self._shuffled(classes[of_group], laps, in_lap))
        return repeated(rows, laps, table.num_samples)

    def _classes(self, groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the class of each group, and the number of its lap through the classes: two int64 [n]."""
        choice = self.choice
        groups_per_lap = choice.num_classes // choice.classes_per_batch * choice.classes_per_batch
        laps, places = np.divmod(groups, groups_per_lap)
        found, of_lap = np.unique(laps, return_inverse=True)
        permutations = [
            Permutation(choice.num_classes, round_keys("classes", self.seed, lap)) for lap in found.tolist()
        ]
        return Permutations(permutations)(places, of_lap), laps

    def _shuffled(
        self, classes: NDArray[np.int64], laps: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the place to which each one is permuted in a lap through its class."""
        found, of_pair = np.unique(np.stack([classes, laps]), axis=1, return_inverse=True)
        sizes = self.choice.table.first_row_of(found[0] + 1) - self.choice.table.first_row_of(found[0])
        permutations = [
            Permutation(size, round_keys("class", _seed_of(self.seed, number), lap))
            for size, number, lap in zip(sizes.tolist(), *found.tolist(), strict=True)
        ]
        return Permutations(permutations)(places, of_pair.reshape(-1))


def _seed_of(seed: int, number: int) -> int:
    digest = hashlib.blake2b(b"%d %d" % (seed, number), digest_size=8, person=b"mpload.class").digest()
    return int.from_bytes(digest, "little") >> 1
