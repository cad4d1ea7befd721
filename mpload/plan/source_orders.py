"""The order in which each source of a mixture goes through its samples, lap after lap."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.plan.order import Order, OrderChoice, ShuffledOrder
from mpload.plan.permutation import Permutation
from mpload.plan.shares import NATIVE

__all__ = ["SourceOrders"]

_MAX_KEPT = 1 << 16
_MAX_COUNTED = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Permutations:
    """Several permutations, as the native module wants them."""

    nums_values: NDArray[np.uint64]
    sides: NDArray[np.uint64]
    keys: NDArray[np.uint64]


class SourceOrders:
    """The orders of all laps of all sources, for one seed. Each source has a seed of its own, derived from the run's.

    Memory: the orders of the latest laps, up to 65,536.
    """

    def __init__(self, *, lengths: tuple[int, ...], choice: OrderChoice, seed: int) -> None:
        self._lengths = lengths
        self._choice = choice
        self._seeds = [_seed_of(seed, source) for source in range(len(lengths))]
        self._orders: dict[tuple[int, int], Order] = {}
        self._latest: tuple[bytes, list[Order], _Permutations | None] = (b"", [], None)

    def ids(self, sources: NDArray[np.int64], laps: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of a sample in its source, int64 [n], for a source, a lap of it and a place in that lap."""
        if not len(sources):
            return np.empty(0, np.int64)
        first_lap = int(laps.min())
        codes = (laps - first_lap) * len(self._lengths) + sources
        found, rows = _numbered(codes)
        orders, permutations = self._orders_of(found, first_lap)
        if permutations is not None and NATIVE is not None:
            permuted = np.empty(len(places), np.uint64)
            NATIVE.permute_each(
                places.view(np.uint64),
                rows.view(np.uint64),
                permutations.nums_values,
                permutations.sides,
                permutations.keys,
                permuted,
            )
            return permuted.view(np.int64)
        ids = np.empty_like(places)
        for row, order in enumerate(orders):
            here = rows == row
            ids[here] = order.sample_ids(places[here])
        return ids

    def _orders_of(self, codes: NDArray[np.int64], first_lap: int) -> tuple[list[Order], _Permutations | None]:
        key = codes.tobytes() + first_lap.to_bytes(8, "little")
        latest = self._latest
        if latest[0] != key:
            laps, sources = np.divmod(codes, len(self._lengths))
            orders = [
                self._order(source, lap)
                for source, lap in zip(sources.tolist(), (laps + first_lap).tolist(), strict=True)
            ]
            permutations = [order.permutation for order in orders if isinstance(order, ShuffledOrder)]
            self._latest = latest = key, orders, _joined(permutations) if len(permutations) == len(orders) else None
        return latest[1:]

    def _order(self, source: int, lap: int) -> Order:
        key = source, lap
        if (found := self._orders.get(key)) is None:
            if len(self._orders) >= _MAX_KEPT:
                self._orders.clear()
            found = self._choice.order(num_samples=self._lengths[source], seed=self._seeds[source], epoch=lap)
            self._orders[key] = found
        return found


def _joined(permutations: list[Permutation]) -> _Permutations:
    return _Permutations(
        nums_values=np.array([each.num_values for each in permutations], np.uint64),
        sides=np.array([each.side for each in permutations], np.uint64),
        keys=np.array([each.keys for each in permutations], np.uint64),
    )


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
