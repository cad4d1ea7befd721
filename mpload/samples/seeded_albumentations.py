"""Lets transforms of albumentations draw from a sample's generator instead of their own."""

import random
from typing import Any, Self

import numpy as np

from mpload.errors import ArgumentError

__all__ = ["SeededAlbumentations", "is_based_on", "is_of", "is_seeded", "name_of"]


class SeededAlbumentations:
    """An albumentations transform that draws, with all transforms inside it, from the sample's generator.

    `set_random_seed` would make two new generators for each inner transform, all with the same seed. That is slow, and
    all of them would draw the same numbers. `set_random_state` makes them share the sample's generator.

    Raises:
        ArgumentError: The transform is older than albumentations 2.
    """

    __slots__ = ("_python_random", "_transform")

    def __init__(self, transform: Any) -> None:
        if not hasattr(transform, "set_random_state"):
            raise ArgumentError(
                f"{name_of(transform)} cannot be seeded: it needs albumentations 2. pip install -U albumentations"
            )
        self._transform = transform
        self._python_random: _PythonRandom | None = None

    def seed(self, rng: np.random.Generator) -> None:
        """Let the transform draw from `rng`, until the next call."""
        if self._python_random is None or self._python_random.generator is not rng:
            self._python_random = _PythonRandom(rng)
        self._python_random.forget()
        self._transform.set_random_state(rng, self._python_random)

    def __call__(self, rng: np.random.Generator, **data: Any) -> dict[str, Any]:
        """Return what the transform makes of `data`, its targets."""
        self.seed(rng)  # for every call: the user may use the same transform object elsewhere, with another generator
        result: dict[str, Any] = self._transform(**data)
        return result


class _PythonRandom(random.Random):
    """A `random.Random` that draws from a NumPy generator."""

    generator: np.random.Generator

    def __new__(cls, generator: np.random.Generator) -> Self:
        self = super().__new__(cls)
        self.generator = generator
        return self

    def __init__(self, generator: np.random.Generator) -> None:  # noqa: ARG002  the inherited generator needs a seed, but is never drawn from
        super().__init__(0)

    def forget(self) -> None:
        """Drop the second number of a pair that `gauss` has made."""
        self.gauss_next = None

    def random(self) -> float:
        return self.generator.random()

    def getrandbits(self, k: int, /) -> int:
        if k <= 53:  # a double has that many bits and is faster to draw
            return int(self.generator.random() * (1 << k))
        return int.from_bytes(self.generator.bytes((k + 7) // 8), "little") >> (-k % 8)

    def __reduce__(self) -> tuple[Any, ...]:
        return _PythonRandom, (self.generator,)


def is_of(value: Any, libraries: frozenset[str]) -> bool:
    """Return whether an object's class, or a class that it is based on, is from one of these packages."""
    return is_based_on(type(value), libraries)


def is_based_on(kind: type, libraries: frozenset[str]) -> bool:
    """Return whether a class, or one that it is based on, is from one of these packages."""
    return any(str(base.__module__).partition(".")[0] in libraries for base in kind.__mro__)


def is_seeded(transform: Any) -> bool:
    """Return whether an albumentations transform draws from a sample's generator at present."""
    return isinstance(getattr(transform, "py_random", None), _PythonRandom)


def name_of(transform: Any) -> str:
    """Return the name of a function, or of an object's class."""
    return str(getattr(transform, "__qualname__", type(transform).__qualname__))
