"""A checkpoint: the position of a run, as a few integers and two strings that identify its index and order."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from mpload.errors import StateError
from mpload.plan.ranges import MAX_NUM_SAMPLES, MAX_SEED

__all__ = ["State"]

_STATE_VERSION = 1
_OPTIONAL = ("num_samples", "sampler", "batch_size", "world_size")
"""Values that a state lacks if they are None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A checkpoint: the position of a run, and the index and order to which the position belongs.

    Attributes:
        version: version of the checkpoint format.
        fingerprint: fingerprint of the index.
        order: `spec` of the order choice. With any other order, samples would be silently repeated and skipped.
        seed: the run's seed, in `[0, 2**63)`.
        epoch: the current epoch, in `[0, 2**63)`.
        position: the first position in the epoch that has not been consumed, in `[0, 2**62]`.
        changes: how the weights of a mixture were changed during the run: positions, counted over all epochs, and the
            shares that hold from there on. If there were many, only the latest are kept, some 500 bytes as JSON. The
            first of them then also holds the number of samples that each source had had, and what it was owed.
        num_samples: number of samples of the index; None for mixtures, map-style datasets and states of older versions.
            With the fingerprint, it identifies an index that has grown since.
        segments: with buckets, the runs of the current epoch with one number of ranks: pairs of the size of global
            batches and how many were done. At most 12; there is more than one if the number of ranks has changed.
        sampler: with a random sampler of the user, the state of its generator at the beginning of the epoch, in base64.
        batch_size: with a sampler of the user, the samples in a batch, since `position` then counts batches. None if
            they are unknown, without a sampler, and in states of older versions.
        world_size: with a sampler of the user that divides the samples among ranks, the number of ranks.

    Raises:
        StateError: a value has the wrong type or is out of range, or this mpload does not read this format version.
    """

    version: int = _STATE_VERSION
    fingerprint: str
    order: str
    seed: int
    epoch: int
    position: int
    changes: tuple[tuple[Any, ...], ...] = ()
    num_samples: int | None = None
    segments: tuple[tuple[int, int], ...] = ()
    sampler: str | None = None
    batch_size: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        _check_state_version(self.version)
        for name, text in (("fingerprint", self.fingerprint), ("order", self.order)):
            _check_state(isinstance(text, str), f"{name} must be a string, got {text!r}")
        stops = (
            ("seed", self.seed, MAX_SEED),
            ("epoch", self.epoch, MAX_SEED),
            ("position", self.position, MAX_NUM_SAMPLES + 1),
        )
        for name, value, stop in stops:
            _check_state(
                type(value) is int and 0 <= value < stop, f"{name} must be an integer in [0, {stop}), got {value!r}"
            )

        for name in ("num_samples", "batch_size", "world_size"):
            value = getattr(self, name)
            _check_state(
                value is None or (type(value) is int and 0 < value <= MAX_NUM_SAMPLES),
                f"{name} must be an integer in [1, {MAX_NUM_SAMPLES}], got {value!r}",
            )
        _check_state(
            _are_changes(self.changes), f"changes must be pairs of a position and shares, got {self.changes!r:.200}"
        )
        _check_state(
            _are_segments(self.segments), f"segments must be pairs of positive integers, got {self.segments!r:.200}"
        )
        _check_state(
            self.sampler is None or isinstance(self.sampler, str),
            f"sampler must be a string, got {self.sampler!r:.200}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dict of integers, strings and lists, which JSON and `torch.save` can store."""
        stored: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(self)
        }  # faster than `asdict`
        changes, segments = stored.pop("changes"), stored.pop("segments")
        for name in _OPTIONAL:
            if stored[name] is None:
                del stored[name]
        stored |= {"changes": [[start, *map(list, lists)] for start, *lists in changes]} if changes else {}
        return stored | {"segments": [list(segment) for segment in segments]} if segments else stored

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Return the state from which `to_dict` made `mapping`.

        Raises:
            StateError: a key is missing or unknown, or a value is invalid.
        """
        _check_state(isinstance(mapping, Mapping), f"it must be a mapping, got {type(mapping).__name__}")
        optional = {"changes", "segments", *_OPTIONAL}
        names = {field.name for field in fields(cls)} - optional
        _check_state("version" in mapping, "it has no 'version'")
        _check_state_version(mapping["version"])
        missing, unknown = sorted(names - mapping.keys()), sorted(map(str, mapping.keys() - names - optional))
        _check_state(not missing, f"it has no {', '.join(map(repr, missing))}")
        _check_state(not unknown, f"it has unknown keys {', '.join(map(repr, unknown))}")
        changes = mapping.get("changes", ())
        _check_state(_are_changes(changes), f"changes must be pairs of a position and shares, got {changes!r:.200}")
        segments = mapping.get("segments", ())
        _check_state(_are_segments(segments), f"segments must be pairs of positive integers, got {segments!r:.200}")
        lists = {
            "changes": tuple((start, *map(tuple, lists)) for start, *lists in changes),
            "segments": tuple(map(tuple, segments)),
        }
        return cls(**{**mapping, **lists})

    def check_fits(self, *, fingerprint: str, order: str, num_samples: int) -> None:
        """Raise an error unless the state was made with this index and this order.

        Raises:
            StateError: the index or the order differs, or the position is past the end of the index.
        """
        if self.fingerprint != fingerprint:
            size = "" if self.num_samples is None else f", of {self.num_samples:,} samples"
            raise StateError(
                f"the checkpoint was made with another index{size}: its fingerprint is {self.fingerprint!r}, "
                f"this index has {fingerprint!r}. Open the index it was made with, or restart the epoch without the "
                "checkpoint. Lines may only be appended to an index, and not to one of a mixture or with buckets"
            )
        if self.order != order:
            is_mixture = order.startswith("mixture(")
            same = "shuffle= and Mixture (set_weights changes its weights afterwards)" if is_mixture else "shuffle="
            same = f"{same} and buckets=" if "buckets(" in self.order + order else same
            raise StateError(
                f"the checkpoint was made with order {self.order!r}, but this run uses {order!r}: samples would be "
                f"repeated and skipped. Pass the same {same}, or restart the epoch without the checkpoint"
            )
        if self.position > num_samples:
            raise StateError(
                f"the checkpoint's position must be in [0, {num_samples}], got {self.position}: it is damaged. "
                "Use an earlier checkpoint, or restart the epoch without one"
            )


def _are_changes(changes: object) -> bool:
    """Whether these are lists of a position and shares. The first may go on with counts and what sources are owed."""
    return isinstance(changes, list | tuple) and all(
        isinstance(change, list | tuple)
        and len(change) in ((2, 4) if not place else (2,))
        and type(change[0]) is int
        and 0 <= change[0] < MAX_NUM_SAMPLES
        and all(isinstance(numbers, list | tuple) for numbers in change[1:])
        and all(type(number) is int for numbers in change[1:] for number in numbers)
        and min(change[1], default=0) >= 0
        for place, change in enumerate(changes)
    )


def _are_segments(segments: object) -> bool:
    return isinstance(segments, list | tuple) and all(
        isinstance(segment, list | tuple)
        and len(segment) == 2
        and all(type(number) is int and 0 < number < MAX_NUM_SAMPLES for number in segment)
        for segment in segments
    )


def _check_state_version(version: object) -> None:
    if type(version) is not int or version != _STATE_VERSION:
        raise StateError(
            f"the checkpoint has format version {version!r}, but this mpload reads version {_STATE_VERSION}. "
            "Restore it with the mpload that wrote it, or restart the epoch without it"
        )


def _check_state(holds: bool, finding: str) -> None:
    if not holds:
        raise StateError(
            f"the checkpoint is not a valid mpload state: {finding}. Pass what state_dict() returned, unchanged"
        )
