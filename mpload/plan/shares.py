"""Divides positions among sources by weight, so that no prefix deviates from the weights by a whole sample.

Source s with share w has its turn number j (from 0) at one of the positions `floor(j/w)` to `ceil((j+1)/w) - 1`.
Then, for every p, its number of samples among the first p positions deviates from `w * p` by less than 1. To give each
position to the source whose turn must come first always keeps these limits: with one position at a time and shares that
sum to 1, the earliest deadline first meets all deadlines (Liu and Layland, JACM 1973; Tijdeman, Discrete Math. 1980).

That would take all positions in order. So that any position is found directly, positions are divided into blocks, and
it is computed for each block alone which turns are taken before it begins. A turn whose limits lie on both sides of a
boundary is taken either before or after it. The choice has to leave room for the others on both sides: among the turns
in order of their deadlines, and in order of their first positions too, every prefix must contain as many turns taken
before the boundary as their shares of it sum to, rounded down. Such a choice exists, because a flow through a network
whose capacities are integers can be made of integers (`mpload.plan.boundaries`). Blocks are so long that no turn
crosses two boundaries.

Where shares change, a source may have had a little more or less than its share. The shares that follow begin with what
each source is owed: its turns come that much earlier or later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.native import native_module
from mpload.plan.boundaries import taken_before

__all__ = ["MAX_SOURCES", "NATIVE", "Block", "Shares"]

MAX_SOURCES = 1 << 16
_BLOCK_POSITIONS = 1 << 15
_MAX_BLOCK_POSITIONS = 1 << 20
_MAX_TOTAL = 1 << 40  # times the positions of a block, it must fit into 64 bits
_DEBT_UNITS = 1 << 26


class _Native(Protocol):
    """The module `mpload.plan._mixture`."""

    def assign(
        self,
        parts: NDArray[np.int64],
        rests: NDArray[np.int64],
        turns: NDArray[np.int64],
        nums_left: NDArray[np.int64],
        total: int,
        num_positions: int,
        sources: NDArray[np.uint16],
    ) -> None: ...
    def permute_each(
        self,
        values: NDArray[np.uint64],
        rows: NDArray[np.uint64],
        nums_values: NDArray[np.uint64],
        sides: NDArray[np.uint64],
        keys: NDArray[np.uint64],
        permuted: NDArray[np.uint64],
    ) -> None: ...


NATIVE: Final[_Native | None] = native_module("plan._mixture")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """The sources of consecutive positions."""

    first: int
    """The first position."""
    sources: NDArray[np.uint16]
    """uint16 [n]: the source of each position."""
    counts: tuple[int, ...]
    """By source, its number of samples before the first position."""
    counts_after: tuple[int, ...]
    """The same before the position after the last one of the whole block; empty if only its beginning was made."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of sources as integers: each source gets `part` of every `sum(parts)` samples.

    Attributes:
        parts: the shares.
        owed: what each source is owed at position 0, in units of `1 / (total * scale)` samples; they sum to 0. Nothing
            if it is empty.

    Memory: a block of positions, 2 bytes each, while it is computed. A block has 2^15 positions, or up to 2^20 if a
    source has a share of less than 2^-14.

    Raises:
        ArgumentError: there are too many sources, or a share is too small.
    """

    parts: tuple[int, ...]
    owed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < len(self.parts) <= MAX_SOURCES:
            raise ArgumentError(f"a mixture must have 1 to {MAX_SOURCES} sources, got {len(self.parts)}")
        if min(self.parts) < 0 or not 0 < self.total < 2 * _MAX_TOTAL:
            raise ArgumentError(f"the parts of a mixture must be at least 0 and sum to at least 1, got {self.parts}")
        if 2 * self._least_positions > _MAX_BLOCK_POSITIONS:
            raise ArgumentError(
                f"the smallest weight is a share of 1 in {self._least_positions}, but a share must be 0 or at least 1 "
                f"in {_MAX_BLOCK_POSITIONS // 2}. Raise the weight, or leave the source out"
            )
        if self.owed and not self._may_owe():
            raise ArgumentError(f"what {len(self.parts)} sources are owed must sum to 0, got {self.owed!r:.200}")

    @classmethod
    def of(cls, weights: Sequence[float | Fraction]) -> "Shares":
        """Return the shares of these weights: exact if they are short decimals, otherwise rounded to 1 in 10^12."""
        exact = [weight if isinstance(weight, Fraction) else Fraction(str(weight)) for weight in weights]
        scale = math.lcm(*(weight.denominator for weight in exact))
        parts = [int(weight * scale) for weight in exact]
        total = sum(parts)
        if total > _MAX_TOTAL:
            parts = [max(1, round(Fraction(part * _MAX_TOTAL, total))) if part else 0 for part in parts]
        divisor = math.gcd(*parts) or 1
        return cls(tuple(part // divisor for part in parts))

    @classmethod
    def exactly(cls, counts: Sequence[int]) -> "Shares":
        """Return the shares with which so many positions of each source make an epoch."""
        divisor = math.gcd(*counts) or 1
        return cls(tuple(count // divisor for count in counts))

    @property
    def total(self) -> int:
        """The number of positions after which every source has exactly its part."""
        return sum(self.parts)

    @property
    def scale(self) -> int:
        """The finer units in which debts are counted, so that rounding them does not add up over many changes."""
        return self._debt_scale if self.owed else 1

    @property
    def _debt_scale(self) -> int:
        return max(1, _DEBT_UNITS // self.total)

    def _may_owe(self) -> bool:
        if len(self.owed) != len(self.parts) or sum(self.owed) != 0:
            return False
        limit = self.scale * self.block_positions
        most = limit * self.total
        pairs = zip(self.parts, self.owed, strict=True)
        return all(-limit * part <= owed <= most if part else not owed for part, owed in pairs)

    def after(self, earlier: "Shares", num_positions: int, counts: Sequence[int]) -> "Shares":
        """Return these shares for the positions after the first ones of `earlier`.

        Args:
            earlier: the shares that held before, with what was owed then.
            num_positions: for how many positions they held.
            counts: how many of these positions each source got.
        """
        unit, factor = earlier.total * earlier.scale, earlier.scale * num_positions
        wanted = (part * factor for part in earlier.parts)
        debts = [
            whole + owed - count * unit
            for whole, owed, count in zip(wanted, earlier.owed or [0] * len(earlier.parts), counts, strict=True)
        ]
        own_unit, limit = self.total * self._debt_scale, self._debt_scale * self.block_positions
        owed = [
            max(debt * own_unit // unit, -limit * part) if part else 0  # no less, so that every block has turns
            for debt, part in zip(debts, self.parts, strict=True)
        ]
        balanced = _balanced(owed)
        return replace(self, owed=tuple(balanced) if any(balanced) else ())

    @property
    def _least_positions(self) -> int:
        return -(-self.total // min(part for part in self.parts if part))

    @property
    def block_positions(self) -> int:
        """The number of positions of a block. If it is a multiple of `total`, all blocks are equal."""
        if self.total <= _BLOCK_POSITIONS:
            return _BLOCK_POSITIONS // self.total * self.total
        return max(_BLOCK_POSITIONS, 1 << (2 * self._least_positions - 1).bit_length())

    def block(self, number: int, before: Block | None = None, num_made: int | None = None) -> Block:
        """Return the sources of block `number`, counted from 0. It is found faster with the block `before` it.

        `num_made` is the number of its positions that are needed; None stands for all.
        """
        num_positions = self.block_positions
        if before is None or before.first != (number - 1) * num_positions:
            return self.between(number * num_positions, (number + 1) * num_positions, num_made=num_made)
        if num_positions % self.total == 0 and not (self.owed and number == 1):
            further = [part * (num_positions // self.total) for part in self.parts]
            after = tuple(count + more for count, more in zip(before.counts_after, further, strict=True))
            return replace(before, first=number * num_positions, counts=before.counts_after, counts_after=after)
        return self.between(
            number * num_positions, (number + 1) * num_positions, before=before.counts_after, num_made=num_made
        )

    def between(self, first: int, stop: int, before: Sequence[int] | None = None, num_made: int | None = None) -> Block:
        """Return the sources of positions `first` to `stop` (exclusive). No turn may cross both.

        Args:
            first: the first position.
            stop: the position after the last one.
            before: the number of samples of each source before `first`, if it is known.
            num_made: return only so many of the positions; None stands for all.
        """
        before = self.counts_at(first) if before is None else before
        # In the first half of a block in which each source has two turns, none comes to the end of its turns.
        is_short = num_made is not None and 2 * max(num_made, self._least_positions) <= stop - first
        if is_short:
            after = [count + bool(part) * (stop - first) for count, part in zip(before, self.parts, strict=True)]
        else:
            after = self.counts_at(stop)
        floors, rests = self._wanted_at(first)
        turns = np.array([count - floor for count, floor in zip(before, floors, strict=True)], np.int64)
        nums_left = np.array([there - here for here, there in zip(before, after, strict=True)], np.int64)
        parts = np.array(self.parts, np.int64) * self.scale
        sources = np.empty(stop - first if num_made is None else num_made, np.uint16)
        assign = _assign if NATIVE is None else NATIVE.assign
        rests_left = np.array(rests, np.int64)
        assign(parts, rests_left, turns, nums_left, self.total * self.scale, stop - first, sources)
        return Block(first=first, sources=sources, counts=tuple(before), counts_after=() if is_short else tuple(after))

    def counts_at(self, position: int) -> list[int]:
        """Return the number of samples of each source before `position`."""
        if not position:
            return [0] * len(self.parts)
        counts, rests = self._wanted_at(position)
        if any(rests):
            scale = self.scale
            parts = self.parts if scale == 1 else [part * scale for part in self.parts]
            for source in taken_before(parts, rests, self.total * scale):
                counts[source] += 1
        return counts

    def _wanted_at(self, position: int) -> tuple[list[int], list[int]]:
        """Return each source's share of the positions before `position`: whole samples, and the rests in units."""
        scale = self.scale
        unit, factor = self.total * scale, scale * position
        owed = self.owed or [0] * len(self.parts)
        counts, rests = zip(
            *(divmod(part * factor + more, unit) for part, more in zip(self.parts, owed, strict=True)), strict=True
        )
        return list(counts), list(rests)


