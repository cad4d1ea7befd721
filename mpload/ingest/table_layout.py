"""What the columns of an Arrow or Parquet file become: images, the label, and values that are copied to the text."""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa

from mpload.errors import ArgumentError
from mpload.index.columns import Column, ColumnType, format_columns, parse_columns
from mpload.ingest.table_cells import cell_type
from mpload.units import printable

__all__ = ["Layout", "texts_in"]

_LABEL_NAMES = ("label", "labels", "class", "cls", "target")
_LABEL = _LABEL_NAMES[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a schema are images, which one is the label, and which others are copied."""

    type: ColumnType
    """The type of the columns of images."""
    images: tuple[tuple[str, ...], ...]
    """The name of each image column and, if it is a struct, of its field of bytes."""
    label: str | None
    values: tuple[tuple[str, ColumnType], ...]
    """The name and type of each other column: the label first, if there is one."""
    unknown: tuple[str, ...]
    """Columns whose values cannot be written as text."""
    classes: tuple[tuple[str, tuple[str, ...]], ...]
    """The names of the classes that the integers of a column number, for each such column."""

    @classmethod
    def of(cls, schema: pa.Schema, file: str, type_: ColumnType, texts: Collection[str] = ()) -> "Layout":
        """Return the layout of a schema.

        Args:
            schema: the schema.
            file: the name of the table.
            type_: the type of the columns of images.
            texts: names of columns in the index whose integers are copied as text.

        Raises:
            ArgumentError: two columns have the same name, or none has images.
        """
        if twice := [name for name, number in Counter(schema.names).items() if number > 1]:
            raise ArgumentError(
                f"{printable(file)}: has {schema.names.count(twice[0])} columns called {twice[0]!r}. Write the table "
                "with a name of its own for each column"
            )
        images = _images(schema)
        if not images:
            others = ", ".join(f"{column.name!r} ({column.type})" for column in schema) or "no columns"
            raise ArgumentError(
                f"{printable(file)}: has no column of images, but {others}. "
                "Images must be bytes, or structs with a field 'bytes'. Write texts, numbers or paths as a CSV file, "
                "and index that with the types of its columns, such as --columns 'text:str label:int'"
            )
        integers = [column.name for column in schema if pa.types.is_integer(column.type)]
        classes = tuple((name, names) for name, names in _class_names(schema).items() if name in integers)
        label = _label_of(integers, [name for name, _ in classes])
        types = {
            column.name: cell_type(column.type)
            for column in schema
            if column.name not in {image[0] for image in images}
        }
        names = ([] if label is None else [label]) + [name for name in types if name != label]
        found = cls(
            type=type_,
            images=tuple(images),
            label=label,
            values=tuple((name, kind) for name in names if (kind := types[name]) is not None),
            unknown=tuple(name for name in names if types[name] is None),
            classes=classes,
        )
        return found._with_texts(texts)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of an index: those of images, then `values`."""
        names = ["image"] if len(self.images) == 1 else [_column_name(image[0]) for image in self.images]
        if len(set(names)) < len(names):
            names = [f"image_{number}" for number in range(len(names))]
        found = [Column(name=name, type=self.type) for name in names]
        taken = set(names)
        for name, kind in self.values:
            plain = self._label_name if name == self.label else _identifier(name)
            unique = next(
                each for number in count(1) if (each := f"{plain}_{number}" if number > 1 else plain) not in taken
            )
            taken.add(unique)
            found.append(Column(name=unique, type=kind))
        return tuple(found)

    @property
    def _label_name(self) -> str:
        """The label's name in the index: its own, if several columns number classes, so that none is renamed."""
        others = {_identifier(name) for name, _ in self.values if name != self.label}
        is_one_of_several = len(self.classes) > 1 and _LABEL not in others
        return _identifier(str(self.label)) if is_one_of_several else _LABEL

    def chosen(self, numbers: Collection[int]) -> "Layout":
        """Return the layout with all images, but only those values that are among the columns `numbers`."""
        first = len(self.images)
        return replace(self, values=tuple(each for place, each in enumerate(self.values, first) if place in numbers))

    def names(self, columns: tuple[Column, ...], numbers: Collection[int]) -> dict[str, tuple[str, ...]]:
        """Return the names of the classes that integers number, by the names of the columns of an index.

        Args:
            columns: the columns of the index.
            numbers: their numbers among the columns of this layout.
        """
        known = dict(self.classes)
        originals = [""] * len(self.images) + [name for name, _ in self.values]
        return {
            column.name: known[originals[number]]
            for column, number in zip(columns, numbers, strict=True)
            if originals[number] in known and column.type is ColumnType.INT
        }

    def declared_as_text(self, name: str) -> str:
        """Return the columns with text instead of integers in the column `name` of the table."""
        place = len(self.images) + [other for other, _ in self.values].index(name)
        columns = list(self.columns)
        columns[place] = replace(columns[place], type=ColumnType.STR)
        return format_columns(tuple(columns))

    def _with_texts(self, texts: Collection[str]) -> "Layout":
        names = [column.name for column in self.columns[len(self.images) :]]
        return replace(
            self,
            values=tuple(
                (name, ColumnType.STR if kind is ColumnType.INT and unique in texts else kind)
                for (name, kind), unique in zip(self.values, names, strict=True)
            ),
        )


def texts_in(columns: str | None) -> frozenset[str]:
    """Return the names of the columns that are declared as texts."""
    wanted = () if columns is None else parse_columns(columns)
    return frozenset(column.name for column in wanted if column.type is ColumnType.STR)


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary, or the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _images(schema: pa.Schema) -> list[tuple[str, ...]]:
    """Return the columns of images. Bytes of a fixed size, such as hashes, are images only if there are no others."""
    images: list[tuple[str, ...]] = []
    for column in schema:
        if _is_bytes(column.type):
            images.append((column.name,))
        elif _has_bytes(column.type):
            images.append((column.name, "bytes"))
    return images or [(column.name,) for column in schema if pa.types.is_fixed_size_binary(column.type)]


def _is_bytes(kind: pa.DataType) -> bool:
    kind = _value_type(kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _has_bytes(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    at = kind.get_field_index("bytes")
    return at >= 0 and _is_bytes(kind.field(at).type)


def _label_of(integers: Collection[str], declared: Collection[str]) -> str | None:
    """Return the column of labels, if there is one.

    It is the first that numbers classes, or the one of these that is called `label`, as an index demands. If there is
    none, it is an integer column with a name such as `label`.
    """
    if declared:
        return _LABEL if _LABEL in declared else next(iter(declared))
    return next((name for name in _LABEL_NAMES if name in integers), None)


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the class names of each column that the Hugging Face metadata declares a ClassLabel, in its order."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {
            name: feature["names"]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: tuple(names)
        for name, names in found.items()
        if isinstance(names, list) and all(isinstance(item, str) for item in names)
    }


def _column_name(name: str) -> str:
    plain = _identifier(name)
    return "label_image" if plain == "label" else plain


def _identifier(name: str) -> str:
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in name)
    return f"_{plain}" if plain[:1].isdigit() else plain or "column"
