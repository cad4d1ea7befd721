"""`Pad`, `Flat`: how values of different shapes become one tensor of a batch."""

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mpload.errors import FAILURES, ArgumentError, cause_of
from mpload.plan.sample_rng import SampleRng
from mpload.samples.joins import Join, flat_shape, join_flat, offsets_of, pad_into, padded_shape
from mpload.samples.transforms import BATCH_STREAM, GlobalGenerators, seed_generators, seed_opencv, takes
from mpload.transport.pickling import ScriptPickler
from mpload.transport.slots import RaggedField

__all__ = [
    "BatchSeed",
    "Collate",
    "CollateError",
    "Flat",
    "FlatValues",
    "Pad",
    "check_collate",
    "join_in_workers",
    "join_of",
    "why_not_in_workers",
]


@dataclass(frozen=True, slots=True)
class Pad:
    """Make one tensor of arrays that differ in size: each is padded at its end to the largest of the batch.

    Attributes:
        value: Fills what an array does not cover. The arrays' dtype must be able to hold it.

    Raises:
        ArgumentError: `value` is not a number.
    """

    value: float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | float):
            raise ArgumentError(f"value must be a number, got {self.value!r}")

    def joined(
        self, arrays: NDArray[Any] | Sequence[NDArray[Any]], *, key: str, torch_dtype: str = ""
    ) -> tuple[NDArray[Any], None]:
        """Return arrays as one array [n, ...]. There are no offsets.

        Args:
            arrays: One array [n, ...], or a list of at least one array. All have the same number of axes.
            key: What the values are, for messages: `sample['boxes']`.
            torch_dtype: The dtype of the values if NumPy lacks it; the arrays then hold its bits.
        """
        if isinstance(arrays, np.ndarray):
            return arrays, None
        dtype = arrays[0].dtype
        joined = np.empty(padded_shape(np.array([array.shape for array in arrays])), dtype)
        pad_into(joined, arrays, _fill_of(self, dtype, key=key, torch_dtype=torch_dtype))
        return joined, None


class FlatValues(NamedTuple):
    """The values of all samples end to end.

    `torch.nested.nested_tensor_from_jagged(*flat)` makes a nested tensor of it, and
    `torch.tensor_split(flat.values, flat.offsets[1:-1])` gives each sample's values.
    """

    values: torch.Tensor
    """[n, ...]: the values of the first sample, then those of the second, and so on."""
    offsets: torch.Tensor
    """int64 [B + 1]: sample i has the values from `offsets[i]` to `offsets[i + 1]`, exclusive."""


