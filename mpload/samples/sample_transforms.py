"""Calls the user's transforms of whole samples, which are dicts, seeded for each sample.

Adapters for libraries belong here: `adapt_sample_transform` chooses one by the type of the transform.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from mpload.errors import ArgumentError
from mpload.samples.albumentations_targets import AlbumentationsOnSamples
from mpload.samples.seeded_albumentations import is_of
from mpload.samples.targets import Target, checked_sample
from mpload.samples.torchvision_targets import TorchvisionOnSamples
from mpload.samples.transforms import seed_generators, takes

__all__ = ["SampleTransform", "adapt_sample_transform", "channels_last"]


_TORCHVISION = frozenset({"torchvision"})


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
    targets: Mapping[str, Target],
) -> SampleTransform:
    """Return `transform` as a function of a sample and the sample's generator.

    - An albumentations transform or `Compose` gets images, masks, boxes and keypoints as its targets: see
      `AlbumentationsOnSamples`.
    - A transform of torchvision v2, or a `torch.nn.Sequential` of such, gets them as tv_tensors, and the other values
      as they are: see `TorchvisionOnSamples`.
    - Any other callable gets a dict, in which images are arrays [H, W, C], and returns one, perhaps with other keys. If
      it has a parameter `rng`, it gets the sample's generator.

    Without `rng`, the global generators are seeded before each call.

    Args:
        transform: The user's callable.
        targets: What the values of each key are.

    Raises:
        ArgumentError: `transform` is not callable, or the samples are not what its library transforms.

    Process:
        The result is not thread-safe.
    """
    if not callable(transform):
        raise ArgumentError(f"transform must be a callable on a sample, got {transform!r}")
    if is_of(transform, frozenset({"albumentations"})):
        return AlbumentationsOnSamples(transform, targets)
    if is_of(transform, _TORCHVISION) or _is_sequence_of_torchvision(transform):
        return TorchvisionOnSamples(transform, targets)
    return _PlainTransform(transform)


def _is_sequence_of_torchvision(transform: object) -> bool:
    torch = sys.modules.get("torch")
    is_sequence = torch is not None and type(transform) is torch.nn.Sequential
    return is_sequence and any(is_of(module, _TORCHVISION) for module in transform)  # type: ignore[attr-defined]


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
        return checked_sample(result, self._transform)


def channels_last(value: Any) -> Any:
    """Return a tensor [..., C, H, W] as [..., H, W, C], as arrays of images are, and any other value as it is."""
    torch = sys.modules.get("torch")
    is_image = torch is not None and isinstance(value, torch.Tensor) and value.ndim >= 3
    return value.movedim(-3, -1) if is_image else value
