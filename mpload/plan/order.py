"""The order of the samples in an epoch, computed on the fly and never stored.

Users choose `Sequential`, `Shuffle` or `BlockShuffle`. Each returns an `Order` for (num_samples, seed, epoch): a
bijection from position to sample_id. Any process can evaluate it at any position, without a table of N entries.

Orders are a promise: the same choice, number of samples, seed and epoch give the same order in every version with the
same `_VERSION`. `tests/golden/order.json` records them.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.permutation import Permutation, mixed

__all__ = [
    "BlockShuffle",
    "Order",
    "OrderChoice",
    "Sequential",
    "Shuffle",
    "ShuffledOrder",
    "checked_positions",
    "round_keys",
]

_VERSION = 1
_MAX_NUM_SAMPLES = 1 << 62
_MAX_BLOCK = 1 << 31
_MAX_SEED = 1 << 63
_NUM_ROUNDS = 8  # the fewest for which each of the 120 orders of five samples is within about 5 % of equally likely


class Order(Protocol):
    """The bijection from position to sample_id in one epoch.

    Process: an order consists of a few integers. It may be pickled, forked and used by many threads.
    """

    @property
    def num_samples(self) -> int:
        """The number of positions, which is also the number of sample_ids."""

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample_ids at `positions`.

        Args:
            positions: `int64[n]`, each in `[0, num_samples)`, in any sequence. It is not modified.

        Returns:
            `int64[n]`, a new array. An id of `num_samples` or greater is that of a repeated draw: modulo the number of
            samples of the index, it says which sample it is, and its random numbers are others.

        Raises:
            ArgumentError: `positions` is not a one-dimensional `int64` array, or a position is out of range.

        Memory: a few temporary arrays of n elements, regardless of `num_samples`. Calls with a few thousand positions
        are fastest, because their arrays stay in the CPU's cache.
        """


class OrderChoice(Protocol):
    """A choice that users pass as `shuffle=`. It determines the order of every epoch."""

    @property
    def spec(self) -> str:
        """The choice as a stable text that checkpoints store."""

    def order(self, *, num_samples: int, seed: int, epoch: int) -> Order:
        """Return the order of an epoch.

        Args:
            num_samples: in `[0, 2**62]`.
            seed: in `[0, 2**63)`.
            epoch: in `[0, 2**63)`.

        Raises:
            ArgumentError: a value is out of range.
        """


