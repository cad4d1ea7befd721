"""Transforms of the user's, seeded for each sample."""

import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from mpload.errors import FAILURES, ArgumentError

__all__ = [
    "GlobalGenerators",
    "adapt_transform",
    "seed_generators",
    "seed_opencv",
    "seeds_generators",
    "takes_images",
]

_T = TypeVar("_T")
_MIX = 0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB  # odd numbers of SplitMix64
_MAX_WORD = (1 << 64) - 1
_IMAGE_LIBRARIES = frozenset({"albumentations", "kornia", "torchvision"})


def takes_images(transform: Callable[..., Any] | None) -> bool:
    """Return whether a transform is one, or a `torch.nn.Module` made of ones, of a library that knows images only."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(transform, torch.nn.Module):
        return any(_is_of(module, _IMAGE_LIBRARIES) for module in transform.modules())
    return _is_of(transform, _IMAGE_LIBRARIES)


def adapt_transform(
    transform: Callable[..., Any], *, on_images: bool | None = True
) -> Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]:
    """Return `transform` as a function of an array and the sample's generator.

    - An albumentations transform or `Compose` is called as `transform(image=array)["image"]` and draws from the
      sample's generator alone; a seed of its own is overridden.
    - A `torch.nn.Module` or a transform of torchvision is called with a tensor that shares the array's memory,
      [C, H, W] for an image [H, W, C], and must return a tensor like it, which becomes an array again.
    - Any other callable is called with the array, and with `rng=` where it has a parameter of that name.

    The last two, without `rng`, may draw from the global generators, which they seed: see `GlobalGenerators`.

    Args:
        transform: a callable.
        on_images: whether arrays of three dimensions are images; None: nobody says, and a torch module refuses them.

    Raises:
        ArgumentError: `transform` is no callable, or an albumentations transform older than version 2.

    Process:
        What is returned can be pickled where `transform` can. One thread at a time.
    """
    if not callable(transform):
        raise ArgumentError(f"transform must be a callable on an array, got {transform!r}")
    if _is_of(transform, frozenset({"albumentations"})):
        if not hasattr(transform, "set_random_state"):
            raise ArgumentError(
                f"{_name(transform)} cannot be seeded: it needs albumentations 2. pip install -U albumentations"
            )
        return _Albumentations(transform)
    if _is_torch(transform):
        return _TorchTransform(transform, on_images)
    return _PlainTransform(transform)


def seeds_generators(adapted: object) -> bool:
    """Return whether an adapted transform seeds the global generators; others draw from the one that they are given."""
    return isinstance(adapted, _TorchTransform) or (isinstance(adapted, _PlainTransform) and not adapted.takes_rng)


class GlobalGenerators:
    """The global generators of `random`, `np.random` and, where it is loaded, torch, for callables that draw from them.

    A sample gets its own numbers from them: otherwise forked workers would all draw the same ones. Seeding takes as
    long as making a sample of text. So until a callable draws, the generators are only watched: twins draw in step
    with them, and are out of step when somebody else has drawn. Then the sample is made again, seeded as all after it.
    A callable that puts the state back that it has found is not noticed, and draws the same numbers for many samples.

    Args:
        seeds: seed them from the first sample on.

    Process:
        Not to be pickled. One thread at a time: the generators are the whole process's.
    """

    __slots__ = ("_numpy", "_numpy_twin", "_torch_bytes", "_twin", "seeds")

    def __init__(self, *, seeds: bool) -> None:
        self.seeds = seeds
        self._twin = random.Random(0)
        self._numpy, self._numpy_twin = np.random.MT19937(0), np.random.MT19937(0)
        self._torch_bytes = b""

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let samples be made meanwhile; afterwards each generator goes on where it was (15 microseconds).

        But for the second of two normal numbers that `np.random` made at once: to keep it too takes 60 microseconds.
        """
        torch = sys.modules.get("torch")
        torch_state = None if torch is None else torch.default_generator.get_state()
        self._torch_bytes = b"" if torch_state is None else _bytes(torch_state)
        python_state = random.getstate()
        self._twin.setstate(python_state)
        if python_state[2] is not None:  # the second of two normal numbers: the script's, and drawn without a trace
            random.setstate((*python_state[:2], None))
        numpy_bits = np.random.get_bit_generator()  # type: ignore[attr-defined]  # its stubs lack it
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if torch is not None:
                torch.default_generator.set_state(torch_state)
            np.random.set_bit_generator(numpy_bits)  # type: ignore[attr-defined]
            random.setstate(python_state)

    def make(self, make: Callable[[], _T]) -> _T:
        """Return what `make` returns, which seeds the generators where `seeds` is set.

        It is called again where it drew numbers that were not seeded: those of a watched generator, and torch's in the
        call that has imported it, as many libraries do only when they are called.
        """
        while True:
            was_seeding, had_torch = self.seeds, "torch" in sys.modules
            try:
                made = make()
            except FAILURES:
                if self._was_seeded(was_seeding, had_torch):
                    raise
            else:
                if self._was_seeded(was_seeding, had_torch):
                    return made

    def _was_seeded(self, was_seeding: bool, had_torch: bool) -> bool:
        """Return whether all that was drawn in a call came from a seed of its sample; if not, seed from now on."""
        torch = sys.modules.get("torch")
        if was_seeding and had_torch == (torch is not None):
            return True
        self.seeds = (
            was_seeding
            or had_torch != (torch is not None)
            or random.random() != self._twin.random()
            or self._numpy.random_raw() != self._numpy_twin.random_raw()
            or (torch is not None and _bytes(torch.default_generator.get_state()) != self._torch_bytes)
        )
        return not self.seeds


