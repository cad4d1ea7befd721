"""What a batch of the user's sampler stands for: how many samples, on how many ranks."""

from collections.abc import Sized
from dataclasses import dataclass, replace
from typing import Any, Self

from torch.utils.data import BatchSampler, DistributedSampler

from mpload.errors import ArgumentError, StateError, warn
from mpload.plan.checkpoint import State
from mpload.plan.topology import detect_topology

__all__ = ["SamplerShare"]

_WORLD_SIZES = ("num_replicas", "world_size")
_OF_RANKS = (*_WORLD_SIZES, "rank", "_num_replicas", "_world_size", "_rank")
"""Attributes of samplers that divide the samples among ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerShare:
    """The samples that a batch of a sampler stands for: those of this rank, and of the others."""

    name: str
    batch_size: int | None
    """Samples in a batch of this rank; None if a batch sampler does not tell."""
    world_size: int | None
    """Number of ranks among which the sampler divides the samples, as a `DistributedSampler` does; None if unknown."""
    is_divided: bool
    """Whether the sampler knows of ranks."""
    is_of_batches: bool
    """Whether each item of the sampler is a batch."""
    has_any_batch_size: bool
    """Whether the sampler yields the same samples with another batch size."""
    has_any_world_size: bool
    """Whether all ranks together get the same samples first if there are more of them or fewer."""

    @classmethod
    def of(cls, sampler: Any, *, batch_size: int | None, is_of_batches: bool) -> Self:
        """Return the share of a sampler.

        Args:
            sampler: The sampler, or the batch sampler.
            batch_size: The loader's batch size; None yields single samples.
            is_of_batches: Whether it is a batch sampler.
        """
        each = [sampler, *([sampler.sampler] if hasattr(sampler, "sampler") else [])]
        is_of_batches = is_of_batches or (batch_size is None and isinstance(sampler, BatchSampler))
        sizes = [getattr(sampler, "batch_size", None)] if is_of_batches else [batch_size or 1]
        worlds = [getattr(one, name, None) for one in each for name in _WORLD_SIZES]
        return cls(
            name=type(sampler).__qualname__,
            batch_size=next((size for size in sizes if type(size) is int and size > 0), None),
            world_size=next((size for size in worlds if type(size) is int and size > 0), None),
            is_divided=any(hasattr(one, name) for one in each for name in _OF_RANKS),
            is_of_batches=is_of_batches,
            has_any_batch_size=not is_of_batches or type(sampler) is BatchSampler,
            has_any_world_size=type(each[-1]) is DistributedSampler,
        )

    def restored(self, state: State) -> State:
        """Return a state whose position counts batches of this run. Those of older versions stay as they are.

        Raises:
            StateError: The run was saved with other batches or ranks, and there is no batch that continues it.
        """
        old_size, old_world = state.batch_size or self.batch_size or 1, state.world_size or self.world_size or 1
        size, world = self.batch_size or old_size, self.world_size or old_world
        if (old_size, old_world) == (size, world) or not state.position:
            return state
        num_samples = state.position * old_size * old_world
        rule = ""
        if not (self.has_any_batch_size or old_size == size):
            rule = f"{self.name} may then make other batches"
        elif not (self.has_any_world_size or old_world == world):
            rule = f"{self.name} may then divide the samples in another way"
        elif num_samples % (size * world):
            rule = f"{num_samples:,} samples are no whole number of such batches"
        if rule:
            raise StateError(
                f"the checkpoint was made after {state.position:,} batches of {_described(old_size, old_world)}, but "
                f"this run has batches of {_described(size, world)}: {rule}, so samples would be repeated or left out. "
                "Use the same batch size and number of ranks, or restart the epoch without the checkpoint"
            )
        return replace(state, position=num_samples // (size * world))

    def is_repeated(self, sampler: Any, dataset: Any) -> bool:
        """Return whether several ranks read all that a sampler yields, which is not a rank's share of the dataset."""
        num_ranks = _num_ranks()
        if num_ranks == 1 or self.is_divided or not isinstance(sampler, Sized) or self.batch_size is None:
            return False
        try:
            num_samples = len(sampler) * (self.batch_size if self.is_of_batches else 1)
        except TypeError:  # of a sampler inside a batch sampler
            return False
        at_end = num_ranks * self.batch_size  # a share may be filled up to whole batches
        return not isinstance(dataset, Sized) or abs(num_samples * num_ranks - len(dataset)) >= at_end

    def warn_of_repetition(self) -> None:
        """Warn that ranks repeat each other's samples."""
        num_ranks = _num_ranks()
        warn(
            f"there are {num_ranks} ranks, and each of them reads all samples that its sampler ({self.name}) yields, "
            f"because a loader does not divide a sampler: a sample may come {num_ranks} times per epoch. Pass a "
            "DistributedSampler, or shuffle= instead of a sampler. If the sampler divides the samples itself, give it "
            f"an attribute num_replicas = {num_ranks}"
        )


def _num_ranks() -> int:
    try:
        return detect_topology().world_size
    except ArgumentError:  # the sampler does not need to know
        return 1


def _described(batch_size: int, world_size: int) -> str:
    return f"{batch_size:,} samples" if world_size == 1 else f"{batch_size:,} samples on {world_size:,} ranks"
