"""Groups the members of a shard into samples, as WebDataset does.

The members of a sample are adjacent and share a key, which is the path up to the first dot in its last component. The
rest, after the dot, is the extension. For example, `cats/007.jpg` is the image of sample `cats/007`. Its label is in
`cats/007.cls`, as an ASCII integer, or in `cats/007.json`, under `label` or `cls`. An extension with two parts names a
column: `007.lr.png` and `007.hr.png` are the images of columns `lr` and `hr`. The first sample determines the columns,
and all others must have the same ones.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.units import printable

__all__ = ["Member", "Sample", "column_name", "found_columns", "group_members", "label_in", "split_name"]

_INTEGER = re.compile(rb"\s*(-?\d{1,19})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a shard that is an image or a label."""

    name: str
    key: str
    column: str = ""
    """Name of an image's column."""
    cell: Cell = ""
    """Location of an image's bytes."""
    label: int | None = None
    """The label; None if the member is an image."""


@dataclass(slots=True, kw_only=True)
class Sample:
    """The members of one sample."""

    shard: str
    key: str
    images: dict[str, Member] = field(default_factory=dict)
    label: int | None = None
    label_member: str = ""

    def __str__(self) -> str:
        return f"{printable(self.shard)}: sample {printable(self.key)!r}"

    def cells(self, first: "Sample") -> list[Cell]:
        """Return the cells of the sample's line, in the order of `found_columns(first)`.

        Raises:
            ArgumentError: the sample's members differ from those of the first sample.
        """
        self._check_like(first)
        cells = [self.images[name].cell for name in _image_names(first)]
        return cells if self.label is None else [*cells, self.label]

    def add(self, member: Member) -> None:
        """Add a member to the sample.

        Raises:
            ArgumentError: the sample already has this member, or another image in the same column.
        """
        if member.label is None:
            self._add_image(member)
            return
        if self.label_member == member.name:
            raise ArgumentError(
                f"{printable(self.shard)}: member {printable(member.name)} occurs twice in a row. Delete one"
            )
        if not self.label_member.endswith(".cls"):  # a .cls file wins over a .json file, which may hold other data
            self.label, self.label_member = member.label, member.name

    def _add_image(self, member: Member) -> None:
        if (other := self.images.setdefault(member.column, member)) is not member:
            twice = (
                "occurs twice in a row"
                if other.name == member.name
                else f"and {printable(other.name)} are both column {member.column}"
            )
            raise ArgumentError(
                f"{printable(self.shard)}: member {printable(member.name)} {twice}. A sample has at most one image "
                "per column. Rename one of them (007.lr.png is column lr), or delete it"
            )

    def check_images(self) -> None:
        """Raise `ArgumentError` if the sample has no image."""
        if not self.images:
            raise ArgumentError(
                f"{self} has a label ({printable(self.label_member)}) but no image next to it. Members of a sample "
                "must be adjacent: sort them by name when you write the shard (tar --sort=name)"
            )

    def _check_like(self, first: "Sample") -> None:
        if self.images.keys() == first.images.keys() and (self.label is None) == (first.label is None):
            return
        if missing := first.images.keys() - self.images.keys():
            name = min(missing)
            what = f"no member like {printable(first.images[name].name)} (column {name}), which the first sample has"
        elif extra := self.images.keys() - first.images.keys():
            name = min(extra)
            what = f"a member {printable(self.images[name].name)} (column {name}), which the first sample lacks"
        elif self.label is None:
            what = f"no label member like {printable(first.label_member)}, which the first sample has"
        else:
            what = f"a label ({printable(self.label_member)}), which the first sample lacks"
        raise ArgumentError(
            f"{self} has {what} ({first}). Give all samples the same members, adjacent to each other "
            "(tar --sort=name), or index the others separately"
        )


def found_columns(first: Sample, type_: ColumnType) -> tuple[Column, ...]:
    """Return the columns of the first sample. The columns of images get type `type_`."""
    found = [Column(name=name, type=type_) for name in _image_names(first)]
    if first.label is not None:
        found.append(Column(name="label", type=ColumnType.INT))
    return tuple(found)


def group_members(shard: str, members: Iterable[Member]) -> Iterator[Sample]:
    """Group adjacent members with the same key into samples.

    Raises:
        ArgumentError: a sample has a label but no image, or two images in one column.
    """
    sample = None
    for member in chain(members, [None]):
        if sample is not None and (member is None or sample.key != member.key):
            sample.check_images()
            yield sample
            sample = None
        if member is not None:
            sample = sample or Sample(shard=shard, key=member.key)
            sample.add(member)


def split_name(name: str) -> tuple[str, str]:
    """Return the key and lower-case extension of a member. Both are empty if its name has no stem or no dot."""
    base = name.rpartition("/")[2]
    stem, dot, extension = base.partition(".")
    return (name[: len(name) - len(extension) - 1], extension.lower()) if stem and dot else ("", "")


def column_name(extension: str) -> str:
    """Return the column of an image with this extension: `lr` for `lr.png`, `image` for `png`."""
    stem = extension.rpartition(".")[0]
    name = re.sub(r"\W|^(?=\d)", "_", stem, flags=re.ASCII) or "image"
    return "label_image" if name == "label" else name


def label_in(where: str, data: bytes, extension: str) -> int | None:
    """Return the label in a member's `data`; None if it is a .json file without a label.

    Raises:
        ArgumentError: the label is not an integer, or the file is not JSON. The message starts with `where`.
    """
    if extension == "cls":
        match = _INTEGER.fullmatch(data)
        value: object = int(match[1]) if match else data[:40].decode("utf-8", "replace")
    else:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{where} is not JSON: {error}") from error
        if not isinstance(document, dict):
            return None
        value = document.get("label", document.get("cls"))
        if value is None:
            return None
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ArgumentError(f"{where} contains {value!r:.80}, but a label must be an integer of 64 bits")
    return value


def _image_names(first: Sample) -> list[str]:
    return sorted(first.images, key=lambda name: (name != "image", name))
