"""Which sample comes when: the order of an epoch, computed on the fly and never stored.

`Sequential`, `Shuffle` and `BlockShuffle` are what users choose. Each gives an `Order` for (num_samples, seed, epoch):
a bijection from position to sample_id that any process can ask at any position, without a table of N entries.

Orders are a promise: the same choice, number of samples, seed and epoch give the same order in every version with the
same `_VERSION`. `tests/golden/order.json` freezes them.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError

__all__ = ["BlockShuffle", "Order", "OrderChoice", "Sequential", "Shuffle"]

_VERSION = 1
_MAX_NUM_SAMPLES = 1 << 62
_MAX_BLOCK = 1 << 31
_MAX_SEED = 1 << 63
_NUM_ROUNDS = 8  # the fewest that keep each of the 120 orders of five samples within some 5 % of equally likely


class Order(Protocol):
    """The bijection from position to sample_id in one epoch.

    Process: an order is a handful of integers: pickle it, fork it, ask it from many threads.
    """

    @property
    def num_samples(self) -> int:
        """How many positions, and as many sample_ids, there are."""

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample_ids at `positions`.

        Args:
            positions: `int64[n]`, each in `[0, num_samples)`, in any sequence; is not modified.

        Returns:
            `int64[n]`, a new array.

        Raises:
            ArgumentError: `positions` is no one-dimensional `int64` array, or a position is out of range.

        Memory: a few arrays of n elements while it runs, whatever `num_samples` is. Blocks of some thousand positions
        stay in the CPU's cache and are the fastest.
        """


