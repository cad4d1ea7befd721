"""The form of a map-style dataset's samples, learned from those that workers have made."""

from collections.abc import Mapping, Sequence
from typing import Any

from mpload.errors import ArgumentError
from mpload.samples.leaves import NUMBER_TYPES, Leaf, LeafKind, as_array, class_of, marked, pairs, template_of

__all__ = ["common_template", "has_form"]


def has_form(template: Any, sample: Any) -> bool:
    """Return whether a sample has the containers, the keys in their order and the classes of a template's samples.

    Shapes and dtypes may differ. So may the types of Python's numbers.
    """
    if isinstance(template, Leaf):
        return type(sample) in NUMBER_TYPES if template.is_number else class_of(sample) == template.made_of
    if class_of(template) != class_of(sample) or len(template) != len(sample):
        return False
    if isinstance(template, Mapping):
        return list(template) == list(sample) and all(has_form(inner, sample[key]) for key, inner in template.items())
    return all(map(has_form, template, sample))


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
    for place, sample in enumerate(samples):
        if not has_form(template, sample):
            raise ArgumentError(f"sample {place} has other containers, keys or classes than the first one")
        for leaf, value in pairs(template, sample):
            found = as_array(value, leaf.path)
            shape = () if found is None else found[0].shape
            if len(shape) != len(leaf.shape):
                raise ArgumentError(f"{leaf.path} has {len(shape)} axes, but the first sample's has {len(leaf.shape)}")
            shapes.setdefault(leaf.number, set()).add(shape)
            types.setdefault(leaf.number, set()).add(type(value))
    varying = {number for number, several in shapes.items() if len(several) > 1}
    mixed = {number for number, several in types.items() if len(several) > 1 and several <= set(NUMBER_TYPES)}
    if known is not None and has_form(known, samples[0]):
        for leaf, before in pairs(template, known):
            if len(before.shape) == len(leaf.shape) and (before.varies or before.shape != leaf.shape):
                varying.add(leaf.number)
            if before.kind is LeafKind.NUMBER or (before.is_number and before.dtype != leaf.dtype):
                mixed.add(leaf.number)
    return marked(template, varying, mixed)
