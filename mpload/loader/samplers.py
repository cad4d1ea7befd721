"""The user's samplers: what they need to be told, so that epochs differ and resumed runs continue where they were."""

import base64
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from mpload.errors import StateError, warn

__all__ = ["Follower", "SamplerGenerator"]

_RANDOM = {RandomSampler, SubsetRandomSampler, WeightedRandomSampler}
_MAX_DRAWS = 2**24
"""An epoch of more draws can only be left as before: to find out where it ends would take more than a second."""
_DRAWN_AT_ONCE = 2**20


class Follower:
    """Tells a sampler of each epoch that begins, as long as nobody else does.

    Otherwise each epoch would have the same order, and a resumed run another one than before its checkpoint. A call
    with the number that the sampler has already cannot be noticed: a mark on that number would be in its checkpoints.
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
        self._open: _Open | None = None
        """The epoch whose batches are being drawn from the generator itself."""

    @property
    def _generator(self) -> torch.Generator | None:
        found = self._sampler.generator if type(self._sampler) in _RANDOM else None
        return found if isinstance(found, torch.Generator) else None

    def drawn(self, batches: Any, *, ahead: bool) -> Iterator[Any]:
        """Yield the batches of the sampler, for an epoch that begins now.

        The next epoch begins where the generator is at the end of this one, also if this one is left early.

        Args:
            batches: The sampler, or a `BatchSampler` around it.
            ahead: Whether batches are drawn ahead of the loop. The workers then decide how far, so the generator moves
                to the end of the epoch at once. Otherwise it moves as in a DataLoader, since others may draw from it.
        """
        generator = self._generator
        if generator is None:
            yield from batches
            return
        if self._restored is not None:  # another sampler may have drawn from it in the meantime
            generator.set_state(_decoded(self._restored))
            self._restored = self._open = None
        self._leave(self._open)
        begun = generator.get_state()
        self._begun = _encoded(begun)
        if not _has_end(self._sampler):
            yield from batches
            return
        used = _like(generator, begun) if ahead else generator
        left = iter(_drawing_from(used, batches) if ahead else batches)
        first = [*islice(left, 1)]
        end = _end_of(self._sampler, begun=_like(generator, begun), now=used.get_state())
        if ahead:
            generator.set_state(end)
            yield from chain(first, left)
            return
        here = self._open = _Open(generator=generator, end=end)
        try:
            for batch in chain(first, left):
                here.now = generator.get_state()
                yield batch
        except GeneratorExit:
            self._leave(here)
            raise
        if self._open is here:  # it has drawn all, and others may have drawn from the generator in between
            self._open = None

    def _leave(self, epoch: "_Open | None") -> None:
        """Move the generator to the end of an epoch, unless another one has begun since."""
        if epoch is not None and epoch is self._open:
            if epoch.is_untouched:
                epoch.generator.set_state(epoch.end)
            self._open = None

    def at_beginning(self) -> str | None:
        """Return the state at the beginning of the latest epoch; None if there is no generator."""
        return self._begun if self._generator is not None else None

    def for_next(self) -> str | None:
        """Return the state with which the next epoch begins; None if there is no generator."""
        generator, here = self._generator, self._open
        if generator is None:
            return None
        if here is not None and here.generator is generator and here.is_untouched:
            return self._restored or _encoded(here.end)
        return self._restored or _encoded(generator.get_state())

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
                warn(
                    "the sampler has no generator, so it draws another order than before the checkpoint: the rest of "
                    "this epoch repeats samples and misses others. Pass it a generator with a seed, or use "
                    "shuffle=True and seed= of the MPLoader instead"
                )
        elif state is not None:
            try:
                self._generator.set_state(_decoded(state))
            except (ValueError, RuntimeError) as error:
                raise StateError(
                    f"the checkpoint is not a valid mpload state: sampler is no state of a generator ({error}). Pass "
                    "what state_dict() returned, unchanged"
                ) from error
            self._restored, self._open = state if is_within else None, None
        elif epoch:
            warn(
                f"the checkpoint does not hold the state of the sampler's generator, so epoch {epoch} has another "
                "order than before the checkpoint. It is one of an older mpload, or of a sampler without generator"
            )


@dataclass(slots=True, kw_only=True, eq=False)
class _Open:
    """An epoch whose batches are being drawn."""

    generator: torch.Generator
    end: torch.Tensor
    """The state of the generator at the end of the epoch."""
    now: torch.Tensor | None = None
    """Its state after the latest batch."""

    @property
    def is_untouched(self) -> bool:
        """Whether nobody else has drawn from the generator, or set its seed, since the latest batch."""
        return self.now is not None and torch.equal(self.now, self.generator.get_state())


def _has_end(sampler: Any) -> bool:
    """Return whether the end of an epoch can be found out quickly: not if `num_samples` stands for endless training."""
    if type(sampler) is not RandomSampler:
        return True
    overhead = 0 if sampler.replacement else 64 * sampler.num_samples // len(sampler.data_source)
    return int(sampler.num_samples) + overhead <= _MAX_DRAWS


def _end_of(sampler: Any, *, begun: torch.Generator, now: torch.Tensor) -> torch.Tensor:
    """Return the state of a sampler's generator at the end of an epoch.

    Args:
        sampler: One of torch's random samplers.
        begun: A copy of its generator at the beginning of the epoch, to draw from.
        now: The state of its generator after the first batch.
    """
    if type(sampler) is not RandomSampler:
        return now  # the others draw everything at once
    length, num_samples = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        for start in range(0, num_samples, _DRAWN_AT_ONCE):
            size = min(_DRAWN_AT_ONCE, num_samples - start)
            torch.randint(length, (size,), dtype=torch.int64, generator=begun)
    else:
        for _ in range(num_samples // length + 1):
            torch.randperm(length, generator=begun)
    return begun.get_state()


def _drawing_from(generator: torch.Generator, sampler: Any) -> Any:
    """Return a copy of a sampler, or of a `BatchSampler` around it, that draws from another generator."""
    drawing = copy(sampler)
    if type(sampler) is BatchSampler:
        drawing.sampler = _drawing_from(generator, sampler.sampler)
    else:
        drawing.generator = generator
    return drawing


def _like(generator: torch.Generator, state: torch.Tensor) -> torch.Generator:
    return torch.Generator(generator.device).set_state(state)


def _encoded(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decoded(state: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(state, validate=True)), dtype=torch.uint8)