@dataclass(frozen=True, slots=True)
class Flat:
    """Join arrays that differ in length end to end, and note where each begins: a batch has `FlatValues` of them.

    Arrays are joined along their first axis. Images and masks are not joined. An array without rows, such as the
    keypoints [0, 0, 3] of an image without objects, may differ from the others in its other axes.
    """

    def joined(
        self, arrays: NDArray[Any] | Sequence[NDArray[Any]], *, key: str, torch_dtype: str = ""
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return arrays end to end, and where each begins and the last one ends, int64 [n + 1].

        Args:
            arrays: One array [n, length, ...], or a list of at least one array [length, ...].
            key: What the values are, for messages: `sample['boxes']`.
            torch_dtype: Has no effect.

        Raises:
            ArgumentError: The arrays with rows, or all arrays if none has rows, differ in another axis than the first.
        """
        del torch_dtype
        if isinstance(arrays, np.ndarray):
            num_samples, length = arrays.shape[:2]
            offsets = np.arange(num_samples + 1, dtype=np.int64) * length
            return arrays.reshape(num_samples * length, *arrays.shape[2:]), offsets
        shapes = [array.shape for array in arrays]
        has_one_form = len({len(shape) for shape in shapes}) == 1
        shape = flat_shape(np.array(shapes)) if has_one_form else None
        if shape is None:
            compared = [each for each in shapes if each[0]] if has_one_form else shapes
            first, *others = compared or shapes
            other = next(each for each in others if each[1:] != first[1:])
            raise ArgumentError(
                f"collate: Flat() joins arrays along their first axis, but {key} differs in others too: it is "
                f"{list(first)} and {list(other)}. Use Pad() for its key: collate={{key: Pad(0), ...}}"
            )
        return join_flat(arrays, shape), offsets_of(np.array([len(array) for array in arrays]))


Collate = Pad | Flat | Mapping[str, Pad | Flat] | Callable[..., Any]
"""How the samples of a batch become the batch."""


def check_collate(collate: Collate | None, *, batch_size: int | None) -> None:
    """Raise `ArgumentError` if this is not a way to make a batch, or if there are no batches."""
    if collate is not None and batch_size is None:
        raise ArgumentError("collate makes batches, but batch_size is None. Pass batch_size= too")
    # A class without `__call__`, such as list, may make a batch itself.
    if isinstance(collate, type) and (
        issubclass(collate, Pad | Flat) or any("__call__" in vars(base) for base in collate.__mro__)
    ):
        raise ArgumentError(f"collate is the class {collate.__name__}. Pass an instance: {collate.__name__}(...)")
    if isinstance(collate, Mapping):
        for key, join in collate.items():
            if not isinstance(join, Pad | Flat):
                raise ArgumentError(f"collate[{key!r}] must be Pad(...) or Flat(), got {join!r:.80}")
    elif collate is not None and not isinstance(collate, Pad | Flat) and not callable(collate):
        raise ArgumentError(
            f"collate must be Pad(...), Flat(), a dict of them, or a callable on a list of samples, got {collate!r:.80}"
        )


def join_of(collate: Collate | None, key: str) -> Pad | Flat | None:
    """Return how the arrays below a key of a sample are joined; None stacks those that are alike."""
    if isinstance(collate, Mapping):
        return collate.get(key)
    return collate if isinstance(collate, Pad | Flat) else None


def join_in_workers(join: Pad | Flat, field: RaggedField, *, max_bytes: int, torch_dtype: str = "") -> Join | None:
    """Return how workers join the arrays in a field of a slot; None if they cannot.

    Args:
        join: What the user wants.
        field: The field.
        max_bytes: Maximum size of the joined array.
        torch_dtype: The dtype of the values if NumPy lacks it.
    """
    fill, is_padded = None, isinstance(join, Pad)
    if isinstance(join, Pad):
        try:
            fill = _fill_of(join, np.dtype(field.dtype), key=field.name, torch_dtype=torch_dtype)
        except ArgumentError:  # raised again for a batch that must be padded
            return None
    into = RaggedField(
        name=f"joined {field.name}",
        dtype=field.dtype,
        num_dims=field.num_dims + is_padded,
        max_sample_bytes=max_bytes,
        is_whole=True,
    )
    return Join(source=field.name, into=into, fill=fill)


def _fill_of(pad: Pad, dtype: np.dtype[Any], *, key: str, torch_dtype: str) -> NDArray[Any]:
    """Return the bits of the value, an array []. The arguments are those of `joined`.

    Raises:
        ArgumentError: The dtype cannot hold the value.
    """
    kind = getattr(torch, torch_dtype) if torch_dtype else torch.from_numpy(np.empty(0, dtype)).dtype
    try:
        fill = torch.tensor(pad.value, dtype=kind, device="cpu")  # regardless of the default device
        fits = kind.is_floating_point or kind.is_complex or fill.item() == pad.value
    except (RuntimeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ArgumentError(
            f"collate: {key} is {str(kind).removeprefix('torch.')}, which cannot hold the value of {pad!r}. Pass "
            "one for each key, such as collate={'image': Pad(0), 'mask': Pad(255)}"
        )
    bits = fill.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[fill.element_size()]) if torch_dtype else fill
    found: NDArray[Any] = bits.numpy()
    return found


def why_not_in_workers(collate: Callable[..., Any]) -> str | None:
    """Return why workers cannot call the user's callable; None if they can."""
    try:
        _PicklerForHosts(io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL).dump(collate)
    except Exception as error:  # noqa: BLE001  pickling calls code of the user's
        return cause_of(error)
    return None


class _PicklerForHosts(ScriptPickler):
    """Refuses tensors on a device: each worker would need memory there."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type not in {"cpu", "meta"}:
            raise pickle.PicklingError(f"it holds a tensor on {value.device}")
        return super().reducer_override(value)


class CollateError(Exception):
    """The user's callable raised an error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSeed:
    """What the random numbers of a batch depend on."""

    seed: int
    epoch: int
    first_id: int
    """The sample_id of the batch's first sample, also if that was skipped; 0 if there is none."""

    def collated(self, collate: Callable[..., Any], samples: list[Any], generators: GlobalGenerators) -> Any:
        """Return what the user's callable makes of samples.

        If it has a parameter `rng`, it gets a generator. If not, the global generators are seeded during the call.

        Args:
            collate: The callable.
            samples: A list of samples.
            generators: Those that the callable may draw from.

        Raises:
            CollateError: It raised an error.
        """
        rng = SampleRng(seed=self.seed, epoch=self.epoch).for_sample(self.first_id, stream=BATCH_STREAM)
        try:
            if generators.held.are_seeded():
                generators.held.seed(rng)
            seed_opencv(seed=self.seed, epoch=self.epoch, sample_id=self.first_id)
            if takes(collate, "rng"):
                return collate(samples, rng=rng)
            with generators.lent():
                seed_generators(rng)
                return collate(samples)
        except FAILURES as error:
            raise CollateError(error) from error
        finally:
            generators.held.restore()
