"""The values in a sample of nested containers, and how a slot carries each."""

import copy
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.transport.slots import Field, RaggedField

__all__ = ["NUMBER_TYPES", "Leaf", "LeafKind", "as_array", "leaves_of", "marked", "pairs", "put", "template_of"]

NUMBER = np.dtype([("kind", np.int64), ("bits", np.int64)])
"""A number of Python's: its place in `NUMBER_TYPES`, and the int or the bits of the float."""
NUMBER_TYPES = (bool, int, float)


class LeafKind(StrEnum):
    """What a leaf is, and so what a batch of them becomes."""

    ARRAY = auto()
    """A tensor, array or number: a tensor [B, ...]."""
    NUMBER = auto()
    """A number of Python's, in some samples an int and in others a float: a tensor [B], of what is in a batch."""
    TEXT = auto()
    BYTES = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A place in each sample of a dataset that holds a tensor, array, number, string or bytes."""

    number: int
    path: str
    """How to get there: `sample['image']`."""
    kind: LeafKind
    shape: tuple[int, ...] = ()
    dtype: str = "uint8"
    torch_dtype: str = ""
    """Of a tensor whose dtype NumPy lacks, such as `bfloat16`: its bits travel as integers."""
    varies: bool = False
    """Whether shapes differ among the samples that were probed."""

    @property
    def name(self) -> str:
        """Name of the leaf's field in a slot."""
        return str(self.number)

    @property
    def is_ragged(self) -> bool:
        """Whether its values may be of any size."""
        return self.varies or self.kind in {LeafKind.TEXT, LeafKind.BYTES}

    def field(self, *, room_bytes: int) -> Field | RaggedField:
        """Return how a slot carries the leaf; `room_bytes` are for values of any size."""
        if self.kind is LeafKind.NUMBER:
            return Field(name=self.name, dtype=NUMBER)
        if not self.is_ragged:
            return Field(name=self.name, shape=self.shape, dtype=self.dtype)
        num_dims = len(self.shape) if self.kind is LeafKind.ARRAY else 1
        return RaggedField(name=self.name, dtype=self.dtype, num_dims=num_dims, max_sample_bytes=room_bytes)


def template_of(sample: Any) -> Any:
    """Return the containers of a sample with a `Leaf` in the place of each value.

    Raises:
        ArgumentError: a value is of no type that `default_collate` takes.
    """
    leaves: list[Leaf] = []

    def walk(value: Any, path: str) -> Any:
        found = as_array(value, path)
        if found is not None:
            array, torch_dtype = found
            leaf = Leaf(
                number=len(leaves),
                path=path,
                kind=LeafKind.ARRAY,
                shape=array.shape,
                dtype=array.dtype.str,
                torch_dtype=torch_dtype,
            )
        elif isinstance(value, str | bytes):
            leaf = Leaf(number=len(leaves), path=path, kind=LeafKind.TEXT if isinstance(value, str) else LeafKind.BYTES)
        elif isinstance(value, Mapping):
            inner = {key: walk(value[key], f"{path}[{key!r}]") for key in value}
            if not isinstance(value, MutableMapping):
                return inner
            clone = copy.copy(value)  # as default_collate does: an OrderedDict stays one
            clone.update(inner)
            return clone
        elif isinstance(value, Sequence):
            items = [walk(item, f"{path}[{number}]") for number, item in enumerate(value)]
            if not isinstance(value, tuple):
                return items
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        else:
            raise ArgumentError(
                f"{path} is a {type(value).__name__}, which no batch can hold. Make __getitem__ return tensors, "
                "arrays, numbers, strings, bytes, or tuples, lists and dicts of them"
            )
        leaves.append(leaf)
        return leaf

    return walk(sample, "sample")


def leaves_of(template: Any) -> list[Leaf]:
    """Return the leaves of a template, by their numbers."""
    return [leaf for leaf, _ in pairs(template, template)]


