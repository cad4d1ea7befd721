"""Members of a shard that belong to one sample, as WebDataset groups them.

Members of a sample follow each other and share a key: the path up to the first dot of its last part. What comes after
the dot is the extension: `cats/007.jpg` is the image of `cats/007`, `cats/007.cls` its label (an ASCII integer), or
`cats/007.json` with a `label` or `cls` in it. Images with a name in their extension, `007.lr.png` and `007.hr.png`, are
columns of that name. The first sample says which columns there are; all others must have the same.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.ingest.rows import shown

__all__ = ["Member", "Sample", "column_name", "found_columns", "group_members", "label_in", "split_name"]

_INTEGER = re.compile(rb"\s*(-?\d{1,19})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member that is an image or a label."""

    name: str
    key: str
    column: str = ""
    """Of an image."""
    cell: Cell = ""
    """Where the bytes of an image lie."""
    label: int | None = None
    """None: an image."""


@dataclass(slots=True, kw_only=True)
class Sample:
    """The members of one sample."""

    shard: str
    key: str
    images: dict[str, Member] = field(default_factory=dict)
    label: int | None = None
    label_member: str = ""

    def __str__(self) -> str:
        return f"{shown(self.shard)}: sample {shown(self.key)!r}"

    def cells(self, first: "Sample") -> list[Cell]:
        """Return the cells of the sample's line, as `found_columns` has them.

        Raises:
            ArgumentError: the sample has not the members that the first one has.
        """
        self._check_like(first)
        cells = [self.images[name].cell for name in _image_names(first)]
        return cells if self.label is None else [*cells, self.label]

    def add(self, member: Member) -> None:
        """Take a member in.

        Raises:
            ArgumentError: there is one like it already.
        """
        if member.label is None:
            self._add_image(member)
            return
        if self.label_member == member.name:
            raise ArgumentError(f"{shown(self.shard)}: member {shown(member.name)} stands twice in a row. Delete one")
        if not self.label_member.endswith(".cls"):  # which says nothing else, where a .json may say many things
            self.label, self.label_member = member.label, member.name

    def _add_image(self, member: Member) -> None:
        if (other := self.images.setdefault(member.column, member)) is not member:
            twice = (
                "stands twice in a row"
                if other.name == member.name
                else f"and {shown(other.name)} are both column {member.column}"
            )
            raise ArgumentError(
                f"{shown(self.shard)}: member {shown(member.name)} {twice}. A sample has one image of a name: "
                "rename one (007.lr.png is column lr), or delete it"
            )

    def check_images(self) -> None:
        """Raise `ArgumentError` where there is no image."""
        if not self.images:
            raise ArgumentError(
                f"{self} has a label ({shown(self.label_member)}) but no image beside it. Members of a sample must "
                "follow each other: sort them by name when the shard is written (tar --sort=name)"
            )

    def _check_like(self, first: "Sample") -> None:
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


def found_columns(first: Sample, type_: ColumnType) -> tuple[Column, ...]:
    """Return the columns that the first sample has, its images being cells of `type_`."""
    found = [Column(name=name, type=type_) for name in _image_names(first)]
    if first.label is not None:
        found.append(Column(name="label", type=ColumnType.INT))
    return tuple(found)


def group_members(shard: str, members: Iterable[Member]) -> Iterator[Sample]:
    """Yield the runs of members with one key.

    Raises:
        ArgumentError: a sample has a label and no image, or two images of one name.
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
    """Return key and lower-case extension of a member; no key where its name has no dot or starts with one."""
    base = name.rpartition("/")[2]
    stem, dot, extension = base.partition(".")
    return (name[: len(name) - len(extension) - 1], extension.lower()) if stem and dot else ("", "")


def column_name(extension: str) -> str:
    """Return the name of the column that an image with this extension is in: `lr` for `lr.png`."""
    stem = extension.rpartition(".")[0]
    name = re.sub(r"\W|^(?=\d)", "_", stem, flags=re.ASCII) or "image"
    return "label_image" if name == "label" else name


def label_in(where: str, data: bytes, extension: str) -> int | None:
    """Return the label that a member holds; None where a .json holds none.

    Raises:
        ArgumentError: it holds something else; the message starts with `where`.
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
        raise ArgumentError(f"{where} holds {value!r:.80}, where a label must be an integer of 64 bits")
    return value


def _image_names(first: Sample) -> list[str]:
    return sorted(first.images, key=lambda name: (name != "image", name))