@dataclass(frozen=True, slots=True)
class Sequential:
    """Samples come in the order of the index in every epoch: position and sample_id are equal."""

    @property
    def spec(self) -> str:
        """The choice as a stable text that checkpoints store."""
        return "sequential"

    def order(self, *, num_samples: int, seed: int, epoch: int) -> Order:
        """Return the order of an epoch; see `OrderChoice.order`."""
        _check_epoch(num_samples=num_samples, seed=seed, epoch=epoch)
        return _SequentialOrder(num_samples)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A different permutation of all samples in every epoch. All permutations are about equally likely.

    The algorithm is from Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002. A Feistel network
    with hashed keys permutes `[0, side**2)`, the smallest such range that covers the N samples. Ids that fall outside
    `[0, N)` are permuted again until they fall inside (cycle walking), which preserves the bijection. A square exceeds
    N by at most 2 * sqrt(N). A power of four could be nearly 4 * N, so that most ids would be permuted several times.
    """

    @property
    def spec(self) -> str:
        """The choice as a stable text that checkpoints store."""
        return "shuffle"

    def order(self, *, num_samples: int, seed: int, epoch: int) -> Order:
        """Return the order of an epoch; see `OrderChoice.order`."""
        _check_epoch(num_samples=num_samples, seed=seed, epoch=epoch)
        return ShuffledOrder(Permutation(num_samples, round_keys("shuffle", seed, epoch)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShuffle:
    """Shuffles blocks of consecutive records, then shuffles the samples within windows of several blocks.

    Use it for shards, disks and network file systems that are faster at sequential reads. The positions of a window are
    consecutive and touch at most `window_blocks` blocks. An equally long run of positions that starts inside a window
    touches two windows, or three if it covers the window with the short block.

    Attributes:
        block_samples: number of consecutive records in a block, in `[1, 2**31)`. The last block may be shorter.
        window_blocks: number of blocks in a window, in `[1, 2**31)`. The last window may be shorter.
    """

    block_samples: int
    window_blocks: int

    def __post_init__(self) -> None:
        _check_range("block_samples", self.block_samples, 1, _MAX_BLOCK)
        _check_range("window_blocks", self.window_blocks, 1, _MAX_BLOCK)

    @property
    def spec(self) -> str:
        """The choice as a stable text that checkpoints store."""
        return f"block_shuffle(block_samples={self.block_samples},window_blocks={self.window_blocks})"

    def order(self, *, num_samples: int, seed: int, epoch: int) -> Order:
        """Return the order of an epoch; see `OrderChoice.order`."""
        _check_epoch(num_samples=num_samples, seed=seed, epoch=epoch)
        if num_samples == 0:
            return _SequentialOrder(0)
        blocks = Permutation(-(-num_samples // self.block_samples), round_keys("blocks", seed, epoch))
        return _BlockShuffledOrder(
            num_samples=num_samples,
            block_samples=self.block_samples,
            window_blocks=self.window_blocks,
            blocks=blocks,
            short_place=int(blocks.inverse(np.array([blocks.num_values - 1], np.uint64))[0]),
            window_keys=round_keys("window", seed, epoch),
        )


@dataclass(frozen=True, slots=True)
class _SequentialOrder:
    num_samples: int

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return checked_positions(positions, self.num_samples).astype(np.int64)


@dataclass(frozen=True, slots=True)
class ShuffledOrder:
    """The order of an epoch of `Shuffle`."""

    permutation: Permutation

    @property
    def num_samples(self) -> int:
        """The number of positions, which is also the number of sample_ids."""
        return self.permutation.num_values

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample_ids at `positions`; see `Order.sample_ids`."""
        return self.permutation(checked_positions(positions, self.num_samples)).view(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockShuffledOrder:
    """Maps positions to the cells of a grid: one row of `block_samples` cells per block, in shuffled block order.

    The short block leaves a gap of unused cells at the end of its row. If the gap is not counted, a cell's number is
    its position. The gap is first inserted after the short block's window, so that division finds the window of every
    position. After the shuffle within the window, the gap moves to its real place, after the short block itself.
    """

    num_samples: int
    block_samples: int
    window_blocks: int
    blocks: Permutation  # maps a place in the epoch to the block at that place
    short_place: int  # place of the block that is `gap` samples short
    window_keys: tuple[int, ...]

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        num_blocks = self.blocks.num_values
        window_cells = self.window_blocks * self.block_samples
        gap = num_blocks * self.block_samples - self.num_samples
        short_window, last_window = self.short_place // self.window_blocks, (num_blocks - 1) // self.window_blocks

        cells = checked_positions(positions, self.num_samples).copy()
        if cells.size == 0:
            return cells.view(np.int64)
        cells[cells >= min((short_window + 1) * self.window_blocks, num_blocks) * self.block_samples - gap] += gap
        windows = cells // window_cells
        starts = windows * window_cells
        sizes = np.full_like(cells, window_cells)
        sizes[windows == last_window] = num_blocks * self.block_samples - last_window * window_cells
        sizes[windows == short_window] -= gap
        cells = starts + self._shuffled(cells - starts, sizes, mixed(windows))

        cells[(windows == short_window) & (cells >= (self.short_place + 1) * self.block_samples - gap)] += gap
        places = cells // self.block_samples
        ids = self._blocks_at(places) * self.block_samples + (cells - places * self.block_samples)
        return ids.view(np.int64)

    def due_blocks(
        self,
        start: int,
        stop: int,
        *,
        is_first: bool,
        is_last: bool = False,
        max_blocks: int | None = None,
        is_shared: bool = True,
    ) -> tuple[list[range], list[range]]:
        """Return which blocks to load before positions `start` to `stop` (exclusive), and which to free after them.

        A block is needed from the first to the last position of its window. With enough memory, it is loaded one window
        before that, one block whenever as many positions have passed, and freed at the same pace. With less memory, the
        blocks for which there is no room are loaded when their window begins, and as many are freed at once. So every
        block of a run is loaded once and freed once, however the positions are divided among processes.

        Args:
            start: the first position.
            stop: the position after the last one.
            is_first: whether a run starts here.
            is_last: whether the epoch ends here; all blocks are freed then.
            max_blocks: the most blocks that memory holds, at least `window_blocks`; None means that it holds all.
            is_shared: whether other ranks share the memory. They may be behind by some batches. If there are none, all
                blocks of a window are freed when the next one begins: on a slow disk, most of the time is then spent
                on waiting for the blocks of that one, and their place is needed.

        Returns:
            Two lists with the sample_ids of each block: the blocks to load and the blocks to free.
        """
        window = self.window_blocks
        late = -1 if max_blocks is None else min(max(2 * window - max_blocks, -1), window)
        before, last = (-(-self._cell(position) // self.block_samples) - 1 for position in (start, stop))
        loaded = (
            self._cell(start) // self.block_samples // window * window if is_first else self._num_loaded(before, late)
        )
        coming = range(loaded, self._num_loaded(last, late))
        freed_late = late if is_shared else window
        freed = self.blocks.num_values if is_last else self._num_freed(last, freed_late)
        done = range(self._num_freed(before, freed_late), freed)
        return self._ranges_of(coming), self._ranges_of(done)

    def window_end(self, block: range) -> int:
        """Return a position after the last one at which a sample of a block is used, and before the next window's end.

        Args:
            block: the sample_ids of the block.
        """
        number = np.array([block.start // self.block_samples], np.uint64)
        return (int(self.blocks.inverse(number)[0]) // self.window_blocks + 1) * self.window_blocks * self.block_samples

    def _cell(self, position: int) -> int:
        """Return the cell of a position; within the short block's window, the gap is not counted."""
        num_blocks = self.blocks.num_values
        gap = num_blocks * self.block_samples - self.num_samples
        stop_place = min((self.short_place // self.window_blocks + 1) * self.window_blocks, num_blocks)
        return position + gap if position >= stop_place * self.block_samples - gap else position

    def _num_loaded(self, place: int, late: int) -> int:
        """Return how many blocks are loaded before the block at `place` has its turn, the window's `late` ones late."""
        window, at = divmod(place, self.window_blocks)
        return (window + 1) * self.window_blocks + min(at + 1, self.window_blocks - max(late, 0))

    def _num_freed(self, place: int, late: int) -> int:
        """Return how many blocks are freed when the block at `place` has its turn."""
        window, at = divmod(place, self.window_blocks)
        return max(0, (window - 1) * self.window_blocks + min(at + 1 + late, self.window_blocks))

    def _ranges_of(self, places: range) -> list[range]:
        inside = np.arange(max(places.start, 0), min(places.stop, self.blocks.num_values), dtype=np.uint64)
        starts = (self.blocks(inside) * np.uint64(self.block_samples)).tolist()
        return [range(start, min(start + self.block_samples, self.num_samples)) for start in starts]

    def _blocks_at(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the block at each place. If many positions share few places, each place is evaluated once."""
        first, stop = int(places.min()), int(places.max()) + 1
        if stop - first >= places.size:
            return self.blocks(places)
        return self.blocks(np.arange(first, stop, dtype=np.uint64))[places - first]

    def _shuffled(
        self, offsets: NDArray[np.uint64], sizes: NDArray[np.uint64], tweaks: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Shuffle offsets within their windows, one window size at a time. There are at most three sizes."""
        shuffled = np.empty_like(offsets)
        for size in np.unique(sizes).tolist():
            same = sizes == size
            shuffled[same] = Permutation(size, self.window_keys)(offsets[same], tweaks[same])
        return shuffled


def round_keys(purpose: str, seed: int, epoch: int) -> tuple[int, ...]:
    """Return the round keys, which are unrelated for different (purpose, seed, epoch)."""
    digest = hashlib.blake2b(
        seed.to_bytes(8, "little") + epoch.to_bytes(8, "little"),
        digest_size=8 * _NUM_ROUNDS,
        person=f"mpload.{purpose}.{_VERSION}".encode(),
    ).digest()
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8))


def checked_positions(positions: NDArray[np.int64], num_samples: int) -> NDArray[np.uint64]:
    """Return a view of `positions` as `uint64`; raise `ArgumentError` if they are invalid."""
    if positions.ndim != 1 or positions.dtype != np.int64:
        raise ArgumentError(
            f"positions must be a one-dimensional int64 array, got {positions.dtype}{list(positions.shape)}"
        )
    unsigned: NDArray[np.uint64] = positions.view(np.uint64)  # makes a negative position huge
    if unsigned.size and int(unsigned.max()) >= num_samples:
        wrong = int(positions[unsigned >= num_samples][0])
        raise ArgumentError(f"positions must be in [0, {num_samples}), got {wrong}")
    return unsigned


def _check_epoch(*, num_samples: int, seed: int, epoch: int) -> None:
    _check_range("num_samples", num_samples, 0, _MAX_NUM_SAMPLES + 1)
    _check_range("seed", seed, 0, _MAX_SEED)
    _check_range("epoch", epoch, 0, _MAX_SEED)


def _check_range(name: str, value: object, first: int, stop: int) -> None:
    if not isinstance(value, int) or not first <= value < stop:
        raise ArgumentError(f"{name} must be an integer in [{first}, {stop}), got {value!r}")
