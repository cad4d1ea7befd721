"""The order of weighted draws with replacement, over a table in a file.

The table has two levels. An alias table chooses a block of rows, and the block's own alias table chooses the row. So it
is built block by block, in constant memory. Every draw is a function of seed, epoch and position.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final, Self

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.table_files import BLOCK_ROWS, ENTRY_BYTES, HEAD_BYTES, MappedTable, write_head
from mpload.plan.alias import MAX_ITEMS, alias_table, drawn, uniform
from mpload.plan.order import checked_positions, round_keys
from mpload.plan.ranges import MAX_SEED, check_range
from mpload.plan.repeats import repeated

__all__ = ["DrawChoice", "DrawTable", "write_table"]

_SLOT_BITS: Final = 44  # of 64; times an item count of up to 20 bits, they do not overflow


def write_table(
    file: BinaryIO,
    blocks: Iterable[NDArray[np.float64]],
    *,
    num_samples: int,
    facts: Mapping[str, Any],
    what: str = "weights",
) -> str:
    """Write the table of a distribution, and return a digest of the weights.

    Args:
        file: an empty file.
        blocks: the weights, float64 [BLOCK_ROWS] each; the last may be shorter.
        num_samples: number of weights.
        facts: what the head holds, beside the number of entries and the digest.
        what: what the weights belong to, for messages.

    Raises:
        ArgumentError: all weights are 0, or there are too many of them.

    Memory: a few megabytes.
    """
    num_blocks = -(-num_samples // BLOCK_ROWS)
    if num_blocks > MAX_ITEMS:
        raise ArgumentError(f"{num_samples} samples are more than the limit of {MAX_ITEMS * BLOCK_ROWS} for weights")
    file.seek(HEAD_BYTES + num_blocks * ENTRY_BYTES)
    totals = np.zeros(num_blocks)
    digest = hashlib.blake2b(digest_size=16)
    for number, weights in enumerate(blocks):
        digest.update(weights.tobytes())
        totals[number] = np.cumsum(weights)[-1]
        file.write(alias_table(weights).tobytes())
    if not totals.any():
        raise ArgumentError(
            f"{what}: all weights are 0, so that no sample can be drawn. Give some samples a weight above 0"
        )
    num_entries = num_blocks + num_samples
    file.seek(HEAD_BYTES)
    file.write(alias_table(totals).tobytes())
    write_head(file, {**facts, "num_entries": num_entries, "digest": digest.hexdigest()})
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class DrawTable(MappedTable):
    """The alias tables."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks of rows."""
        return -(-self.num_samples // BLOCK_ROWS)

    @property
    def _entries(self) -> NDArray[np.uint64]:
        return self.entries.view(np.uint64)

    def draw(self, positions: NDArray[np.uint64], keys: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the row drawn at each position, int64 [n]."""
        if not positions.size:
            return np.empty(0, np.int64)
        blocks = np.zeros(len(positions), np.uint64)
        if self.num_blocks > 1:
            slots = _slots(uniform(positions, keys[0]), np.uint64(self.num_blocks))
            blocks = drawn(slots, uniform(positions, keys[1]), self._entries[slots])
        starts = blocks * np.uint64(BLOCK_ROWS)
        sizes = np.minimum(np.uint64(self.num_samples) - starts, np.uint64(BLOCK_ROWS))
        slots = _slots(uniform(positions, keys[2]), sizes)
        entries = self._entries[starts + slots + np.uint64(self.num_blocks)]
        return (starts + drawn(slots, uniform(positions, keys[3]), entries)).view(np.int64)


def _slots(uniform_numbers: NDArray[np.uint64], counts: Any) -> NDArray[np.uint64]:
    """Return a number in [0, count) for each uniform number of 64 bits."""
    slots: NDArray[np.uint64] = (uniform_numbers >> np.uint64(64 - _SLOT_BITS)) * counts >> np.uint64(_SLOT_BITS)
    return slots


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawChoice:
    """The order of draws from one table: an `OrderChoice`."""

    spec: str
    table: DrawTable
    shown: str
    """How the user wrote it."""
    epoch_samples: int = 0
    """The number of draws of an epoch; 0 stands for as many as the index has samples."""

    def with_epoch(self, epoch_samples: int) -> Self:
        """Return the same order in epochs of another length."""
        return replace(self, spec=f"{self.spec},epoch_samples={epoch_samples}", epoch_samples=epoch_samples)

    def order(self, *, num_samples: int, seed: int, epoch: int) -> "_DrawnOrder":
        """Return the order of an epoch; see `OrderChoice.order`."""
        num_draws = self.epoch_samples or self.table.num_samples
        check_range("num_samples", num_samples, num_draws, num_draws + 1)
        check_range("seed", seed, 0, MAX_SEED)
        check_range("epoch", epoch, 0, MAX_SEED)
        return _DrawnOrder(num_samples=num_draws, table=self.table, keys=round_keys("draw", seed, epoch))

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnOrder:
    num_samples: int
    table: DrawTable
    keys: tuple[int, ...]

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = self.table.draw(checked_positions(positions, self.num_samples), self.keys)
        return repeated(rows, positions, self.table.num_samples)
