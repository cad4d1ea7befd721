"""Datasets and callables that hold random generators, in all the places where scripts keep them."""

import functools
import random
from collections.abc import Callable
from typing import Any

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812  as its documentation does
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

IMAGE = np.full((6, 6, 3), 128, np.uint8)


def noise(*, seed: int | None = None) -> Any:
    """Return a transform whose result shows the numbers that it drew, two transforms deep."""
    return A.Compose([A.OneOf([A.GaussNoise(std_range=(0.1, 0.5), p=1)], p=1)], seed=seed)


GLOBAL = noise()


class Settings:
    """What many scripts call CFG."""

    augment = noise()


class Base(Dataset[Any]):
    """Shows a transformed image."""

    def __len__(self) -> int:
        return 24

    def transformed(self, image: Any) -> Any:
        """Return the transformed image."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.transformed(IMAGE))


class InAttribute(Base):
    """A transform in an attribute."""

    def __init__(self, seed: int | None = None) -> None:
        self.augment = noise(seed=seed)

    def transformed(self, image: Any) -> Any:
        return self.augment(image=image)["image"]


class InGlobal(Base):
    """A transform in a global of the module."""

    def transformed(self, image: Any) -> Any:
        return GLOBAL(image=image)["image"]


class InClass(Base):
    """A transform in an attribute of another class."""

    def transformed(self, image: Any) -> Any:
        return Settings.augment(image=image)["image"]


class Calling(Base):
    """A callable that has the transform."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def transformed(self, image: Any) -> Any:
        return self.call(image)


class Batches(InAttribute):
    """The same, and all samples of a batch with one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    """The same as a stream."""

    def __init__(self) -> None:
        self.augment = noise(seed=1)

    def __iter__(self) -> Any:
        for _ in range(12):
            yield torch.as_tensor(self.augment(image=IMAGE)["image"])


def apply(augment: Any, image: Any) -> Any:
    """Return a transformed image."""
    return augment(image=image)["image"]


def in_closure() -> Callable[[Any], Any]:
    """Return a function whose variable is a transform."""
    augment = noise()
    return lambda image: augment(image=image)["image"]


class Method:
    """An object with a method that transforms."""

    __slots__ = ("augment",)

    def __init__(self) -> None:
        self.augment = noise()

    def apply(self, image: Any) -> Any:
        """Return a transformed image."""
        return self.augment(image=image)["image"]


HOLDERS: dict[str, Callable[[], Any]] = {
    "attribute": InAttribute,
    "attribute with a seed": functools.partial(InAttribute, 3),
    "global": InGlobal,
    "class": InClass,
    "closure": lambda: Calling(in_closure()),
    "partial": lambda: Calling(functools.partial(apply, noise())),
    "method": lambda: Calling(Method().apply),
    "subset": lambda: Subset(InAttribute(), range(24)),
    "batches": Batches,
}
"""By place: makes a dataset."""


KINDS: dict[str, Callable[[], Any]] = {
    "NumPy": lambda: np.random.default_rng(0),
    "NumPy's old one": lambda: np.random.RandomState(0),
    "random": lambda: random.Random(0),
    "torch": lambda: torch.Generator().manual_seed(0),
}
"""By name: makes a generator."""


class Drawing(Base):
    """Draws from a generator of its own."""

    def __init__(self, kind: str) -> None:
        self.rng: Any = KINDS[kind]()

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.rng, torch.Generator):
            return torch.rand((), generator=self.rng)
        return self.rng.random()


class NotDrawing(Drawing):
    """Has a generator from which samples do not draw."""

    def __getitem__(self, index: int) -> Any:
        return index
