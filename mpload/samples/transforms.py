"""Calls the user's transforms, seeded for each sample."""

import inspect
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpload.errors import FAILURES, ArgumentError
from mpload.images.opencv import cv2
from mpload.plan.sample_rng import SampleRng
from mpload.samples.held_generators import HeldGenerators
from mpload.samples.seeded_albumentations import SeededAlbumentations, is_of, name_of

__all__ = [
    "BATCH_STREAM",
    "DECODE_STREAM",
    "TRANSFORM_STREAM",
    "GlobalGenerators",
    "adapt_transform",
    "runs_user_code",
    "seed_generators",
    "seed_opencv",
    "seeds_generators",
    "takes",
    "takes_images",
    "users_code",
]

DECODE_STREAM, TRANSFORM_STREAM, _GLOBALS_STREAM, _HELD_STREAM, BATCH_STREAM = 0, 1, 3, 5, 1 << 32
"""Streams of a sample's random numbers; map-style datasets use 2 and 4. A batch has those of its first sample."""

_T = TypeVar("_T")
_MIX = 0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB  # odd numbers of SplitMix64
_MAX_WORD = (1 << 64) - 1
_IMAGE_LIBRARIES = frozenset({"albumentations", "kornia", "torchvision"})


def runs_user_code(decode: object) -> bool:
    """Return whether a decoder runs the user's code, which may draw from the global generators."""
    return bool(getattr(decode, "runs_user_code", not type(decode).__module__.startswith("mpload.")))


def users_code(*callables: object) -> list[object]:
    """Return those of a sample's decoders and transforms that are not mpload's own, and may hold generators."""
    return [each for each in callables if each is not None and runs_user_code(each)]


def takes_images(transform: Callable[..., Any] | None) -> bool:
    """Return whether a transform, or a submodule if it is a `torch.nn.Module`, is from a library for images only."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(transform, torch.nn.Module):
        return any(is_of(module, _IMAGE_LIBRARIES) for module in transform.modules())
    return is_of(transform, _IMAGE_LIBRARIES)


def adapt_transform(
    transform: Callable[..., Any], *, on_images: bool | None = True
) -> Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]:
    """Return `transform` as a function of an array and the sample's generator.

    - An albumentations transform or `Compose` is called as `transform(image=array)["image"]` and draws only from the
      sample's generator; a seed of its own is overridden.
    - A `torch.nn.Module` or a torchvision transform is called with a tensor that shares the array's memory, [C, H, W]
      for an image [H, W, C], and must return a tensor in the same layout, which becomes an array again.
    - Any other callable is called with the array, and with `rng=` if it has a parameter of that name.

    Torch modules and callables without `rng` may draw from the global generators, which are seeded before each call:
    see `GlobalGenerators`.

    Args:
        transform: The user's callable.
        on_images: Whether arrays of three dimensions are images. None means unknown: torch modules then refuse them.

    Raises:
        ArgumentError: `transform` is not callable, or it is an albumentations transform older than version 2.

    Process:
        The result can be pickled if `transform` can. It is not thread-safe.
    """
    if not callable(transform):
        raise ArgumentError(f"transform must be a callable on an array, got {transform!r}")
    if is_of(transform, frozenset({"albumentations"})):
        return _Albumentations(transform)
    if _is_torch(transform):
        return _TorchTransform(transform, on_images)
    return _PlainTransform(transform)


def seeds_generators(adapted: object) -> bool:
    """Return whether an adapted transform seeds the global generators; others draw only from their `rng` argument."""
    return isinstance(adapted, _TorchTransform) or (isinstance(adapted, _PlainTransform) and not adapted.takes_rng)


class GlobalGenerators:
    """The global generators of `random`, `np.random` and (if it is loaded) torch, for callables that draw from them.

    They are seeded per sample; otherwise forked workers would all draw the same numbers. Seeding takes as long as
    making a sample of text. Therefore the generators are only watched until a callable draws from them: each has a
    twin that draws in step with it, and the two differ once anyone else has drawn. That sample is then made again with
    seeded generators, and so are all later ones. A callable that restores a generator's state after it has drawn is
    not noticed, and draws the same numbers for many samples.

    Args:
        seeds: Seed the generators from the first sample on.
        code: The callables. Transforms of libraries that they hold are seeded always.

    Process:
        Cannot be pickled. Not thread-safe: the generators belong to the whole process.
    """

    __slots__ = ("_numpy", "_numpy_twin", "_torch_bytes", "_twin", "code", "held", "seeds")

    def __init__(self, *, seeds: bool, code: Sequence[object] = ()) -> None:
        self.seeds = seeds
        self.code = code
        self.held = HeldGenerators(*code)
        self._twin = random.Random(0)
        self._numpy, self._numpy_twin = np.random.MT19937(0), np.random.MT19937(0)
        self._torch_bytes = b""

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let samples be made within this context, then restore each generator's state (15 microseconds).

        `np.random` makes normal numbers in pairs. A second one that it still holds is not restored, which would take
        60 microseconds.
        """
        torch = sys.modules.get("torch")
        torch_state = None if torch is None else torch.default_generator.get_state()
        self._torch_bytes = b"" if torch_state is None else _bytes(torch_state)
        python_state = random.getstate()
        self._twin.setstate(python_state)
        if python_state[2] is not None:  # `gauss` would return this left-over number of the script's, unnoticed
            random.setstate((*python_state[:2], None))
        numpy_bits = np.random.get_bit_generator()  # type: ignore[attr-defined]  # its stubs lack it
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            self.held.restore()
            if torch is not None:
                torch.default_generator.set_state(torch_state)
            np.random.set_bit_generator(numpy_bits)  # type: ignore[attr-defined]
            random.setstate(python_state)

    def seed(self, rng: SampleRng, sample_id: int) -> None:
        """Seed the generators for the next call of the user's code on a sample; watched ones stay as they are."""
        if self.seeds:
            seed_generators(rng.for_sample(sample_id, stream=_GLOBALS_STREAM))
        if self.held.are_seeded():
            self.held.seed(rng.for_sample(sample_id, stream=_HELD_STREAM))
        seed_opencv(seed=rng.seed, epoch=rng.epoch, sample_id=sample_id)

    def make(self, make: Callable[[], _T]) -> _T:
        """Return the result of `make`, which seeds the generators if `seeds` is set.

        `make` is called again if it drew unseeded numbers: from a watched generator, or from torch's generator in the
        call that imported torch, as many libraries do only when they are first called.
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
        """Return whether all numbers drawn in a call came from its sample's seed; if not, seed from now on."""
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
    """Seed the global generators with a number drawn from `rng` (9 microseconds, most of them for `random`)."""
    seed = int(rng.integers(1 << 63))
    random.seed(seed)
    np.random.seed(seed >> 31)  # noqa: NPY002  other bits than torch's, or both would draw the same numbers
    if (torch := sys.modules.get("torch")) is not None:  # torch.manual_seed is slow: it also seeds accelerators
        torch.default_generator.manual_seed(seed)


