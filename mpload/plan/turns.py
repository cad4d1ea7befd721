"""Which source has its turn at each position of a run, and which turn of that source it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.order import round_keys
from mpload.plan.permutation import Permutation, mixed
from mpload.plan.shares import Block, Shares

__all__ = ["Phase", "Turns", "check_known"]

_WINDOW_POSITIONS = 64
_NUM_PERMUTATIONS = 1024
_KEPT_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """From a position on, counted over all epochs, these shares hold."""

    start: int
    shares: Shares
    counts: tuple[int, ...] = ()
    """The number of turns that each source had before. It is empty where the phases before this one tell it."""

    @classmethod
    def of_state(
        cls, start: int, parts: Sequence[int], counts: Sequence[int] = (), owed: Sequence[int] = ()
    ) -> "Phase":
        """Return the phase that a checkpoint stores in this form."""
        return cls(start=start, shares=Shares(tuple(parts), tuple(owed)), counts=tuple(counts))

    def in_state(self) -> tuple[int | tuple[int, ...], ...]:
        """Return the form in which checkpoints store it."""
        short = self.start, self.shares.parts
        return (*short, self.counts, self.shares.owed) if self.counts else short


def check_known(position: int, first: int) -> None:
    """Raise `ArgumentError` if a position comes before the first one at which the weights are known."""
    if position < first:
        raise ArgumentError(
            f"this run of a mixture knows its weights from sample {first} on, counted over all epochs, and sample "
            f"{position} was asked for: weights have changed often since. Load a checkpoint from then"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """The sources of consecutive positions, and the turn that each has there, counted from the start of the run."""

    first: int
    sources: NDArray[np.uint16]
    turns: NDArray[np.int64]


class Turns:
    """The turns of all sources, for the phases of a run. Windows of 64 positions are permuted, by the seed.

    Each phase divides its positions by its shares, and goes on with each source where the phase before has left it.
    A source that has had less than its share by then gets the rest at the beginning of the phase. One that has had more
    waits longer.

    Args:
        phases: the phases.
        seed: the run's seed.
        counts: the number of turns of each source before the first phase; None if it starts at 0.
        num_positions: the number of positions of the only phase after which each source must have exactly its share;
            None if there is no such place. The window that contains it is not permuted.
        known: turns with the same `counts`. If they have the same seed and begin with the same phases, this is faster.

    Memory: the latest three blocks of positions (see `Shares`), 10 bytes each, and 512 KiB for the permutations.
    """

    def __init__(
        self,
        phases: tuple[Phase, ...],
        *,
        seed: int,
        counts: Sequence[int] | None = None,
        num_positions: int | None = None,
        known: "Turns | None" = None,
    ) -> None:
        self._phases = phases
        self._num_positions = num_positions
        self._seed = seed
        self._blocks: dict[tuple[int, int], _Table] = {}
        self._made_last: dict[int, Block] = {}
        self._known: tuple[int, NDArray[np.int64]] = (-1, np.empty((0, 0), np.int64))
        self._starts = np.array([phase.start for phase in phases], np.int64)
        self._bases = [np.array(counts or phases[0].counts or [0] * len(phases[0].shares.parts), np.int64)]
        self._shares = [phases[0].shares]
        if known is not None:
            bases, shares = known.of_same(phases, seed=seed)
            self._bases += bases[1:]
            self._shares += shares[1:]
        for number in range(len(self._bases) - 1, len(phases) - 1):
            phase, following = phases[number : number + 2]
            num_held = following.start - phase.start
            self._bases.append(self._counts_in(number, num_held))
            had = (self._bases[number + 1] - self._bases[number]).tolist()
            self._shares.append(following.shares.after(self._shares[number], num_held, had))

    def of_same(self, phases: tuple[Phase, ...], *, seed: int) -> tuple[list[NDArray[np.int64]], list[Shares]]:
        """Return the counts before each of the first phases that are the same here, and its shares."""
        pairs = zip(self._phases, phases, strict=False)
        num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) if seed == self._seed else 0
        return self._bases[:num_same], self._shares[:num_same]

    def at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each position, counted over all epochs, and its turn: two int64 [n]."""
        sources, turns = np.empty_like(positions), np.empty_like(positions)
        todo = np.arange(len(positions))
        while todo.size:
            table = self._table_at(int(positions[todo[0]]))
            places = positions[todo] - table.first
            here = (places >= 0) & (places < len(table.sources))
            sources[todo[here]] = table.sources[places[here]]
            turns[todo[here]] = table.turns[places[here]]
            todo = todo[~here]
        return sources, turns

    def counts_before(self, position: int) -> NDArray[np.int64]:
        """Return the number of turns of each source before `position`, int64 [num_sources]."""
        number = self._phase_at(position)
        return self._counts_in(number, position - self._phases[number].start)

    def phase(self, number: int) -> Phase:
        """Return a phase in a form that needs none of the phases before it."""
        counts = tuple(self._bases[number].tolist())
        return Phase(start=self._phases[number].start, shares=self._shares[number], counts=counts)

    def _phase_at(self, position: int) -> int:
        check_known(position, int(self._starts[0]))
        return int(np.searchsorted(self._starts, position, side="right")) - 1

    def _counts_in(self, number: int, position: int) -> NDArray[np.int64]:
        """Return the number of turns before a position of phase `number`."""
        shares = self._shares[number]
        block, place = divmod(position, shares.block_positions)
        counts: NDArray[np.int64] = self._bases[number] + np.array(shares.counts_at(position - place), np.int64)
        if place:
            counts += np.bincount(self._block(number, block).sources[:place], minlength=len(counts))
        return counts

    def _table_at(self, position: int) -> _Table:
        """Return the table that contains a position. It ends where the phase does."""
        number = self._phase_at(position)
        phase = self._phases[number]
        table = self._block(number, (position - phase.start) // phase.shares.block_positions)
        if number + 1 == len(self._phases):
            return table
        num_left = self._phases[number + 1].start - table.first
        return _Table(first=table.first, sources=table.sources[:num_left], turns=table.turns[:num_left])

    def _block(self, number: int, block: int) -> _Table:
        key = number, block
        if (found := self._blocks.get(key)) is None:
            found = self._made(number, block)
            kept = list(self._blocks.items())[1 - _KEPT_BLOCKS :]
            self._blocks = {**dict(kept), key: found}
        return found

    def _made(self, number: int, block: int) -> _Table:
        phase, shares = self._phases[number], self._shares[number]
        num_made = shares.block_positions
        if number + 1 < len(self._phases):  # no more than whole windows that begin before the next phase
            num_left = self._phases[number + 1].start - phase.start - block * num_made
            num_made = min(num_made, -(-num_left // _WINDOW_POSITIONS) * _WINDOW_POSITIONS)
        made = shares.block(block, before=self._made_last.get(number), num_made=num_made)
        self._made_last = {number: made}
        sources = made.sources[self._permuted(number, block, len(made.sources))]
        in_order = np.argsort(sources, kind="stable")
        counts = np.bincount(sources, minlength=len(made.counts))
        before = self._bases[number] + np.array(made.counts, np.int64) - (np.cumsum(counts) - counts)
        turns = np.empty(len(sources), np.int64)
        turns[in_order] = np.arange(len(sources)) + np.repeat(before, counts)
        return _Table(first=phase.start + block * shares.block_positions, sources=sources, turns=turns)

    def _permuted(self, number: int, block: int, num_made: int) -> NDArray[np.int64]:
        """Return, for each place of a block, the one to which its window is permuted. A short last one stays."""
        num_positions = self._shares[number].block_positions
        num_windows = num_made // _WINDOW_POSITIONS
        first_window = block * (num_positions // _WINDOW_POSITIONS)
        if self._num_positions is not None:
            num_left = self._num_positions - block * num_positions
            num_windows = max(0, min(num_windows, num_left // _WINDOW_POSITIONS))
        windows = np.arange(num_windows, dtype=np.uint64) + np.uint64(first_window)
        chosen = self._permutations(number, (mixed(windows) >> np.uint64(32)) % np.uint64(_NUM_PERMUTATIONS))
        places = np.arange(num_made)
        inside = places[: num_windows * _WINDOW_POSITIONS].reshape(num_windows, _WINDOW_POSITIONS)
        inside += chosen - np.arange(_WINDOW_POSITIONS)
        return places

    def _permutations(self, number: int, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return those of the 1,024 permutations of a window, int64 [num_rows, 64]."""
        known = self._known
        if known[0] == number:
            return known[1][rows]
        if 4 * len(rows) < _NUM_PERMUTATIONS:  # as many phases are short
            return self._made_permutations(number, rows)
        known = number, self._made_permutations(number, np.arange(_NUM_PERMUTATIONS, dtype=np.uint64))
        self._known = known  # which another thread may replace at once
        return known[1][rows]

    def _made_permutations(self, number: int, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        tweaks = np.repeat(mixed(rows), _WINDOW_POSITIONS)
        offsets = np.tile(np.arange(_WINDOW_POSITIONS, dtype=np.uint64), len(rows))
        keys = round_keys("mixture", self._seed, self._phases[number].start)
        return Permutation(_WINDOW_POSITIONS, keys)(offsets, tweaks).view(np.int64).reshape(-1, _WINDOW_POSITIONS)
