"""Calls the user's transforms of whole samples, which are dicts, seeded for each sample.

Adapters for libraries belong here: `adapt_sample_transform` chooses one by the type of the transform.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from mpload.errors import ArgumentError
from mpload.samples.targets import Target
from mpload.samples.transforms import seed_generators, takes

__all__ = ["SampleTransform", "adapt_sample_transform", "channels_last"]


class SampleTransform(Protocol):
    """A transform of samples."""

    @property
    def seeds_generators(self) -> bool:
        """Whether it seeds the global generators; if not, it draws only from the generator that it is given."""
        ...

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the transformed sample."""
        ...


def adapt_sample_transform(
    transform: Callable[..., Any],
    targets: Mapping[str, Target],  # noqa: ARG001
) -> SampleTransform:
    """Return `transform` as a function of a sample and the sample's generator.

    A callable gets a dict, in which images are arrays [H, W, C], and returns one, perhaps with other keys. If it has a
    parameter `rng`, it gets the sample's generator; if not, the global generators are seeded before each call.

    Args:
        transform: The user's callable.
        targets: What the values of each key are.

    Raises:
        ArgumentError: `transform` is not callable.

    Process:
        The result is not thread-safe.
    """
    if not callable(transform):
        raise ArgumentError(f"transform must be a callable on a sample, got {transform!r}")
    return _PlainTransform(transform)


class _PlainTransform:
    __slots__ = ("_takes_rng", "_transform", "seeds_generators")

    def __init__(self, transform: Callable[..., Any]) -> None:
        self._transform = transform
        self._takes_rng = takes(transform, "rng")
        self.seeds_generators = not self._takes_rng

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if self._takes_rng:
            result = self._transform(sample, rng=rng)
        else:
            seed_generators(rng)
            result = self._transform(sample)
        if not isinstance(result, dict) or not all(isinstance(key, str) for key in result):
            name = getattr(self._transform, "__qualname__", type(self._transform).__qualname__)
            raise ArgumentError(
                f"transform {name} returned {type(result).__name__}. With a dict as decode, a transform gets a "
                "sample as a dict and returns one, with names as keys"
            )
        return result


def channels_last(value: Any) -> Any:
    """Return a tensor [..., C, H, W] as [..., H, W, C], as arrays of images are, and any other value as it is."""
    torch = sys.modules.get("torch")
    is_image = torch is not None and isinstance(value, torch.Tensor) and value.ndim >= 3
    return value.movedim(-3, -1) if is_image else value
