"""TFRecord files of `tf.train.Example` as sources. They are indexed in place, by the spans of their images.

Neither indexing nor reading needs protobuf. A record consists of the length of its data as uint64, a checksum of the
length, the data, and a checksum of the data. Checksums are masked CRC32C. The first record determines the columns:
every feature with a single bytes value that starts like an image file is a column, and an int64 feature with the name
of a label is the label. Other features are left out.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.ingest.rows import LeftOut, Reason, Rows, rename_columns, root_and_prefix
from mpload.ingest.signatures import looks_like_image
from mpload.storage.ranges import Span
from mpload.units import MIB, printable

__all__ = ["Example", "is_tfrecord", "open_tfrecords", "read_example"]

_LABEL_NAMES = ("label", "labels", "class", "cls", "target")
_HEAD_BYTES, _TAIL_BYTES = 12, 4
_COPY = "Is it a complete copy? Copy or write it again"


@dataclass(slots=True)
class Example:
    """The features of a `tf.train.Example`. Those with a single value: bytes as `(start, end)`, and integers."""

    names: set[str] = field(default_factory=set)
    """All features, also those with several values or none."""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    integers: dict[str, int] = field(default_factory=dict)


@contextmanager
def open_tfrecords(
    files: Sequence[str], *, columns: str | None = None, root: str | os.PathLike[str] | None = None
) -> Iterator[Rows]:
    """Open TFRecord files in the order given.

    Args:
        files: absolute paths.
        columns: other names for the columns.
        root: a folder that contains all files, or a URL. Their common parent by default.

    Memory: constant: one record.

    Raises:
        ArgumentError: the first record contains no image, another record lacks a feature of the first, or crc32c is
            not installed.
        StorageError: a file is truncated, damaged or cannot be read.
    """
    parent = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    base, prefix = root_and_prefix(parent, root)
    records = chain.from_iterable(_records(file) for file in files)
    first = next(records, None)
    images, label = (None, None) if first is None else _choose(first)
    if not images:
        features = (
            "" if first is None else ", ".join(map(printable, sorted({*first.example.spans, *first.example.integers})))
        )
        contents = "no records" if first is None else f"features {features}" if features else "no usable features"
        raise ArgumentError(
            f"{printable(files[0])}: contains no image in its first record ({contents}). A feature of tf.train.Example "
            "must hold the bytes of one image file"
        )
    names = ["image"] if len(images) == 1 else [_column_name(name) for name in images]
    if len(set(names)) < len(names):
        names = [f"image_{number}" for number in range(len(images))]
    found = [Column(name=name, type=ColumnType.SPAN) for name in names]
    if label is not None:
        found.append(Column(name="label", type=ColumnType.INT))

    def cells(record: "_Record") -> list[Cell]:
        path = prefix + record.file[len(parent) :].lstrip("/")
        spans = [record.span(name) for name in images]
        made: list[Cell] = [Span(path, start, end - start) for start, end in spans]
        return made if label is None else [*made, record.label(label)]

    left_out = LeftOut()
    for name in sorted(first.example.names.difference(images, [label])) if first else ():
        left_out.add(Reason.FEATURE, name)
    yield Rows(
        columns=rename_columns(tuple(found), columns),
        root=base,
        cells=(cells(record) for record in chain([first] if first else [], records)),
        left_out=left_out,
    )


def is_tfrecord(head: bytes, crc32c: Callable[[bytes], int]) -> bool:
    """Whether a file starts with a record's length and its checksum. `head` is the first 12 or more bytes."""
    return len(head) >= _HEAD_BYTES and _masked(crc32c(head[:8])) == int.from_bytes(head[8:12], "little")


def read_example(data: bytes) -> Example:
    """Parse a `tf.train.Example`.

    Raises:
        ValueError: `data` is not a `tf.train.Example`, or is damaged.
    """
    example = Example()
    for number, start, end in _messages(data, 0, len(data)):
        if number == 1:  # features
            for inner, entry_start, entry_end in _messages(data, start, end):
                if inner == 1:
                    _read_feature(data, entry_start, entry_end, example)
    return example


@dataclass(frozen=True, slots=True)
class _Record:
    file: str
    number: int
    offset_bytes: int
    example: Example
    images: frozenset[str]

    def span(self, name: str) -> tuple[int, int]:
        if name not in self.images:
            fault = "is not an image" if name in self.example.spans else "is missing, or is not a single value"
            raise ArgumentError(
                f"{self}: feature {printable(name)} {fault}, but in the first record it is an image. {_ALIKE}"
            )
        start, end = self.example.spans[name]
        return self.offset_bytes + start, self.offset_bytes + end

    def label(self, name: str) -> int:
        if (label := self.example.integers.get(name)) is None:
            raise ArgumentError(
                f"{self}: feature {printable(name)} is not a single integer, as in the first record. {_ALIKE}"
            )
        return label

    def __str__(self) -> str:
        return f"{printable(self.file)}: record {self.number}"


_ALIKE = "Index the files separately, or write them again with the same features"


