"""Datasets and callables that hold random generators, in all the places where scripts keep them."""

import functools
import random
from collections.abc import Callable
from typing import Any

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812  as its documentation does
import numpy as np
import torch
from numpy.random import default_rng
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

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


def default_rng_in_reach(image: Any) -> Any:
    """Use a function that Cython made, whose class cannot say in which module it is."""
    return image + np.uint8(default_rng(0).integers(1))


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


class Wrapping(A.ImageOnlyTransform):  # type: ignore[misc]
    """A transform of the library, as users write them, that calls another one."""

    def __init__(self) -> None:
        super().__init__(p=1)
        self.inner = noise()

    def apply(self, img: Any, **params: Any) -> Any:
        del params
        return apply(self.inner, img)


class Mangled:
    """A transform in a private slot."""

    __slots__ = ("__augment",)

    def __init__(self) -> None:
        self.__augment = noise()

    def __call__(self, image: Any) -> Any:
        """Return a transformed image."""
        return apply(self.__augment, image)


class Phases(dict[str, int]):
    """A dict that has a transform in an attribute."""

    def __init__(self) -> None:
        super().__init__(train=1)
        self.augment = noise()

    def __call__(self, image: Any) -> Any:
        """Return a transformed image."""
        return apply(self.augment, image)


@functools.lru_cache
def kept(number: int) -> Any:
    """Return a transform, always the same one."""
    del number
    return noise()


def by_getter(image: Any) -> Any:
    """Return a transformed image."""
    return apply(kept(1), image)


def by_import(image: Any) -> Any:
    """Return a transformed image, with a transform that is imported here."""
    import tests.support.held as this_module  # noqa: PLW0406  as if it were another one

    return apply(this_module.GLOBAL, image)


class ManyTransforms(Base):
    """A transform for each of many classes."""

    def __init__(self) -> None:
        self.by_class = {number: noise() for number in range(150)}

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(apply(self.by_class[index], IMAGE))


class Annotated(InAttribute):
    """More annotations than are searched."""

    def __init__(self) -> None:
        super().__init__()
        self.images = [[{"boxes": [number]} for number in range(99)] for _ in range(100)]
        self.config = {"data": {"train": {"pipeline": [{"call": noise()}]}}}

    def transformed(self, image: Any) -> Any:
        return apply(self.config["data"]["train"]["pipeline"][0]["call"], image)


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
    "inside of a user's transform": lambda: Calling(functools.partial(apply, Wrapping())),
    "function of a transform": lambda: Calling(functools.partial(apply, A.Lambda(image=Wrapping().apply))),
    "private slot": lambda: Calling(Mangled()),
    "subclass of dict": lambda: Calling(Phases()),
    "cache of a function": lambda: [kept(1), Calling(by_getter)][1],
    "import in a function": lambda: Calling(by_import),
    "large dict": ManyTransforms,
    "config beside annotations": Annotated,
    "large concatenation": lambda: Subset(ConcatDataset([InAttribute() for _ in range(120)]), range(0, 2880, 120)),
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
