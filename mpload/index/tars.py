"""Tar shards as WebDataset writes them, indexed in place: no extraction, one pass over the headers.

Members of a sample follow each other and share a key: the path up to the first dot of its last part. What comes after
the dot is the extension: `cats/007.jpg` is the image of `cats/007`, `cats/007.cls` its label (an ASCII integer), or
`cats/007.json` with a `label` or `cls` in it. Images with a name in their extension, `007.lr.png` and `007.hr.png`, are
columns of that name. The first sample says which columns there are; all others must have the same.
"""

import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, Column, ColumnType, Span
from mpload.index.rows import LeftOut, Reason, Rows, place_below, rename_columns, shown
from mpload.units import MIB

__all__ = ["open_tars", "refuse_compressed", "refuse_compressed_name"]

_COMPRESSED_NAMES = re.compile(r".*\.(tgz|tbz2?|txz|tzst|tar\.(gz|bz2|xz|zst|lz4|Z))", re.IGNORECASE | re.DOTALL)
_COMPRESSED_STARTS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_INTEGER = re.compile(rb"\s*(-?\d{1,19})\s*")
_MAX_LABEL_MEMBER_BYTES = 16 * MIB
_BLOCK_BYTES = 512


@contextmanager
def open_tars(
    shards: Sequence[str],
    *,
    extensions: tuple[str, ...],
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Iterator[Rows]:
    """Open tar shards, in the order given.

    Args:
        shards: absolute paths.
        extensions: endings of the names of images, in lower case.
        columns: other names for the columns.
        root: a folder that holds all shards, or a URL; their common parent by default.

    Memory: constant: one sample's members.

    Raises:
        ArgumentError: a shard is compressed, or a sample is not like the first one.
        StorageError: a shard is truncated, broken or cannot be read.
    """
    parent = os.path.commonpath([os.path.dirname(shard) for shard in shards])  # noqa: PTH120
    place, prefix = place_below(parent, root)
    left_out = LeftOut()
    samples = chain.from_iterable(_samples(shard, extensions, left_out) for shard in shards)
    first = next(samples, None)
    if first is None:
        raise ArgumentError(
            f"{shown(shards[0])}{f' and {len(shards) - 1} more shards' if len(shards) > 1 else ''}: no image found. "
            f"Names of images end with {', '.join(extensions)}"
        )
    images = sorted(first.images, key=lambda name: (name != "image", name))
    found = [Column(name=name, type=ColumnType.SPAN) for name in images]
    if first.label is not None:
        found.append(Column(name="label", type=ColumnType.INT))

    def cells(sample: _Sample) -> list[Cell]:
        sample.check_like(first)
        path = prefix + sample.shard[len(parent) :].lstrip("/")
        members: list[Cell] = []
        for name in images:
            member = sample.images[name]
            members.append(Span(path, member.offset_data, member.size))
        return members if sample.label is None else [*members, sample.label]

    yield Rows(
        columns=rename_columns(tuple(found), columns),
        root=place,
        cells=(cells(sample) for sample in chain([first], samples)),
        left_out=left_out,
    )


def refuse_compressed_name(path: str) -> None:
    """Raise `ArgumentError` where the name of a file says that it is a compressed tar."""
    if _COMPRESSED_NAMES.fullmatch(path):
        raise ArgumentError(f"{shown(path)}: is a compressed tar, {_COMPRESSED}")


def refuse_compressed(path: str, head: bytes) -> None:
    """Raise `ArgumentError` where a file's first bytes are those of a compressed one."""
    for start, name in _COMPRESSED_STARTS.items():
        if head.startswith(start):
            raise ArgumentError(f"{shown(path)}: is compressed with {name}, {_COMPRESSED}")


_COMPRESSED = "where members must lie as they are, to be read one by one. Decompress it: images are compressed already"


@dataclass(slots=True, kw_only=True)
class _Sample:
    shard: str
    key: str
    images: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    label: int | None = None
    label_member: str = ""

    def __str__(self) -> str:
        return f"{shown(self.shard)}: sample {shown(self.key)!r}"

    def add_image(self, column: str, member: tarfile.TarInfo) -> None:
        if (other := self.images.setdefault(column, member)) is not member:
            twice = (
                "stands twice in a row"
                if other.name == member.name
                else f"and {shown(other.name)} are both column {column}"
            )
            raise ArgumentError(
                f"{shown(self.shard)}: member {shown(member.name)} {twice}. A sample has one image of a name: "
                "rename one (007.lr.png is column lr), or delete it"
            )

    def add_label(self, member: tarfile.TarInfo, label: int) -> None:
        if self.label_member == member.name:
            raise ArgumentError(f"{shown(self.shard)}: member {shown(member.name)} stands twice in a row. Delete one")
        if not self.label_member.endswith(".cls"):  # which says nothing else, where a .json may say many things
            self.label, self.label_member = label, member.name

    def check_images(self) -> None:
        if not self.images:
            raise ArgumentError(
                f"{self} has a label ({shown(self.label_member)}) but no image beside it. Members of a sample must "
                "follow each other: sort them by name when the shard is written (tar --sort=name)"
            )

    def check_like(self, first: "_Sample") -> None:
        if self.images.keys() == first.images.keys() and (self.label is None) == (first.label is None):
            return
        if missing := first.images.keys() - self.images.keys():
            name = min(missing)
            what = f"no member like {shown(first.images[name].name)} (column {name}), which the first sample has"
        elif extra := self.images.keys() - first.images.keys():
            name = min(extra)
            what = f"a member {shown(self.images[name].name)} (column {name}), which the first sample has not"
        elif self.label is None:
            what = f"no label member like {shown(first.label_member)}, which the first sample has"
        else:
            what = f"a label ({shown(self.label_member)}), which the first sample has not"
        raise ArgumentError(
            f"{self} has {what} ({first}). Give all samples the same members, following each other "
            "(tar --sort=name), or index the others on their own"
        )


def _samples(shard: str, extensions: tuple[str, ...], left_out: LeftOut) -> Iterator[_Sample]:
    """Yield the runs of members with one key that hold an image or a label."""
    sample = None
    try:
        with Path(shard).open("rb") as file:
            refuse_compressed(shard, file.read(8))
            file.seek(0)
            for member in _members(shard, file):
                key, extension = _split_name(member.name)
                label = None
                is_image = bool(key) and f".{extension}".endswith(extensions)
                if extension in {"cls", "json"} and key and not is_image:
                    _refuse_scattered(shard, member)
                    label = _read_label(shard, file, member, extension)
                if not is_image and label is None:
                    if not member.isdir():
                        left_out.add(Reason.EXTENSION, f"{shard}: {member.name}")
                    continue
                if sample is None or sample.key != key:
                    if sample is not None:
                        sample.check_images()
                        yield sample
                    sample = _Sample(shard=shard, key=key)
                if label is not None:
                    sample.add_label(member, label)
                else:
                    _refuse_scattered(shard, member)
                    sample.add_image(_column_name(extension), member)
    except tarfile.TarError as error:
        raise StorageError(f"{shown(shard)}: is no whole tar file: {error}. {_COPY}") from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{shown(shard)}: cannot be read: {error.strerror or error}") from error
    if sample is not None:
        sample.check_images()
        yield sample


def _members(shard: str, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # or it would keep them all
            yield member
        # tarfile takes a header that it cannot read for the end: look whether the mark of the end stands there.
        file.seek(tar.offset)
        mark = file.read(_BLOCK_BYTES)
    if not mark:
        raise StorageError(f"{shown(shard)}: ends at byte {tar.offset} without the mark of a tar's end. {_COPY}")
    if mark.strip(b"\0"):
        raise StorageError(f"{shown(shard)}: has no member header at byte {tar.offset}, but other bytes. {_COPY}")


_COPY = "Is its copy complete? Copy or write it again"


def _split_name(name: str) -> tuple[str, str]:
    """Return key and lower-case extension of a member; no key where its name has no dot or starts with one."""
    base = name.rpartition("/")[2]
    stem, dot, extension = base.partition(".")
    return (name[: len(name) - len(extension) - 1], extension.lower()) if stem and dot else ("", "")


def _column_name(extension: str) -> str:
    stem = extension.rpartition(".")[0]
    name = re.sub(r"\W|^(?=\d)", "_", stem, flags=re.ASCII) or "image"
    return "label_image" if name == "label" else name


def _refuse_scattered(shard: str, member: tarfile.TarInfo) -> None:
    kind = "a link" if member.islnk() or member.issym() else "sparse" if member.issparse() else ""
    if kind or not member.isreg():
        raise ArgumentError(
            f"{shown(shard)}: member {shown(member.name)} is {kind or 'no regular file'}: its bytes do not lie in one "
            "piece at its place. Write the shard again with plain files (tar --hard-dereference --dereference)"
        )


def _read_label(shard: str, file: BinaryIO, member: tarfile.TarInfo, extension: str) -> int | None:
    """Return the label that a member holds; None where a .json holds none."""
    where = f"{shown(shard)}: member {shown(member.name)}"
    if member.size > _MAX_LABEL_MEMBER_BYTES:
        raise ArgumentError(f"{where} has {member.size} bytes: a label member has at most {_MAX_LABEL_MEMBER_BYTES}")
    file.seek(member.offset_data)
    data = file.read(member.size)
    if len(data) < member.size:
        raise StorageError(f"{where} is cut off at byte {member.offset_data + len(data)}. {_COPY}")
    if extension == "cls":
        match = _INTEGER.fullmatch(data)
        value: object = int(match[1]) if match else data[:40].decode("utf-8", "replace")
    else:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{where} is no JSON: {error}") from error
        if not isinstance(document, dict):
            return None
        value = document.get("label", document.get("cls"))
        if value is None:
            return None
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ArgumentError(f"{where} holds {value!r:.80}, where a label must be an integer of 64 bits")
    return value
