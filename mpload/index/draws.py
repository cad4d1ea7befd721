"""The order of weighted draws with replacement, over a table in a file.

The table has two levels. An alias table chooses a block of rows, and the block's own alias table chooses the row. So it
is built block by block, in constant memory. Every draw is a function of seed, epoch and position.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, IndexChangedError
from mpload.plan.alias import MAX_ITEMS, alias_table, drawn, uniform
from mpload.plan.order import checked_positions, round_keys
from mpload.plan.ranges import MAX_SEED, check_range

__all__ = ["BLOCK_ROWS", "DrawChoice", "DrawTable", "write_table"]

BLOCK_ROWS: Final = 1 << 16
_HEAD_BYTES: Final = 4096
_ENTRY_BYTES: Final = 8
_AGAIN: Final = "Open the dataset again"
_SLOT_BITS: Final = 44  # of 64; times an item count of up to 20 bits, they do not overflow


def write_table(
    file: BinaryIO, blocks: Iterable[NDArray[np.float64]], *, num_samples: int, facts: Mapping[str, Any]
) -> str:
    """Write the table of a distribution, and return a digest of the weights.

    Args:
        file: an empty file.
        blocks: the weights, float64 [BLOCK_ROWS] each; the last may be shorter.
        num_samples: number of weights.
        facts: what `facts_of` returns, beside the digest; as JSON, up to 4,000 bytes.

    Raises:
        ArgumentError: all weights are 0, or there are too many of them.

    Memory: a few megabytes.
    """
    num_blocks = -(-num_samples // BLOCK_ROWS)
    if num_blocks > MAX_ITEMS:
        raise ArgumentError(f"{num_samples} samples are more than the limit of {MAX_ITEMS * BLOCK_ROWS} for weights")
    file.seek(_HEAD_BYTES + num_blocks * _ENTRY_BYTES)
    totals = np.zeros(num_blocks)
    digest = hashlib.blake2b(digest_size=16)
    for number, weights in enumerate(blocks):
        digest.update(weights.tobytes())
        totals[number] = np.cumsum(weights)[-1]
        file.write(alias_table(weights).tobytes())
    if not totals.any():
        raise ArgumentError("all weights are 0, so that no sample can be drawn. Give some samples a weight above 0")
    head = json.dumps({**facts, "digest": digest.hexdigest()}).encode()
    file.seek(0)
    file.write(head.ljust(_HEAD_BYTES) + alias_table(totals).tobytes())
    return digest.hexdigest()


def facts_of(path: Path, *, num_samples: int) -> dict[str, Any]:
    """Return what was passed to `write_table`, and the digest of the weights.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no table of so many samples.
    """
    with path.open("rb") as file:
        facts = json.loads(file.read(_HEAD_BYTES))
        num_bytes = file.seek(0, os.SEEK_END)
    if num_bytes != _HEAD_BYTES + _ENTRY_BYTES * (-(-num_samples // BLOCK_ROWS) + num_samples):
        raise ValueError("its size is wrong")
    return dict(facts)


@dataclass(frozen=True, kw_only=True)
class DrawTable:
    """A table in a file, mapped into memory when it is first used.

    Process: may be forked, or pickled and sent to any process of the same machine. All share the pages.
    """

    path: Path
    num_samples: int
    digest: str
    """Digest of the weights."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks of rows."""
        return -(-self.num_samples // BLOCK_ROWS)

    @cached_property
    def _entries(self) -> NDArray[np.uint64]:
        try:
            entries = np.memmap(self.path, np.uint64, mode="r", offset=_HEAD_BYTES)
            is_same = facts_of(self.path, num_samples=self.num_samples)["digest"] == self.digest
        except (OSError, ValueError, LookupError) as error:
            raise IndexChangedError(f"{self.path}: the table of weights cannot be read: {error}. {_AGAIN}") from error
        if not is_same:
            raise IndexChangedError(f"{self.path}: the weights were changed during the run. {_AGAIN}")
        return entries

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

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_entries"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with suppress(IndexChangedError):  # raised again when it is used
            _ = self._entries  # mapped at once, for processes that are forked after the file was replaced


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

    def order(self, *, num_samples: int, seed: int, epoch: int) -> "_DrawnOrder":
        """Return the order of an epoch; see `OrderChoice.order`."""
        check_range("num_samples", num_samples, self.table.num_samples, self.table.num_samples + 1)
        check_range("seed", seed, 0, MAX_SEED)
        check_range("epoch", epoch, 0, MAX_SEED)
        return _DrawnOrder(table=self.table, keys=round_keys("draw", seed, epoch))

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnOrder:
    table: DrawTable
    keys: tuple[int, ...]

    @property
    def num_samples(self) -> int:
        return self.table.num_samples

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.table.draw(checked_positions(positions, self.num_samples), self.keys)
