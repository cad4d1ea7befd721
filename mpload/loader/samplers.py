"""The user's samplers: what they need to be told, so that epochs differ and resumed runs continue where they were."""

import base64
import warnings
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from mpload.errors import MploadWarning, StateError

__all__ = ["Follower", "SamplerGenerator"]

_RANDOM = {RandomSampler, SubsetRandomSampler, WeightedRandomSampler}


class Follower:
    """Tells a sampler of each epoch that begins, as long as nobody else does.

    Otherwise each epoch would have the same order, and a resumed run another one than before its checkpoint.

    Several loaders may share a sampler. What somebody else has told it then holds for all of them.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._told: int = 0
        """The epoch that the sampler had after this follower told it."""
        self._asked: _Asked | None = None
        """What somebody else has told it last, as far as this follower knows."""
        self._ahead = 0
        """By how many epochs the sampler is ahead of the loader, since somebody else has told it."""

    @staticmethod
    def suits(sampler: Any) -> bool:
        """Return whether a sampler has an epoch like that of torch's `DistributedSampler`."""
        return hasattr(sampler, "set_epoch") and type(getattr(sampler, "epoch", None)) in {int, _Marked}

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""
        found = self._sampler.epoch
        # Where no mark was kept, the same number may have been told again: that cannot be noticed.
        is_known = isinstance(found, _Marked) or (found == self._told and not isinstance(self._told, _Marked))
        asked = getattr(found, "asked", self._asked) if is_known else _Asked(found)
        if asked is not None and asked is not self._asked:
            self._ahead = asked.epoch - epoch
        self._asked = asked
        if is_known:
            self._sampler.set_epoch(epoch + self._ahead)
        with suppress(AttributeError, TypeError):  # of a property without a setter
            self._sampler.epoch = _Marked(self._sampler.epoch, asked)
        self._told = self._sampler.epoch


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call of `set_epoch` by somebody else. Two calls with the same number differ in their identity."""

    epoch: int


class _Marked(int):
    """The epoch of a sampler, marked by a follower. It is an ordinary number for everybody else.

    Whoever sets the epoch removes the mark, also if he sets the same number again. So a follower notices it without
    changing a method of the sampler. Copies and pickles have no mark.
    """

    asked: _Asked | None

    def __new__(cls, epoch: int, asked: _Asked | None) -> Self:
        marked = super().__new__(cls, epoch)
        marked.asked = asked
        return marked

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class SamplerGenerator:
    """The generator of one of torch's random samplers. A checkpoint holds its state at the beginning of the epoch.

    Samplers of the user's own classes, also those based on torch's, may draw as they like, and are left alone.

    Args:
        sampler: A sampler, or a `BatchSampler`.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
        self._begun: str | None = None
        """The state at the beginning of the latest epoch."""
        self._restored: str | None = None
        """The state at the beginning of an epoch that is to be continued."""
        self._drawn = _Drawn((), 0)

    @property
    def _generator(self) -> torch.Generator | None:
        found = self._sampler.generator if type(self._sampler) in _RANDOM else None
        return found if isinstance(found, torch.Generator) else None

    def drawn(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Return the batches of the sampler, for an epoch that begins now."""
        if self._generator is None:
            return iter(batches)
        if self._restored is not None:  # another sampler may have drawn from it in the meantime
            self._generator.set_state(_decoded(self._restored))
            self._restored = None
        self._begun = _encoded(self._generator)
        self._drawn = _Drawn(batches, len(batches) if isinstance(batches, Sized) else 0)
        return self._drawn

    def at_beginning(self) -> str | None:
        """Return the state at the beginning of the latest epoch; None if there is no generator."""
        return self._begun if self._generator is not None else None

    def for_next(self) -> str | None:
        """Return the state with which the next epoch begins; None if there is no generator."""
        if self._generator is None:
            return None
        self._drawn.end()
        return self._restored or _encoded(self._generator)

    def restore(self, state: str | None, *, epoch: int, is_within: bool) -> None:
        """Restore the state at the beginning of an epoch. Warn if the sampler will draw another order.

        Args:
            state: What `at_beginning` or `for_next` returned; None if the checkpoint has none.
            epoch: The epoch that the run continues.
            is_within: Whether it continues after the beginning.

        Raises:
            StateError: The state is malformed.
        """
        if self._generator is None:
            if is_within and type(self._sampler) in _RANDOM and getattr(self._sampler, "generator", None) is None:
                warnings.warn(
                    "the sampler has no generator, so it draws another order than before the checkpoint: the rest of "
                    "this epoch repeats samples and misses others. Pass it a generator with a seed, or use "
                    "shuffle=True and seed= of the MPLoader instead",
                    MploadWarning,
                    stacklevel=5,
                )
        elif state is not None:
            try:
                self._generator.set_state(_decoded(state))
            except (ValueError, RuntimeError) as error:
                raise StateError(
                    f"the checkpoint is not a valid mpload state: sampler is no state of a generator ({error}). Pass "
                    "what state_dict() returned, unchanged"
                ) from error
            self._restored = state if is_within else None
        elif epoch:
            warnings.warn(
                f"the checkpoint does not hold the state of the sampler's generator, so epoch {epoch} has another "
                "order than before the checkpoint. It is one of an older mpload, or of a sampler without generator",
                MploadWarning,
                stacklevel=5,
            )


class _Drawn:
    """The batches that a sampler draws in an epoch."""

    def __init__(self, batches: Iterable[Any], num_batches: int) -> None:
        self._left = iter(batches)
        self._num_left = num_batches
        self._taken: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._num_left -= 1
        return self._taken.pop() if self._taken else next(self._left)

    def end(self) -> None:
        """Let the sampler draw what it draws at its end, if all its batches have been taken."""
        if self._num_left <= 0 and not self._taken:
            with suppress(StopIteration):
                self._taken.append(next(self._left))


def _encoded(generator: torch.Generator) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def _decoded(state: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(state, validate=True)), dtype=torch.uint8)
