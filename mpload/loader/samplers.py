"""The user's samplers: what they need to be told, so that epochs differ and resumed runs continue where they were."""

import base64
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from mpload.errors import MploadWarning, StateError

__all__ = ["Follower", "SamplerGenerator"]

_T = TypeVar("_T")


class Follower:
    """Tells a sampler of each epoch that begins, as long as nobody else does.

    Otherwise each epoch would have the same order, and a resumed run another one than before its checkpoint.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._seen: int = sampler.epoch
        self._ahead = 0
        """By how many epochs the sampler is ahead of the loader, since somebody else has told it."""

    @staticmethod
    def suits(sampler: Any) -> bool:
        """Return whether a sampler has an epoch like that of torch's `DistributedSampler`."""
        return hasattr(sampler, "set_epoch") and type(getattr(sampler, "epoch", None)) is int

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""
        if self._sampler.epoch != self._seen:
            self._ahead = self._sampler.epoch - epoch
        else:
            self._sampler.set_epoch(epoch + self._ahead)
        self._seen = self._sampler.epoch


class SamplerGenerator:
    """The generator of one of torch's random samplers. A checkpoint holds its state at the beginning of the epoch.

    Args:
        samplers: The samplers among which one may be random.
    """

    def __init__(self, samplers: Iterable[Any]) -> None:
        random = [
            each for each in samplers if isinstance(each, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)
        ]
        self._generator: torch.Generator | None = random[0].generator if random else None
        self._draws_anew = bool(random) and self._generator is None
        """Whether the sampler draws from the global generator of torch, which a checkpoint does not hold."""
        self._begun: tuple[int, str | None] = (-1, None)
        """The latest epoch that has begun, and the state at its beginning."""

    def drawn(self, batches: Iterable[_T], epoch: int) -> Iterator[_T]:
        """Yield the batches of a sampler for an epoch that begins now.

        A random sampler draws a last time at its end. So each batch is taken before the one before it is yielded:
        once an epoch has been received, the next one may begin.
        """
        self._begun = epoch, self._state()
        if self._generator is None:
            yield from batches
            return
        left = iter(batches)
        try:
            latest = next(left)
        except StopIteration:
            return
        for following in left:
            yield latest
            latest = following
        yield latest

    def state_of(self, epoch: int) -> str | None:
        """Return the state at the beginning of the epoch that runs, or of the next one."""
        number, state = self._begun
        return state if number == epoch else self._state()

    def restore(self, state: str | None, *, epoch: int, is_within: bool) -> None:
        """Restore the state at the beginning of an epoch. Warn if the sampler will draw another order.

        Args:
            state: What `state_of` returned; None if the checkpoint has none.
            epoch: The epoch that the run continues.
            is_within: Whether it continues after the beginning.

        Raises:
            StateError: The state is malformed.
        """
        if self._draws_anew and is_within:
            warnings.warn(
                "the sampler has no generator, so it draws another order than before the checkpoint: the rest of this "
                "epoch repeats samples and misses others. Pass it a generator with a seed, or use shuffle=True and "
                "seed= of the MPLoader instead",
                MploadWarning,
                stacklevel=4,
            )
        if self._generator is None:
            return
        if state is None:
            if epoch:
                warnings.warn(
                    f"the checkpoint does not hold the state of the sampler's generator, so epoch {epoch} has another "
                    "order than before the checkpoint. It is one of an older mpload, or of a sampler without generator",
                    MploadWarning,
                    stacklevel=4,
                )
            return
        try:
            self._generator.set_state(
                torch.frombuffer(bytearray(base64.b64decode(state, validate=True)), dtype=torch.uint8)
            )
        except (ValueError, RuntimeError) as error:
            raise StateError(
                f"the checkpoint is not a valid mpload state: sampler is no state of a generator ({error}). Pass what "
                "state_dict() returned, unchanged"
            ) from error
        self._begun = epoch, state

    def _state(self) -> str | None:
        if self._generator is None:
            return None
        return base64.b64encode(self._generator.get_state().numpy().tobytes()).decode()
