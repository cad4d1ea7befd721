"""A checkpoint: where a run stands, as a few integers and two fingerprints."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from mpload.errors import StateError
from mpload.plan.ranges import MAX_NUM_SAMPLES, MAX_SEED

__all__ = ["State"]

_STATE_VERSION = 1


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
            ("seed", self.seed, MAX_SEED),
            ("epoch", self.epoch, MAX_SEED),
            ("position", self.position, MAX_NUM_SAMPLES + 1),
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
        raise StateError(
            f"the checkpoint is not an mpload state: {finding}. Pass what state_dict() returned, unchanged"
        )