class OrderChoice(Protocol):
    """What users write as `shuffle=`: gives the order of every epoch."""

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
    """Position and sample_id are the same in every epoch."""

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
    """Another permutation of all samples in every epoch, each about as likely as any other.

    A Feistel network with hashed keys permutes the smallest square that covers the samples; ids that fall outside are
    permuted again until they fall inside (cycle walking), which keeps it a bijection. After Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", CT-RSA 2002. A square exceeds N by at most 2 * sqrt(N), where a power of
    four may be four times N, and nearly all ids would be permuted again.
    """

    @property
    def spec(self) -> str:
        """The choice as a stable text that checkpoints store."""
        return "shuffle"

    def order(self, *, num_samples: int, seed: int, epoch: int) -> Order:
        """Return the order of an epoch; see `OrderChoice.order`."""
        _check_epoch(num_samples=num_samples, seed=seed, epoch=epoch)
        return _ShuffledOrder(_Permutation(num_samples, _round_keys("shuffle", seed, epoch)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShuffle:
    """Blocks of consecutive records in random order, samples shuffled within windows of such blocks.

    For shards, disks and network file systems that read sequentially faster. The positions of a window lie side by side
    and touch at most `window_blocks` blocks; a run of as many positions that starts elsewhere touches two windows, or
    three if it covers the one with the short block.

    Attributes:
        block_samples: consecutive records in a block, in `[1, 2**31)`. The last block may be short.
        window_blocks: blocks in a window, in `[1, 2**31)`. The last window may be short.
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
        blocks = _Permutation(-(-num_samples // self.block_samples), _round_keys("blocks", seed, epoch))
        return _BlockShuffledOrder(
            num_samples=num_samples,
            block_samples=self.block_samples,
            window_blocks=self.window_blocks,
            blocks=blocks,
            short_place=int(blocks.inverse(np.array([blocks.num_values - 1], np.uint64))[0]),
            window_keys=_round_keys("window", seed, epoch),
        )


@dataclass(frozen=True, slots=True)
class _Permutation:
    """A keyed permutation of `[0, num_values)`."""

    num_values: int
    keys: tuple[int, ...]

    def __call__(self, values: NDArray[np.uint64], tweaks: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """Return where each value goes; an element of `tweaks` chooses among unrelated permutations."""
        return self._walk(values ^ (values < 2) if self._swaps else values, self.keys, tweaks)

    def inverse(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return what goes to each value."""
        # a Feistel network undoes itself when its keys come in reverse
        walked = self._walk(values, self.keys[::-1], None)
        return walked ^ (walked < 2) if self._swaps else walked

    @property
    def _swaps(self) -> bool:
        """Whether 0 and 1 change places first: alone, an odd side gives even permutations only."""
        return self.num_values > 1 and self.keys[0] & 1 == 1

    def _walk(
        self, values: NDArray[np.uint64], keys: tuple[int, ...], tweaks: NDArray[np.uint64] | None
    ) -> NDArray[np.uint64]:
        side = max(2, math.isqrt(max(self.num_values, 1) - 1) + 1)
        walked = _feistel(values, side, keys, tweaks)
        outside = np.flatnonzero(walked >= self.num_values)
        while outside.size:
            again = _feistel(walked[outside], side, keys, None if tweaks is None else tweaks[outside])
            walked[outside] = again
            outside = outside[again >= self.num_values]
        return walked


@dataclass(frozen=True, slots=True)
class _SequentialOrder:
    num_samples: int

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return _checked(positions, self.num_samples).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _ShuffledOrder:
    permutation: _Permutation

    @property
    def num_samples(self) -> int:
        return self.permutation.num_values

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.permutation(_checked(positions, self.num_samples)).view(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockShuffledOrder:
    """Positions lie in a grid of whole blocks, in their shuffled places, where the short block has a gap at its end.

    Counted without the gap, cells are positions. The gap is put in behind the short block's window first, so that every
    position finds its window by division, and then, shuffled within the window, behind the short block itself.
    """

    num_samples: int
    block_samples: int
    window_blocks: int
    blocks: _Permutation  # from a block's place in the epoch to the block
    short_place: int  # of the block that lacks `gap` samples
    window_keys: tuple[int, ...]

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        num_blocks = self.blocks.num_values
        window_cells = self.window_blocks * self.block_samples
        gap = num_blocks * self.block_samples - self.num_samples
        short_window, last_window = self.short_place // self.window_blocks, (num_blocks - 1) // self.window_blocks

        cells = _checked(positions, self.num_samples).copy()
        if cells.size == 0:
            return cells.view(np.int64)
        cells[cells >= min((short_window + 1) * self.window_blocks, num_blocks) * self.block_samples - gap] += gap
        windows = cells // window_cells
        starts = windows * window_cells
        sizes = np.full_like(cells, window_cells)
        sizes[windows == last_window] = num_blocks * self.block_samples - last_window * window_cells
        sizes[windows == short_window] -= gap
        cells = starts + self._shuffled(cells - starts, sizes, _mix(windows))

        cells[(windows == short_window) & (cells >= (self.short_place + 1) * self.block_samples - gap)] += gap
        places = cells // self.block_samples
        ids = self._blocks_at(places) * self.block_samples + (cells - places * self.block_samples)
        return ids.view(np.int64)

    def due_blocks(self, start: int, stop: int, *, is_first: bool) -> tuple[list[range], list[range]]:
        """Return which blocks to read, and which are done with, as positions `start` to `stop` (exclusive) come.

        Where each stretch of positions as long as a block begins, the block a window later is due, and the one a
        window earlier has served its time; where a run begins, the blocks of its own window are due as well. So whoever
        goes through the epoch is told of each block once, however it is divided among processes.

        Args:
            start: the first position.
            stop: the position after the last one.
            is_first: whether a run begins here.

        Returns:
            The sample_ids of each block: those to read soon, and those that nobody asks for any more.
        """
        places = range(-(-start // self.block_samples), -(-stop // self.block_samples))
        coming = [place + self.window_blocks for place in places]
        if is_first:
            window = start // self.block_samples // self.window_blocks
            coming = [*range(window * self.window_blocks, (window + 1) * self.window_blocks), *coming]
        done = [place - self.window_blocks for place in places]
        return self._ranges_of(coming), self._ranges_of(done)

    def _ranges_of(self, places: list[int]) -> list[range]:
        inside = np.array([place for place in places if 0 <= place < self.blocks.num_values], np.uint64)
        starts = (self.blocks(inside) * np.uint64(self.block_samples)).tolist()
        return [range(start, min(start + self.block_samples, self.num_samples)) for start in starts]

    def _blocks_at(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the block at each place, asking once for each where many positions share few places."""
        first, stop = int(places.min()), int(places.max()) + 1
        if stop - first >= places.size:
            return self.blocks(places)
        return self.blocks(np.arange(first, stop, dtype=np.uint64))[places - first]

    def _shuffled(
        self, offsets: NDArray[np.uint64], sizes: NDArray[np.uint64], tweaks: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Shuffle offsets in their windows, by size: there are at most three."""
        shuffled = np.empty_like(offsets)
        for size in np.unique(sizes).tolist():
            same = sizes == size
            shuffled[same] = _Permutation(size, self.window_keys)(offsets[same], tweaks[same])
        return shuffled


def _feistel(
    values: NDArray[np.uint64], side: int, keys: tuple[int, ...], tweaks: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    """Permute `[0, side**2)` by a balanced Feistel network with a round for each key."""
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
        # hashed - left modulo side undoes itself; below 0 it wraps to the huge, and the smaller of the two is right
        np.subtract(hashed, left, out=left)
        np.add(left, side, out=scratch)
        np.minimum(left, scratch, out=left)
        left, right = right, left
    right *= side
    right += left
    return right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = values + np.uint64(1)  # 0 would stay 0
    _mix_in_place(mixed, np.empty_like(mixed))
    return mixed


def _mix_in_place(values: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """Hash each value so that its high bits depend on all of it: multipliers of Stafford's Mix13, as in SplitMix64."""
    values *= 0xBF58476D1CE4E5B9
    np.right_shift(values, 32, out=scratch)
    values ^= scratch
    values *= 0x94D049BB133111EB


def _round_keys(purpose: str, seed: int, epoch: int) -> tuple[int, ...]:
    """Return keys that two different (purpose, seed, epoch) have not in common."""
    digest = hashlib.blake2b(
        seed.to_bytes(8, "little") + epoch.to_bytes(8, "little"),
        digest_size=8 * _NUM_ROUNDS,
        person=f"mpload.{purpose}.{_VERSION}".encode(),
    ).digest()
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8))


def _checked(positions: NDArray[np.int64], num_samples: int) -> NDArray[np.uint64]:
    """Return a view of `positions` as `uint64`; raise `ArgumentError` if they are not what they must be."""
    if positions.ndim != 1 or positions.dtype != np.int64:
        raise ArgumentError(
            f"positions must be a one-dimensional int64 array, got {positions.dtype}{list(positions.shape)}"
        )
    unsigned: NDArray[np.uint64] = positions.view(np.uint64)  # a negative position becomes a huge one
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