def _records(file: str) -> Iterator[_Record]:
    try:
        import crc32c  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(
            f"{printable(file)}: indexing TFRecord needs the package crc32c: pip install 'mpload[tfrecord]'"
        ) from error
    try:
        with Path(file).open("rb", buffering=MIB) as opened:
            num_bytes = os.fstat(opened.fileno()).st_size
            number = offset = 0
            while offset < num_bytes:
                data = _read_record(opened, offset, num_bytes, printable(file), crc32c.crc32c)
                try:
                    example = read_example(data)
                except ValueError as error:
                    raise StorageError(
                        f"{printable(file)}: record {number} is not a tf.train.Example: {error}"
                    ) from error
                images = frozenset(
                    name for name, (start, end) in example.spans.items() if looks_like_image(data[start:end][:8])
                )
                yield _Record(file, number, offset + _HEAD_BYTES, example, images)
                offset += _HEAD_BYTES + len(data) + _TAIL_BYTES
                number += 1
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{printable(file)}: cannot be read: {error.strerror or error}") from error


def _read_record(file: BinaryIO, offset: int, num_bytes: int, name: str, crc32c: Callable[[bytes], int]) -> bytes:
    head = file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        raise StorageError(f"{name}: ends within the record at byte {offset}. {_COPY}")
    if not is_tfrecord(head, crc32c):
        raise StorageError(f"{name}: the checksum of the record's length at byte {offset} is wrong. {_COPY}")
    length = int.from_bytes(head[:8], "little")
    if offset + _HEAD_BYTES + length + _TAIL_BYTES > num_bytes:
        raise StorageError(f"{name}: ends within the record at byte {offset}, which has {length} bytes. {_COPY}")
    data = file.read(length)
    tail = file.read(_TAIL_BYTES)
    if len(data) < length or len(tail) < _TAIL_BYTES:
        raise StorageError(f"{name}: was truncated while it was being read. {_COPY}")
    if _masked(crc32c(data)) != int.from_bytes(tail, "little"):
        raise StorageError(f"{name}: the checksum of the record at byte {offset} is wrong. {_COPY}")
    return data


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _choose(record: _Record) -> tuple[list[str], str | None]:
    """Return the features that are images, and the feature that is the label or None."""
    labels = [
        (_LABEL_NAMES.index(last), name)
        for name in record.example.integers
        if (last := name.rpartition("/")[2].lower()) in _LABEL_NAMES
    ]
    return sorted(record.images), min(labels)[1] if labels else None


def _column_name(feature: str) -> str:
    name = re.sub(r"\W|^(?=\d)", "_", feature, flags=re.ASCII) or "image"
    return "label_image" if name == "label" else name


# Protocol buffers: a message is a sequence of fields, each a tag (field number and wire type) and a value.

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _read_feature(data: bytes, start: int, end: int, example: Example) -> None:
    """Parse an entry of the map of features. Its field 1 is the name, and field 2 is the feature."""
    name = ""
    spans: list[tuple[int, int]] = []
    integers: list[int] = []
    for number, entry_start, entry_end in _messages(data, start, end):
        if number == 1:
            name = data[entry_start:entry_end].decode("utf-8", "surrogateescape")
        elif number == 2:
            for kind, list_start, list_end in _messages(data, entry_start, entry_end):
                if kind == 1:
                    spans += [(at, to) for inner, at, to in _messages(data, list_start, list_end) if inner == 1]
                elif kind == 3:
                    integers += _integers(data, list_start, list_end)
    example.names.add(name)
    example.spans.pop(name, None)  # if a name occurs twice, the last entry counts
    example.integers.pop(name, None)
    if len(spans) == 1:
        example.spans[name] = spans[0]
    if len(integers) == 1:
        example.integers[name] = integers[0]


def _messages(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number, start and end of each field that is a message, bytes or a string."""
    return ((number, at, to) for number, wire, at, to in _fields(data, start, end) if wire == _BYTES)


def _integers(data: bytes, start: int, end: int) -> Iterator[int]:
    """Yield the values of an Int64List, packed or not."""
    for number, wire, value_start, to in _fields(data, start, end):
        at = value_start
        while number == 1 and wire in {_VARINT, _BYTES} and at < to:
            value, at = _varint(data, at, to)
            yield value - (1 << 64) if value >> 63 else value


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number, the wire type, and the start and end of the value, of each field."""
    while start < end:
        tag, start = _varint(data, start, end)
        wire = tag & 7
        if wire == _VARINT:
            to = _varint(data, start, end)[1]
        elif wire == _BYTES:
            length, start = _varint(data, start, end)
            to = start + length
        elif wire in {_FIXED32, _FIXED64}:
            to = start + (4 if wire == _FIXED32 else 8)
        else:
            raise ValueError(f"wire type {wire} at byte {start}")
        if to > end:
            raise ValueError(f"the field at byte {start} extends beyond its message")
        yield tag >> 3, wire, start, to
        start = to


def _varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return a 64-bit integer, and the position after it."""
    value = 0
    for place, byte in enumerate(data[start : min(end, start + 10)]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, start + place + 1
    raise ValueError(f"the number at byte {start} does not end")
