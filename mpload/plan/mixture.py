"""The order of a mixture: the source of each position of a run, and its sample. It is computed, never stored.

Positions count on from epoch to epoch. `mpload.plan.shares` divides them among the sources. Each source goes through
its own samples in its own order, lap after lap, wherever the epochs of the mixture begin.

A sample_id is the number of a sample in the concatenation of all sources. It differs between the laps of its source:
see `mpload.plan.repeats`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.order import OrderChoice, checked_positions
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range
from mpload.plan.repeats import repeated
from mpload.plan.shares import Shares
from mpload.plan.source_orders import SourceChoices, SourceOrders
from mpload.plan.turns import Phase, Turns, check_known

__all__ = ["MixtureOrder", "MixtureOrders"]


_MAX_STATE_BYTES = 500  # of the changes of weights in a checkpoint


class _Latest:
    """What was computed for the latest seed and, with repeats, epoch. It is not pickled.

    Args:
        known: the turns with other changes of weights, which may begin with the same phases.
    """

    def __init__(self, known: Turns | None = None) -> None:
        self.parts: tuple[tuple[int, int], Turns, SourceOrders] | None = None
        self.known = known

    def __reduce__(self) -> tuple[object, ...]:
        return _Latest, ()


@dataclass(slots=True, kw_only=True, repr=False)
class MixtureOrders:
    """The orders of all epochs of a mixture: an `OrderChoice` in which an epoch has `epoch_samples` positions.

    Attributes:
        lengths: the number of samples of each source.
        of_source: the order in which each source goes through its samples.
        epoch_samples: the number of positions of an epoch.
        planned: the phases that were known when the run began. The first one starts at 0.
        changes: the phases that were decided on during the run. From the first of them on, planned ones are void. If
            there were many, the first of those that are kept holds the counts of its sources.
        repeats: whether every epoch has exactly the shares of the only phase.

    Process: may be pickled and forked. It may be used by many threads.

    Raises:
        ArgumentError: a value is out of range, or a source without samples has a share.
    """

    lengths: tuple[int, ...]
    of_source: OrderChoice | SourceChoices
    epoch_samples: int
    planned: tuple[Phase, ...]
    changes: tuple[Phase, ...] = ()
    repeats: bool = False
    _latest: _Latest = field(default_factory=_Latest, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_range("epoch_samples", self.epoch_samples, 1, MAX_NUM_SAMPLES)
        for phases in (self.planned, self.changes):
            for phase in phases:
                check_range("the position of a change of weights", phase.start, 0, MAX_NUM_SAMPLES)
                self._check_shares(phase.shares)
            for phase, following in pairwise(phases):
                if following.start <= phase.start:
                    raise ArgumentError(
                        f"the positions of changes of weights must ascend, got {phase.start} and {following.start}"
                    )

        first = self.changes[0] if self.changes else self.planned[0]
        if first.counts and (len(first.counts) != len(self.lengths) or min(first.counts) < 0):
            raise ArgumentError(f"there must be {len(self.lengths)} counts of at least 0, got {first.counts!r:.200}")
        if first.counts and sum(first.counts) != first.start:
            raise ArgumentError(f"the counts before position {first.start} must sum to it, got {first.counts!r:.200}")

    def _check_shares(self, shares: Shares) -> None:
        if len(shares.parts) != len(self.lengths):
            raise ArgumentError(f"there must be {len(self.lengths)} weights, got {len(shares.parts)}")
        for source, (part, length) in enumerate(zip(shares.parts, self.lengths, strict=True)):
            if part and not length:
                raise ArgumentError(f"source {source} has a weight, but no samples. Give it the weight 0")

    def __repr__(self) -> str:
        return f"mixture of {len(self.lengths)} sources, each in {self.of_source!r}"

    @property
    def spec(self) -> str:
        """The choice as a stable text that checkpoints store. It leaves out the changes, which have a field there."""
        planned = json.dumps([[phase.start, phase.shares.parts] for phase in self.planned]).encode()
        digest = hashlib.blake2b(planned, digest_size=8).hexdigest()
        what = "repeats" if self.repeats else "weights"
        return f"mixture(order={self.of_source.spec},epoch_samples={self.epoch_samples},{what}={digest})"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that hold."""
        if self.changes and self.changes[0].counts:
            return self.changes
        end = self.changes[0].start if self.changes else MAX_NUM_SAMPLES
        return (*(phase for phase in self.planned if phase.start < end), *self.changes)

    def adopt(self, changes: tuple[Phase, ...]) -> None:
        """Replace the changes by these."""
        self.changes, known = self.with_changes(changes).changes, self._known()
        self._latest = _Latest(known)

    def with_changes(self, changes: tuple[Phase, ...]) -> Self:
        """Return the same orders with other changes."""
        return replace(self, changes=changes, _latest=_Latest(self._known()))

    def _known(self) -> Turns | None:
        return self._latest.known if self._latest.parts is None else self._latest.parts[1]

    def changed(self, start: int, shares: Shares, *, seed: int) -> Self:
        """Return the same orders, in which these shares hold from position `start` on, counted over all epochs.

        Only as many changes are kept as take some 500 bytes in a checkpoint, and at least the latest one.
        """
        if self.repeats:
            raise ArgumentError("the mixture has repeats, which cannot be changed. Make a Mixture with weights")
        earlier = [phase for phase in self.changes if phase.start < start]
        changed = self.with_changes((*earlier, self._phase(start, shares, is_first=not earlier)))
        while len(changed.changes) > 1 and _state_bytes(changed.changes) > _MAX_STATE_BYTES:
            turns = Turns(changed.phases, seed=seed, known=self._known())
            second = turns.phase(len(changed.phases) - len(changed.changes) + 1)
            changed = changed.with_changes((second, *changed.changes[2:]))
        return changed

    def _phase(self, start: int, shares: Shares, *, is_first: bool) -> Phase:
        """Return a phase. If it replaces the first change, which holds the counts before it, it takes these over."""
        phase = Phase(start=start, shares=shares)
        if not is_first or not self.changes or not self.changes[0].counts:
            return phase
        first = self.changes[0]
        check_known(start, first.start)
        return replace(first, shares=shares.after(first.shares, 0, [0] * len(first.counts)))

    def position_of(self, *, epoch: int, position: int) -> int:
        """Return a position of an epoch, counted over all epochs."""
        check_range("epoch", epoch, 0, MAX_NUM_SAMPLES // self.epoch_samples)
        return epoch * self.epoch_samples + position

    def counts_before(self, *, seed: int, epoch: int, position: int) -> list[int]:
        """Return how many positions each source has before a position of an epoch, counted over all epochs."""
        turns = self._turns(seed=seed, epoch=epoch)
        found: list[int] = turns.counts_before(self.position_of(epoch=epoch, position=position)).tolist()
        return found

    def _turns(self, *, seed: int, epoch: int) -> Turns:
        if not self.repeats:
            return Turns(self.phases, seed=seed, known=self._latest.known)
        (phase,) = self.phases
        counts = [part * (self.epoch_samples // phase.shares.total) for part in phase.shares.parts]
        return Turns(
            (replace(phase, start=self.position_of(epoch=epoch, position=0)),),
            seed=seed,
            counts=[epoch * count for count in counts],
            num_positions=self.epoch_samples,
        )

    def order(self, *, num_samples: int, seed: int, epoch: int) -> "MixtureOrder":
        """Return the order of an epoch; see `OrderChoice.order`. `num_samples` must be `epoch_samples`."""
        check_range("num_samples", num_samples, self.epoch_samples, self.epoch_samples + 1)
        parts, key = self._latest.parts, (seed, epoch if self.repeats else 0)
        if parts is None or parts[0] != key:
            sources = SourceOrders(lengths=self.lengths, choice=self.of_source, seed=seed)
            self._latest.parts = parts = key, self._turns(seed=seed, epoch=epoch), sources
        return MixtureOrder(
            num_samples=num_samples,
            start=self.position_of(epoch=epoch, position=0),
            lengths=self.lengths,
            turns=parts[1],
            sources=parts[2],
            are_draws=isinstance(self.of_source, SourceChoices) and self.of_source.are_draws,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixtureOrder:
    """The order of one epoch of a mixture: see `Order`. It is no bijection, as samples may repeat or be left out."""

    num_samples: int
    start: int
    lengths: tuple[int, ...]
    turns: Turns
    sources: SourceOrders
    are_draws: bool
    """Whether a sample may come several times within a lap of its source."""

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample_ids at `positions`; see `Order.sample_ids`."""
        sources, turns = self.turns.at(checked_positions(positions, self.num_samples).view(np.int64) + self.start)
        lengths = np.array(self.lengths, np.int64)
        of_source = lengths[sources]
        laps = turns // of_source
        ids = self.sources.ids(sources, laps, turns - laps * of_source)
        num_ids = sum(self.lengths)
        ids += np.array(first_ids(self.lengths), np.int64)[sources]
        return repeated(ids, turns if self.are_draws else laps, num_ids)


def _state_bytes(changes: tuple[Phase, ...]) -> int:
    return len(json.dumps([change.in_state() for change in changes]))


def first_ids(lengths: Sequence[int]) -> list[int]:
    """Return the first sample_id of each source."""
    return [0, *accumulate(lengths)][:-1]
