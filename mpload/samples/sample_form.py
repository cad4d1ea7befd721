"""The form of a map-style dataset's samples, learned from those that workers have made."""

from collections.abc import Sequence
from typing import Any

from mpload.errors import ArgumentError
from mpload.samples.leaves import NUMBER_TYPES, LeafKind, as_array, marked, pairs, template_of

__all__ = ["common_template"]


def common_template(samples: Sequence[Any], known: Any = None) -> Any:
    """Return the template of all samples. Leaves whose shapes differ vary, and those that mix ints and floats say so.

    Args:
        samples: samples of the dataset, at least one.
        known: the template so far; None if there is none. If its containers are the same, it is widened.

    Raises:
        ArgumentError: the containers of the samples differ, or no slot can hold one of the values.
    """
    template = template_of(samples[0])
    shapes: dict[int, set[tuple[int, ...]]] = {}
    types: dict[int, set[type]] = {}
    for sample in samples:
        for leaf, value in pairs(template, sample):
            found = as_array(value, leaf.path)
            shape = () if found is None else found[0].shape
            if len(shape) != len(leaf.shape):
                raise ArgumentError(f"{leaf.path} has {len(shape)} axes, but the first sample's has {len(leaf.shape)}")
            shapes.setdefault(leaf.number, set()).add(shape)
            types.setdefault(leaf.number, set()).add(type(value))
    varying = {number for number, several in shapes.items() if len(several) > 1}
    mixed = {number for number, several in types.items() if len(several) > 1 and several <= set(NUMBER_TYPES)}
    try:
        for leaf, before in pairs(template, known):
            if len(before.shape) == len(leaf.shape) and (before.varies or before.shape != leaf.shape):
                varying.add(leaf.number)
            if before.kind is LeafKind.NUMBER or (before.is_number and before.dtype != leaf.dtype):
                mixed.add(leaf.number)
    except (ArgumentError, AttributeError):
        pass  # there is none, or it is that of other samples
    return marked(template, varying, mixed)
