"""The values in a sample of nested containers, and how a slot carries each."""

import copy
import pickle
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.transport.slots import Field, RaggedField

__all__ = [
    "NUMBER_TYPES",
    "Leaf",
    "LeafKind",
    "as_array",
    "class_of",
    "exact_pairs",
    "leaves_of",
    "mapped",
    "marked",
    "pairs",
    "put",
    "template_of",
    "typed_template_of",
]

NUMBER = np.dtype([("kind", np.int64), ("bits", np.int64)])
"""A Python number: the index of its type in `NUMBER_TYPES`, then the int or the bits of the float."""
NUMBER_TYPES = (bool, int, float)


class LeafKind(StrEnum):
    """The kind of a leaf, which decides what a batch of such leaves becomes."""

    ARRAY = auto()
    """A tensor, array or number. A batch has a tensor [B, ...]."""
    NUMBER = auto()
    """A Python number, in some samples an int and in others a float. A batch has a tensor [B] of its values' type."""
    TEXT = auto()
    BYTES = auto()
    LIST = auto()
    """A list of values of any form, such as arrays. A batch has a list of the lists."""
    OBJECT = auto()
    """A value of any form without arrays, such as parsed JSON. A batch has a list of the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A place in each sample of a dataset that holds a tensor, array, number, string or bytes."""

    number: int
    path: str
    """An expression that leads to the leaf: `sample['image']`."""
    kind: LeafKind
    shape: tuple[int, ...] = ()
    dtype: str = "uint8"
    torch_dtype: str = ""
    """The dtype of a tensor if NumPy lacks it, such as `bfloat16`; its bits are then carried as integers."""
    varies: bool = False
    """Whether samples may have different shapes."""
    is_number: bool = False
    """Whether the values are Python's numbers."""
    made_of: str = ""
    """The class of the values: see `class_of`."""
    made_by: str = "__getitem__"
    """The user's code that makes the values, for messages."""

    @property
    def name(self) -> str:
        """The name of the leaf's field in a slot."""
        return str(self.number)

    @property
    def is_ragged(self) -> bool:
        """Whether the leaf's values may differ in size."""
        return self.varies or self.kind not in {LeafKind.ARRAY, LeafKind.NUMBER}

    def field(self, *, room_bytes: int) -> Field | RaggedField:
        """Return the slot's field for the leaf; values that differ in size may take up to `room_bytes` each."""
        if self.kind is LeafKind.NUMBER:
            return Field(name=self.name, dtype=NUMBER)
        if not self.is_ragged:
            return Field(name=self.name, shape=self.shape, dtype=self.dtype)
        num_dims = len(self.shape) if self.kind is LeafKind.ARRAY else 1
        return RaggedField(name=self.name, dtype=self.dtype, num_dims=num_dims, max_sample_bytes=room_bytes)


def template_of(
    sample: Any,
    *,
    made_by: str = "__getitem__",
    whole: Callable[[str, Any], LeafKind | None] = lambda _path, _value: None,
) -> Any:
    """Return the containers of a sample with each value replaced by a `Leaf`.

    Args:
        sample: The sample.
        made_by: The user's code that made it, for messages.
        whole: Returns the kind of a value, given its path in the sample, if its form does not matter; else None.

    Raises:
        ArgumentError: `default_collate` does not accept the type of a value.
    """
    leaves: list[Leaf] = []

    def walk(value: Any, path: str) -> Any:
        if (kind := whole(path, value)) is not None:
            leaves.append(Leaf(number=len(leaves), path=path, kind=kind, made_by=made_by))
            return leaves[-1]
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
                is_number=type(value) in NUMBER_TYPES,
                made_of=class_of(value),
                made_by=made_by,
            )
        elif isinstance(value, str | bytes):
            kind = LeafKind.TEXT if isinstance(value, str) else LeafKind.BYTES
            leaf = Leaf(number=len(leaves), path=path, kind=kind, made_of=class_of(value), made_by=made_by)
        elif isinstance(value, Mapping):
            inner = {key: walk(value[key], f"{path}[{key!r}]") for key in value}
            if not isinstance(value, MutableMapping):
                return inner
            clone = copy.copy(value)  # keeps the type, as default_collate does: an OrderedDict stays one
            clone.update(inner)
            return clone
        elif isinstance(value, Sequence):
            items = [walk(item, f"{path}[{number}]") for number, item in enumerate(value)]
            if not isinstance(value, tuple):
                return items
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        else:
            raise ArgumentError(
                f"{path} is a {type(value).__name__}, which no batch can hold. Make {made_by} return tensors, arrays, "
                f"numbers, strings, bytes, or tuples, lists and dicts of them{_or_collate(made_by)}"
            )
        leaves.append(leaf)
        return leaf

    return walk(sample, "sample")