def seed_opencv(*, seed: int, epoch: int, sample_id: int) -> None:
    """Seed OpenCV's generator (1 microsecond), for every sample: its state cannot be read to see who draws from it."""
    mixed = ((seed * _MIX[0] + epoch) * _MIX[1] + sample_id) * _MIX[2] & _MAX_WORD
    cv2.setRNGSeed((mixed ^ mixed >> 29) * _MIX[1] >> 20 & 0x7FFF_FFFF)


class _PlainTransform:
    __slots__ = ("_transform", "takes_rng")

    def __init__(self, transform: Callable[..., Any]) -> None:
        self._transform = transform
        self.takes_rng = takes(transform, "rng")

    def __call__(self, image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        if self.takes_rng:
            return _checked(self._transform(image, rng=rng), self._transform)
        seed_generators(rng)
        return _checked(self._transform(image), self._transform)

    def __reduce__(self) -> tuple[object, ...]:
        return _PlainTransform, (self._transform,)


class _TorchTransform:
    """Calls a torch module with tensors. Torch is already loaded, since the module has been made or unpickled."""

    __slots__ = ("_on_images", "_torch", "_transform")

    def __init__(self, transform: Callable[..., Any], on_images: bool | None) -> None:
        self._transform = transform
        self._on_images = on_images
        self._torch = sys.modules["torch"]

    def __call__(self, image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        if self._on_images is None and image.ndim == 3:
            raise ArgumentError(
                f"transform {name_of(self._transform)} gets an image as [C, H, W] and any other array with its axes as "
                f"they are, but it is unknown which this {image.dtype}{list(image.shape)} is. Give decode an attribute "
                "makes_images: True or False"
            )
        tensor = self._torch.from_numpy(np.require(image, requirements=["C", "W"]))
        seed_generators(rng)
        with self._torch.no_grad():
            result = self._transform(tensor.permute(2, 0, 1) if self._on_images and image.ndim == 3 else tensor)
        if not isinstance(result, self._torch.Tensor):
            raise ArgumentError(f"transform {name_of(self._transform)} returned {type(result).__name__}, not a tensor")
        array: NDArray[Any] = result.numpy()
        return np.ascontiguousarray(array.transpose(1, 2, 0) if self._on_images and array.ndim == 3 else array)

    def __reduce__(self) -> tuple[object, ...]:
        return _TorchTransform, (self._transform, self._on_images)


class _Albumentations:
    __slots__ = ("_seeded", "_transform")

    def __init__(self, transform: Any) -> None:
        self._transform = transform
        self._seeded = SeededAlbumentations(transform)

    def __call__(self, image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        return _checked(self._seeded(rng, image=image)["image"], self._transform)

    def __reduce__(self) -> tuple[object, ...]:
        return _Albumentations, (self._transform,)


def _bytes(tensor: Any) -> bytes:
    state: bytes = tensor.numpy().tobytes()  # comparing bytes is three times as fast as comparing tensors
    return state


def _is_torch(transform: Callable[..., Any]) -> bool:
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(transform, torch.nn.Module)
    return is_module or is_of(transform, frozenset({"torchvision"}))


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether `function` can be called with an argument `name=`."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return parameter is not None and parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}


def _checked(result: Any, transform: Any) -> NDArray[Any]:
    if isinstance(result, np.ndarray):
        return result
    raise ArgumentError(
        f"transform {name_of(transform)} returned {type(result).__name__}, not a NumPy array. Return the array: "
        "samples become tensors after they are batched, so leave out ToTensorV2, ToTensor and similar transforms",
    )