def pairs(template: Any, value: Any, path: str = "sample") -> Iterator[tuple[Leaf, Any]]:
    """Yield each leaf with what `value` holds in its place."""
    if isinstance(template, Leaf):
        yield template, value
    elif isinstance(template, Mapping):
        for key, inner in template.items():
            if not isinstance(value, Mapping) or key not in value:
                raise ArgumentError(f"{path} has no key {key!r}, the first sample's has. Return the same keys always")
            yield from pairs(inner, value[key], f"{path}[{key!r}]")
    else:
        if not isinstance(value, Sequence) or len(value) != len(template):
            raise ArgumentError(
                f"{path} is not a sequence of {len(template)} values, the first sample's is. Return as many always"
            )
        for number, inner in enumerate(template):
            yield from pairs(inner, value[number], f"{path}[{number}]")


def as_array(value: Any, path: str) -> tuple[NDArray[Any], str] | None:
    """Return a tensor, array or number as an array, and its torch dtype if NumPy lacks it; None for other values."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value, path)
    match value:
        case np.ndarray() | np.generic() if value.dtype.kind in "biufc":
            return np.asarray(value), ""
        case bool():
            return np.asarray(value, np.bool_), ""
        case int():
            return np.asarray(value, np.int64), ""
        case float():
            return np.asarray(value, np.float64), ""
        case _:
            return None


def _of_tensor(torch: Any, tensor: Any, path: str) -> tuple[NDArray[Any], str]:
    if tensor.requires_grad:
        raise ArgumentError(f"{path} requires grad, which ends where a process does. Return {path}.detach()")
    try:
        return tensor.numpy(force=True), ""
    except TypeError as error:
        try:
            bits = tensor.cpu().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
            return bits.numpy(), str(tensor.dtype).removeprefix("torch.")
        except (KeyError, NotImplementedError, RuntimeError, TypeError):  # sparse, quantised
            raise ArgumentError(f"{path} is a {tensor.dtype} tensor: {error}. Return another dtype") from error


def marked(template: Any, varying: set[int], mixed: set[int]) -> Any:
    """Return the template with the leaves of these numbers marked: shapes that vary, ints and floats that mix."""
    if isinstance(template, Leaf):
        kind = LeafKind.NUMBER if template.number in mixed else template.kind
        return replace(template, varies=template.number in varying, kind=kind)
    if isinstance(template, MutableMapping):
        for key in template:
            template[key] = marked(template[key], varying, mixed)
        return template
    items = [marked(item, varying, mixed) for item in template]
    return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)


def put(array: Any, place: int, leaf: Leaf, value: Any) -> None:
    """Write the value of a leaf into place `place` of its field's array."""
    match leaf.kind:
        case LeafKind.TEXT if isinstance(value, str):
            array.put(place, value.encode("utf-8", "surrogatepass"))
            return
        case LeafKind.BYTES if isinstance(value, bytes):
            array.put(place, value)
            return
        case LeafKind.NUMBER if isinstance(value, int | float) and not isinstance(value, np.generic):
            is_float = isinstance(value, float)
            kind = NUMBER_TYPES.index(bool if isinstance(value, bool) else float if is_float else int)
            array[place] = kind, np.float64(value).view(np.int64) if is_float else value
            return
    found = as_array(value, leaf.path) if leaf.kind is LeafKind.ARRAY else None
    if found is None:
        raise ArgumentError(
            f"{leaf.path} is a {type(value).__name__}, the first sample's is not. Return one type always"
        )
    made, torch_dtype = found
    is_alike = made.ndim == len(leaf.shape) if leaf.varies else made.shape == leaf.shape
    if not is_alike or made.dtype != np.dtype(leaf.dtype) or torch_dtype != leaf.torch_dtype:
        raise ArgumentError(
            f"{leaf.path}: this sample is {torch_dtype or made.dtype}{list(made.shape)}, the first one is "
            f"{leaf.torch_dtype or np.dtype(leaf.dtype)}{list(leaf.shape)}. Make __getitem__ return one shape and "
            "dtype for all samples"
        )
    if leaf.varies:
        array.put(place, made)
    else:
        array[place] = made