def _or_collate(made_by: str) -> str:
    return ", or pass a collate_fn that makes batches of them" if made_by == "__getitem__" else ""


def typed_template_of(sample: Mapping[str, Any], *, fixed_keys: Collection[str], whole_keys: Collection[str]) -> Any:
    """Return the template of a sample that column decoders make.

    Args:
        sample: The sample.
        fixed_keys: Keys whose arrays have the same shape in all samples; those of other keys may have any.
        whole_keys: Keys whose values may have any form, unless they are arrays. So may lists, whose lengths differ.
    """
    whole_paths = {f"sample[{key!r}]" for key in whole_keys}

    def whole(path: str, value: Any) -> LeafKind | None:
        if path in whole_paths and not _is_array(value):
            return LeafKind.OBJECT
        return LeafKind.LIST if isinstance(value, list) else None

    template = template_of(sample, made_by="decode or transform", whole=whole)
    varying = {
        leaf.number
        for key, inner in template.items()
        for leaf in leaves_of(inner)
        if key not in fixed_keys and leaf.kind is LeafKind.ARRAY and leaf.shape
    }
    return marked(template, varying, set())


def leaves_of(template: Any) -> list[Leaf]:
    """Return the leaves of a template, ordered by number."""
    return [leaf for leaf, _ in pairs(template, template)]


def pairs(template: Any, value: Any, path: str = "sample") -> Iterator[tuple[Leaf, Any]]:
    """Yield each leaf of the template together with the corresponding value in the sample `value`.

    Raises:
        ArgumentError: The containers of `value` differ from the template's.
    """
    if isinstance(template, Leaf):
        yield template, value
    elif isinstance(template, Mapping):
        for key, inner in template.items():
            if not isinstance(value, Mapping) or key not in value:
                raise ArgumentError(
                    f"{path} has no key {key!r}, but the first sample's has. Return the same keys for all samples"
                )
            yield from pairs(inner, value[key], f"{path}[{key!r}]")
    else:
        if not isinstance(value, Sequence) or len(value) != len(template):
            raise ArgumentError(
                f"{path} is not a sequence of {len(template)} values, but the first sample's is. Return the same "
                "number of values for all samples"
            )
        for number, inner in enumerate(template):
            yield from pairs(inner, value[number], f"{path}[{number}]")


def exact_pairs(template: Any, sample: Any) -> Iterator[tuple[Leaf, Any]]:
    """Yield the same as `pairs`, unless a dict in the sample has a key that the template lacks.

    Raises:
        ArgumentError: The containers of the sample differ from the template's.
    """
    _refuse_new_keys(template, sample, "sample")
    yield from pairs(template, sample)


def _refuse_new_keys(template: Any, value: Any, path: str) -> None:
    if isinstance(template, Mapping) and isinstance(value, Mapping):
        if new := [key for key in value if key not in template]:
            raise ArgumentError(
                f"{path} has a key {new[0]!r}, but the first sample's has not. Return the same keys for all samples"
            )
        for key, inner in value.items():
            _refuse_new_keys(template[key], inner, f"{path}[{key!r}]")
    elif isinstance(template, tuple) and isinstance(value, tuple):
        for number, (inner_template, inner) in enumerate(zip(template, value, strict=False)):
            _refuse_new_keys(inner_template, inner, f"{path}[{number}]")


def class_of(value: Any) -> str:
    """Return the name of a value's class: `numpy.ndarray`. A class that was pickled by value keeps its name."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def as_array(value: Any, path: str) -> tuple[NDArray[Any], str] | None:
    """Return a tensor, array or number as an array, with its torch dtype if NumPy lacks it; None for other values."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value, path)
    match value:
        case np.ndarray() | np.generic() if (
            value.dtype.kind in "biufc" and value.dtype.char not in "gG"
        ):  # long doubles
            array = np.asarray(value)
            return (array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))), ""
        case bool():
            return np.asarray(value, np.bool_), ""
        case int():
            if not -(1 << 63) <= value < 1 << 63:
                raise ArgumentError(
                    f"{path} is an integer of {value.bit_length()} bits and a sign, but a batch holds int64, at most "
                    "63 bits and a sign. Return it as a text or a float"
                )
            return np.asarray(value, np.int64), ""
        case float():
            return np.asarray(value, np.float64), ""
        case _:
            return None


