"""Who takes which positions: topology, plan and checkpoint, as arithmetic on a few integers.

A global batch is what all ranks consume in one step. Its content depends on where the run started and on batch_size
times world_size alone, so another number of ranks or workers sees the same global batches.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum, auto
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, StateError

__all__ = ["Plan", "State", "Tail", "Topology"]

_STATE_VERSION = 1
_MAX_NUM_SAMPLES = 1 << 62
_MAX_SEED = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which of how many ranks this is.

    Attributes:
        rank: in `[0, world_size)`.
        world_size: ranks that share an epoch, at least 1.

    Raises:
        ArgumentError: a value is out of range.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        _check_range("world_size", self.world_size, 1, _MAX_NUM_SAMPLES)
        _check_range("rank", self.rank, 0, self.world_size)


class Tail(StrEnum):
    """What happens to the samples that do not fill a last global batch."""

    DROP = auto()
    """They are left out of this epoch."""
    PAD = auto()
    """The batch is filled up from the start of the epoch: every rank gets the same number of full batches."""
    RAGGED = auto()
    """Every sample exactly once: a rank's last batch may be short or empty."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        names = ", ".join(repr(str(tail)) for tail in cls)
        raise ArgumentError(f"tail must be one of {names}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which positions batch `k` of a rank holds.

    With batch size B and R ranks, global batch `k` is positions `[start + k*B*R, start + (k+1)*B*R)`; rank `r` takes
    the `r`-th B of them.

    Attributes:
        num_samples: positions in an epoch, in `[0, 2**62]`.
        batch_size: samples in a full batch of one rank, at least 1.
        topology: whose plan this is.
        tail: what happens where the last global batch is not full.
        start: the position where the run started or resumed, in `[0, num_samples]`.

    Raises:
        ArgumentError: a value is out of range.
    """

    num_samples: int
    batch_size: int
    topology: Topology
    tail: Tail
    start: int = 0

    def __post_init__(self) -> None:
        _check_range("num_samples", self.num_samples, 0, _MAX_NUM_SAMPLES + 1)
        _check_range("batch_size", self.batch_size, 1, _MAX_NUM_SAMPLES)
        _check_range("start", self.start, 0, self.num_samples + 1)
        Tail(self.tail)

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks consume in one step."""
        return self.batch_size * self.topology.world_size

    @property
    def num_batches(self) -> int:
        """Batches from `start` to the end of the epoch: the same number for every rank."""
        full, rest = divmod(self.num_samples - self.start, self.global_batch_size)
        return full + (rest > 0 and self.tail != Tail.DROP)

    @property
    def num_samples_of_rank(self) -> int:
        """Samples of this rank from `start` to the end of the epoch, padding not counted."""
        full, rest = divmod(self.num_samples - self.start, self.global_batch_size)
        of_tail = min(max(rest - self.topology.rank * self.batch_size, 0), self.batch_size)
        return full * self.batch_size + (0 if self.tail == Tail.DROP else of_tail)

    def positions(self, batch: int) -> NDArray[np.int64]:
        """Return the positions of this rank's batch, `int64[n]`.

        `n` is `batch_size`; in a ragged last batch it may be less, down to 0. A padded batch goes on at position 0, and
        round again if the epoch is shorter than the padding.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        first, num_real = self._first_position(batch), self.num_real_samples(batch)
        if self.tail == Tail.PAD and num_real < self.batch_size:
            return (np.arange(self.batch_size, dtype=np.int64) + first % self.num_samples) % self.num_samples
        return np.arange(first, first + num_real, dtype=np.int64)

    def single_positions(self, batches: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of many batches of one sample each, `int64[n]`; `batch_size` must be 1.

        Ragged batches that are empty are left out.
        """
        first = self.start + batches * self.global_batch_size + self.topology.rank
        if self.tail == Tail.RAGGED:
            return first[first < self.num_samples]
        return first % self.num_samples

    def num_real_samples(self, batch: int) -> int:
        """Return how many of `positions(batch)`, counted from the first, are no padding.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        return min(max(self.num_samples - self._first_position(batch), 0), self.batch_size)

    def size(self, batch: int) -> int:
        """Return the length of `positions(batch)`.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        num_real = self.num_real_samples(batch)
        return self.batch_size if self.tail == Tail.PAD else num_real

    def position_after(self, num_batches: int) -> int:
        """Return the position where a run resumes that has consumed `num_batches` global batches of this plan.

        Raises:
            ArgumentError: `num_batches` is not in `[0, self.num_batches]`.
        """
        _check_range("num_batches", num_batches, 0, self.num_batches + 1)
        return min(self.start + num_batches * self.global_batch_size, self.num_samples)

    def _first_position(self, batch: int) -> int:
        _check_range("batch", batch, 0, self.num_batches)
        return self.start + batch * self.global_batch_size + self.topology.rank * self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A checkpoint: where a run stands, and in the order of what.

    Attributes:
        version: of this format.
        fingerprint: of the index.
        order: the `spec` of the order choice: under another one, samples would be repeated and skipped unseen.
        seed: in `[0, 2**63)`.
        epoch: in `[0, 2**63)`.
        position: the first one that is not yet consumed, in `[0, 2**62]`.

    Raises:
        StateError: a value has another type, is out of range, or the version is not the one that this mpload reads.
    """

    version: int = _STATE_VERSION
    fingerprint: str
    order: str
    seed: int
    epoch: int
    position: int

    def __post_init__(self) -> None:
        _check_state_version(self.version)
        for name, text in (("fingerprint", self.fingerprint), ("order", self.order)):
            _check_state(isinstance(text, str), f"{name} must be a string, got {text!r}")
        stops = (
            ("seed", self.seed, _MAX_SEED),
            ("epoch", self.epoch, _MAX_SEED),
            ("position", self.position, _MAX_NUM_SAMPLES + 1),
        )
        for name, value, stop in stops:
            _check_state(
                type(value) is int and 0 <= value < stop, f"{name} must be an integer in [0, {stop}), got {value!r}"
            )

    def to_dict(self) -> dict[str, int | str]:
        """Return the state as plain integers and strings, ready for JSON or `torch.save`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Return the state that `to_dict` made `mapping` of.

        Raises:
            StateError: a key is missing or unknown, or a value is not what it must be.
        """
        _check_state(isinstance(mapping, Mapping), f"a mapping is wanted, got {type(mapping).__name__}")
        names = {field.name for field in fields(cls)}
        _check_state("version" in mapping, "no 'version' in it")
        _check_state_version(mapping["version"])
        missing, unknown = sorted(names - mapping.keys()), sorted(map(str, mapping.keys() - names))
        _check_state(not missing, f"no {', '.join(map(repr, missing))} in it")
        _check_state(not unknown, f"unknown {', '.join(map(repr, unknown))} in it")
        return cls(**mapping)

    def check_fits(self, *, fingerprint: str, order: str, num_samples: int) -> None:
        """Raise unless the state was made over this index and in this order.

        Raises:
            StateError: it was not; the message says what differs.
        """
        if self.fingerprint != fingerprint:
            raise StateError(
                f"the checkpoint was made over another index: its fingerprint is {self.fingerprint!r}, this index has "
                f"{fingerprint!r}. Open the index it was made over, or start the epoch anew without the checkpoint"
            )
        if self.order != order:
            raise StateError(
                f"the checkpoint was made in order {self.order!r}, this run has {order!r}: samples would be repeated "
                "and skipped. Pass the same shuffle=, or start the epoch anew without the checkpoint"
            )
        if self.position > num_samples:
            raise StateError(
                f"the checkpoint's position must be in [0, {num_samples}], got {self.position}: it is damaged. "
                "Use an earlier one, or start the epoch anew without it"
            )


def _check_state_version(version: object) -> None:
    if type(version) is not int or version != _STATE_VERSION:
        raise StateError(
            f"the checkpoint has format version {version!r}, this mpload reads {_STATE_VERSION}. "
            "Restore it with the mpload that wrote it, or start the epoch anew without it"
        )


def _check_state(holds: bool, finding: str) -> None:
    if not holds:
        raise StateError(f"the checkpoint is no mpload state: {finding}. Pass what state_dict() returned, unchanged")


def _check_range(name: str, value: object, first: int, stop: int) -> None:
    if not isinstance(value, int) or not first <= value < stop:
        raise ArgumentError(f"{name} must be in [{first}, {stop}), got {value!r}")