def _balanced(owed: Sequence[int]) -> list[int]:
    """Return what is owed, reduced where it is too much or too little, in proportion, so that it sums to 0."""
    excess = sum(owed)
    sign = 1 if excess > 0 else -1
    reducible = [max(0, sign * each) for each in owed]
    whole = sum(reducible) or 1
    cuts = [abs(excess) * each // whole for each in reducible]
    left = abs(excess) - sum(cuts)
    for place, (each, cut) in enumerate(zip(reducible, cuts, strict=True)):
        if left and cut < each:
            cuts[place] += 1
            left -= 1
    return [each - sign * cut for each, cut in zip(owed, cuts, strict=True)]


def _assign(
    parts: NDArray[np.int64],
    rests: NDArray[np.int64],
    turns: NDArray[np.int64],
    nums_left: NDArray[np.int64],
    total: int,
    num_positions: int,
    sources: NDArray[np.uint16],
) -> None:
    """Do what `assign` of _mixture.c does: blocks must not depend on which of both runs."""
    released: list[list[int]] = [[] for _ in range(num_positions)]
    due: list[list[int]] = [[] for _ in range(num_positions)]

    earliest = num_positions

    def queue_turn(source: int, position: int) -> None:
        nonlocal earliest
        if not nums_left[source]:
            return
        part, start = int(parts[source]), int(turns[source]) * total - int(rests[source])
        release = start // part
        if release <= position:
            latest = -(-(start + total) // part) - 1
            latest = min(max(latest, position), num_positions - 1)
            due[latest].append(source)
            earliest = min(earliest, latest)
        elif release < num_positions:
            released[release].append(source)

    for source in range(len(parts)):
        queue_turn(source, 0)
    for position in range(len(sources)):
        for source in reversed(released[position]):
            queue_turn(source, position)
        while not due[earliest]:
            earliest += 1
        source = due[earliest].pop()
        sources[position] = source
        turns[source] += 1
        nums_left[source] -= 1
        queue_turn(source, position)