def _is_array(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray | np.generic) or (torch is not None and isinstance(value, torch.Tensor))


def _of_tensor(torch: Any, tensor: Any, path: str) -> tuple[NDArray[Any], str]:
    if tensor.requires_grad:
        raise ArgumentError(f"{path} requires grad, which cannot cross processes. Return {path}.detach()")
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind, instead = ("nested", "unbind()") if tensor.is_nested else ("sparse", "to_dense()")
        raise ArgumentError(
            f"{path} is a {kind} tensor, which cannot be stacked. Return {path}.{instead}, or pass a collate_fn"
        )
    try:
        return tensor.numpy(force=True), ""
    except TypeError as error:
        try:
            bits = tensor.cpu().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
            return bits.numpy(), str(tensor.dtype).removeprefix("torch.")
        except (KeyError, NotImplementedError, RuntimeError, TypeError):  # quantised
            raise ArgumentError(f"{path} is a {tensor.dtype} tensor: {error}. Return another dtype") from error


def marked(template: Any, varying: set[int], mixed: set[int]) -> Any:
    """Mark leaves of the template, by number: those whose shape varies, and those that mix ints and floats."""

    def mark(leaf: Leaf) -> Leaf:
        kind = LeafKind.NUMBER if leaf.number in mixed else leaf.kind
        return replace(leaf, varies=leaf.number in varying, kind=kind)

    return mapped(template, mark)


def mapped(template: Any, change: Callable[[Leaf], Any]) -> Any:
    """Return the containers of a template with `change(leaf)` in place of each leaf."""
    if isinstance(template, Leaf):
        return change(template)
    if isinstance(template, Mapping):
        clone: Any = copy.copy(template)
        clone.update({key: mapped(inner, change) for key, inner in template.items()})
        return clone
    items = [mapped(item, change) for item in template]
    return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)


def put(array: Any, place: int, leaf: Leaf, value: Any) -> None:
    """Write a leaf's value into its field's array, at `place`."""
    match leaf.kind:
        case LeafKind.TEXT if isinstance(value, str):
            array.put(place, value.encode("utf-8", "surrogatepass"))
            return
        case LeafKind.BYTES if isinstance(value, bytes):
            array.put(place, value)
            return
        case LeafKind.OBJECT:
            array.put(place, _pickled(value, leaf.path))
            return
        case LeafKind.LIST if isinstance(value, list):
            array.put(place, _pickled(value, leaf.path))
            return
        case LeafKind.NUMBER if isinstance(value, int | float) and not isinstance(value, np.generic):
            is_float = isinstance(value, float)
            kind = NUMBER_TYPES.index(bool if isinstance(value, bool) else float if is_float else int)
            array[place] = kind, np.float64(value).view(np.int64) if is_float else value
            return
    found = as_array(value, leaf.path) if leaf.kind is LeafKind.ARRAY else None
    if found is None:
        raise ArgumentError(
            f"{leaf.path} is a {type(value).__name__}, but the first sample's is not. Return the same type for all "
            "samples"
        )
    made, torch_dtype = found
    has_shape = made.ndim == len(leaf.shape) if leaf.varies else made.shape == leaf.shape
    if not has_shape or made.dtype != np.dtype(leaf.dtype) or torch_dtype != leaf.torch_dtype:
        raise ArgumentError(
            f"{leaf.path}: this sample is {torch_dtype or made.dtype}{list(made.shape)}, the first one is "
            f"{leaf.torch_dtype or np.dtype(leaf.dtype)}{list(leaf.shape)}. Make {leaf.made_by} return the "
            f"same shape and dtype for all samples{_or_collate(leaf.made_by)}"
        )
    if leaf.varies:
        array.put(place, made)
    else:
        array[place] = made


def _pickled(value: Any, path: str) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise ArgumentError(f"{path} cannot be passed to the training process: {error}") from error
