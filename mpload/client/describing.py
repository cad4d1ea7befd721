"""The `Description` of a dataset. A server and the loader that asks it compute it, each from a dataset of its own."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any

from mpload.client.protocol import Description, described_fields
from mpload.index.columns import format_columns
from mpload.samples.by_source import BySource
from mpload.samples.pipeline import Pipeline
from mpload.transport.slots import Field, RaggedField
from mpload.units import format_count

__all__ = ["described", "description_of"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def description_of(pipeline: Pipeline, sample_fields: Sequence[Field | RaggedField]) -> Description:
    """Return the description of the samples that a pipeline makes.

    Decoders and transforms are compared by their names and parameters. What a function does is not compared: servers
    and loaders need the same version of the user's code.

    Args:
        pipeline: makes the samples.
        sample_fields: the fields of a slot that hold the samples, without those of a whole batch.
    """
    index, makers, cache = pipeline.index, pipeline.makers, pipeline.cache
    columns = format_columns(index.columns)
    parts = [
        f"decode={described(makers.decode)}",
        f"transform={described(pipeline.transform)}",
        f"on_error={pipeline.policy.action}",
    ]
    if makers.shapes is not None:
        parts.append(f"shapes of buckets={described(makers.shapes.shapes)}")
    if getattr(cache, "is_resized", False):
        parts.append(f"resized share={getattr(cache, 'fraction', None)!r}")  # decides which samples lose detail
    return Description(
        index=f"{index.fingerprint} ({format_count(len(index))} samples: {columns})",
        pipeline=", ".join(parts),
        fields=described_fields(sample_fields),
    )


def described(value: object) -> str:
    """Return a decoder, a transform or a parameter of one as text that is equal in all processes.

    Functions and objects appear by name, without the module: the user's script is `__main__` in one process and an
    imported module in another.
    """
    match value:
        case Enum():
            return str(value.value)
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
        case BySource():
            return f"BySource({_items({_name_of(source): choice for source, choice in value.choices.items()})})"
        case Mapping():
            return f"{{{_items(value)}}}"
        case list() | tuple():
            return f"[{', '.join(map(described, value))}]"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(described, value)))}}}"
        case partial():
            return f"partial({', '.join(map(described, (value.func, *value.args, value.keywords)))})"
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f"{each.name}={described(getattr(value, each.name))}" for each in fields(value) if each.repr)
        return f"{type(value).__qualname__}({', '.join(shown)})"
    return _described_object(value)


def _described_object(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):  # a function, a method or a class
        return name.rpartition("<locals>.")[2]
    if type(value).__repr__ is not object.__repr__:
        with suppress(Exception):  # of the user's code
            return " ".join(_ADDRESS.sub("", repr(value)).split())
    return type(value).__qualname__


def _items(values: Mapping[Any, Any]) -> str:
    return ", ".join(f"{key!s}: {described(each)}" for key, each in values.items())


def _name_of(source: Any) -> str:
    """Return the name of a mixture's source, whose folder may differ from machine to machine."""
    return PurePath(str(getattr(source, "path", source))).name
