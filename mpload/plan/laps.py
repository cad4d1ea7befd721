"""Epochs that are not as long as the index: each goes on where the one before has ended."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.plan.order import Order, OrderChoice, checked_positions
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range
from mpload.plan.repeats import repeated

__all__ = ["LapOrder", "LapOrders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LapOrders:
    """The orders of all epochs of `epoch_samples` positions: an `OrderChoice`.

    Positions count on from epoch to epoch. They go through all samples, lap after lap. Lap number L has the order that
    epoch L would have if epochs were as long as the index.

    Attributes:
        num_rows: the number of samples of the index.
        of_lap: the order in which each lap goes through them.
        epoch_samples: the number of positions of an epoch.

    Raises:
        ArgumentError: a value is out of range.
    """

    num_rows: int
    of_lap: OrderChoice
    epoch_samples: int

    def __post_init__(self) -> None:
        check_range("num_rows", self.num_rows, 1, MAX_NUM_SAMPLES + 1)
        check_range("epoch_samples", self.epoch_samples, 1, MAX_NUM_SAMPLES)

    @property
    def spec(self) -> str:
        """The choice as a stable text that checkpoints store."""
        return f"laps(order={self.of_lap.spec},epoch_samples={self.epoch_samples})"

    def order(self, *, num_samples: int, seed: int, epoch: int) -> "LapOrder":
        """Return the order of an epoch; see `OrderChoice.order`. `num_samples` must be `epoch_samples`."""
        check_range("num_samples", num_samples, self.epoch_samples, self.epoch_samples + 1)
        check_range("epoch", epoch, 0, MAX_NUM_SAMPLES // self.epoch_samples)
        self.of_lap.order(num_samples=self.num_rows, seed=seed, epoch=0)  # checks the seed
        return LapOrder(orders=self, seed=seed, start=epoch * self.epoch_samples)

    def __repr__(self) -> str:
        return repr(self.of_lap)


@dataclass(frozen=True, slots=True, kw_only=True)
class LapOrder:
    """The order of one epoch: see `Order`. It is no bijection, as samples may repeat or be left out."""

    orders: LapOrders
    seed: int
    start: int
    """The position at which the epoch begins, counted over all epochs."""

    @property
    def num_samples(self) -> int:
        """The number of positions."""
        return self.orders.epoch_samples

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample_ids at `positions`; see `Order.sample_ids`."""
        num_rows = self.orders.num_rows
        places = checked_positions(positions, self.num_samples).view(np.int64) + self.start
        laps, places = np.divmod(places, num_rows)
        rows = np.empty_like(places)
        for lap in np.unique(laps).tolist():
            here = laps == lap
            rows[here] = self._order_of(lap).sample_ids(places[here])
        return repeated(rows, laps, num_rows)

    def _order_of(self, lap: int) -> Order:
        return self.orders.of_lap.order(num_samples=self.orders.num_rows, seed=self.seed, epoch=lap)