def seed_generators(rng: np.random.Generator) -> None:
    """Seed the global generators with a number that `rng` draws (9 microseconds, most of them for `random`)."""
    seed = int(rng.integers(1 << 63))
    random.seed(seed)
    np.random.seed(seed >> 31)  # noqa: NPY002  not torch's bits: both would draw the same numbers
    if (torch := sys.modules.get("torch")) is not None:  # torch.manual_seed is slow: it looks for accelerators
        torch.default_generator.manual_seed(seed)


def seed_opencv(*, seed: int, epoch: int, sample_id: int) -> None:
    """Seed OpenCV's generator (a microsecond). It shows no state, so drawing from it cannot be noticed."""
    mixed = ((seed * _MIX[0] + epoch) * _MIX[1] + sample_id) * _MIX[2] & _MAX_WORD
    cv2.setRNGSeed((mixed ^ mixed >> 29) * _MIX[1] >> 20 & 0x7FFF_FFFF)


class _PlainTransform:
    __slots__ = ("_transform", "takes_rng")

    def __init__(self, transform: Callable[..., Any]) -> None:
        self._transform = transform
        self.takes_rng = _takes_rng(transform)

    def __call__(self, image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        if self.takes_rng:
            return _checked(self._transform(image, rng=rng), self._transform)
        seed_generators(rng)
        return _checked(self._transform(image), self._transform)

    def __reduce__(self) -> tuple[object, ...]:
        return _PlainTransform, (self._transform,)


class _TorchTransform:
    """Calls a torch module with tensors. Finds torch loaded, by whoever made or unpickled the module."""

    __slots__ = ("_on_images", "_torch", "_transform")

    def __init__(self, transform: Callable[..., Any], on_images: bool | None) -> None:
        self._transform = transform
        self._on_images = on_images
        self._torch = sys.modules["torch"]

    def __call__(self, image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        if self._on_images is None and image.ndim == 3:
            raise ArgumentError(
                f"transform {_name(self._transform)} would get an image as [C, H, W] and an array as it is, but nobody "
                f"says which this {image.dtype}{list(image.shape)} is. Give decode makes_images: True or False"
            )
        tensor = self._torch.from_numpy(np.require(image, requirements=["C", "W"]))
        seed_generators(rng)
        with self._torch.no_grad():
            result = self._transform(tensor.permute(2, 0, 1) if self._on_images and image.ndim == 3 else tensor)
        if not isinstance(result, self._torch.Tensor):
            raise ArgumentError(f"transform {_name(self._transform)} returned {type(result).__name__}, not a tensor")
        array: NDArray[Any] = result.numpy()
        return np.ascontiguousarray(array.transpose(1, 2, 0) if self._on_images and array.ndim == 3 else array)

    def __reduce__(self) -> tuple[object, ...]:
        return _TorchTransform, (self._transform, self._on_images)


class _Albumentations:
    """Gives an albumentations transform, and all inside it, the sample's generator to draw from.

    `set_random_seed` would make two new generators for every transform inside, all with the same seed: slow, and all
    would draw the same numbers. `set_random_state` shares ours among them, which is the sample's already.
    """

    __slots__ = ("_python_random", "_transform")

    def __init__(self, transform: Any) -> None:
        self._transform = transform
        self._python_random: _PythonRandom | None = None

    def __call__(self, image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        if self._python_random is None or self._python_random.generator is not rng:
            self._python_random = _PythonRandom(rng)
        self._python_random.forget()
        # Each time, as the user may hold the same transforms elsewhere, where they were given another generator.
        self._transform.set_random_state(rng, self._python_random)
        return _checked(self._transform(image=image)["image"], self._transform)

    def __reduce__(self) -> tuple[object, ...]:
        return _Albumentations, (self._transform,)


class _PythonRandom(random.Random):
    """Python's `random`, drawing from a NumPy generator."""

    generator: np.random.Generator

    def __new__(cls, generator: np.random.Generator) -> Self:
        self = super().__new__(cls)
        self.generator = generator
        return self

    def __init__(self, generator: np.random.Generator) -> None:  # noqa: ARG002  to seed what is never drawn from
        super().__init__(0)

    def forget(self) -> None:
        """Drop the second of two numbers that `gauss` makes at once."""
        self.gauss_next = None

    def random(self) -> float:
        return self.generator.random()

    def getrandbits(self, k: int, /) -> int:
        if k <= 53:  # the bits of one double, which are drawn faster
            return int(self.generator.random() * (1 << k))
        return int.from_bytes(self.generator.bytes((k + 7) // 8), "little") >> (-k % 8)

    def __reduce__(self) -> tuple[Any, ...]:
        return _PythonRandom, (self.generator,)


def _bytes(tensor: Any) -> bytes:
    state: bytes = tensor.numpy().tobytes()  # compared three times as fast as tensors are
    return state


def _is_torch(transform: Callable[..., Any]) -> bool:
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(transform, torch.nn.Module)
    return is_module or _is_of(transform, frozenset({"torchvision"}))


def _is_of(transform: Any, libraries: frozenset[str]) -> bool:
    return any(base.__module__.partition(".")[0] in libraries for base in type(transform).__mro__)


def _takes_rng(transform: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(transform).parameters.get("rng")
    except (TypeError, ValueError):  # a builtin that does not tell
        return False
    return parameter is not None and parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}


def _checked(result: Any, transform: Any) -> NDArray[Any]:
    if isinstance(result, np.ndarray):
        return result
    raise ArgumentError(
        f"transform {_name(transform)} returned {type(result).__name__}, not a NumPy array. Return the array: samples "
        "become tensors after they are batched, so leave out ToTensorV2, ToTensor and their like",
    )


def _name(transform: Any) -> str:
    return str(getattr(transform, "__qualname__", type(transform).__qualname__))
