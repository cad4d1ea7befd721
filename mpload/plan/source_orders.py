"""The order in which each source of a mixture goes through its samples, lap after lap."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.plan.order import Order, OrderChoice, ShuffledOrder
from mpload.plan.permutations import Permutations

__all__ = ["SourceChoices", "SourceOrders"]

_MAX_KEPT = 1 << 16
_MAX_COUNTED = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChoices:
    """An order choice for each source, made from its own columns."""

    choices: tuple[OrderChoice, ...]
    shown: str
    """How the user wrote it."""
    are_draws: bool
    """Whether samples may come several times within a lap."""

    @property
    def spec(self) -> str:
        """The choices as a stable text that checkpoints store."""
        specs = list(dict.fromkeys(choice.spec for choice in self.choices))
        if len(specs) == 1:
            return specs[0]
        words = "\n".join(choice.spec for choice in self.choices).encode("utf-8", "surrogateescape")
        return f"{specs[0]}...{hashlib.blake2b(words, digest_size=8).hexdigest()}"

    def __repr__(self) -> str:
        return self.shown


class SourceOrders:
    """The orders of all laps of all sources, for one seed. Each source has a seed of its own, derived from the run's.

    Memory: the orders of the latest laps, up to 65,536.
    """

    def __init__(self, *, lengths: tuple[int, ...], choice: OrderChoice | SourceChoices, seed: int) -> None:
        self._lengths = lengths
        self._choice = choice
        self._seeds = [_seed_of(seed, source) for source in range(len(lengths))]
        self._orders: dict[tuple[int, int], Order] = {}
        self._latest: tuple[bytes, list[Order], Permutations | None] = (b"", [], None)

    def ids(self, sources: NDArray[np.int64], laps: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of a sample in its source, int64 [n], for a source, a lap of it and a place in that lap."""
        if not len(sources):
            return np.empty(0, np.int64)
        first_lap = int(laps.min())
        codes = (laps - first_lap) * len(self._lengths) + sources
        found, rows = _numbered(codes)
        orders, permutations = self._orders_of(found, first_lap)
        if permutations is not None:
            return permutations(places, rows)
        ids = np.empty_like(places)
        for row, order in enumerate(orders):
            here = rows == row
            ids[here] = order.sample_ids(places[here]) % order.num_samples  # those of repeated draws are greater
        return ids

    def _orders_of(self, codes: NDArray[np.int64], first_lap: int) -> tuple[list[Order], Permutations | None]:
        key = codes.tobytes() + first_lap.to_bytes(8, "little")
        latest = self._latest
        if latest[0] != key:
            laps, sources = np.divmod(codes, len(self._lengths))
            orders = [
                self._order(source, lap)
                for source, lap in zip(sources.tolist(), (laps + first_lap).tolist(), strict=True)
            ]
            permutations = [order.permutation for order in orders if isinstance(order, ShuffledOrder)]
            self._latest = latest = (
                key,
                orders,
                Permutations(permutations) if len(permutations) == len(orders) else None,
            )
        return latest[1:]

    def _order(self, source: int, lap: int) -> Order:
        key = source, lap
        if (found := self._orders.get(key)) is None:
            if len(self._orders) >= _MAX_KEPT:
                self._orders.clear()
            choice = self._choice.choices[source] if isinstance(self._choice, SourceChoices) else self._choice
            found = choice.order(num_samples=self._lengths[source], seed=self._seeds[source], epoch=lap)
            self._orders[key] = found
        return found


def _numbered(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the different codes in ascending order, and for each element of `codes` which of them it is."""
    num_codes = int(codes.max()) + 1
    if num_codes > _MAX_COUNTED:
        found, rows = np.unique(codes, return_inverse=True)
        return found, rows
    found = np.flatnonzero(np.bincount(codes))
    numbers = np.zeros(num_codes, np.int64)
    numbers[found] = np.arange(len(found))
    return found, numbers[codes]


def _seed_of(seed: int, source: int) -> int:
    digest = hashlib.blake2b(b"%d %d" % (seed, source), digest_size=8, person=b"mpload.source").digest()
    return int.from_bytes(digest, "little") >> 1
