"""Groups the members of a shard into samples, as WebDataset does.

The members of a sample are adjacent and share a key, which is the path up to the first dot in its last component. The
rest, after the dot, is the extension. For example, `cats/007.jpg` is the image of sample `cats/007`. Its label is in
`cats/007.cls`, as an ASCII integer, or in `cats/007.json`, under `label` or `cls`. An extension with two parts names a
column: `007.lr.png` and `007.hr.png` are the images of columns `lr` and `hr`. The first sample determines the columns,
and all others must have the same ones.

Texts, JSON and arrays beside an image are attached files: `007.txt` is column `txt`, `007.caption.txt` is column
`caption`. A .json file that holds nothing but the label is no column, unless `columns` names it. Then, .json files of
other samples that hold more are counted as left out.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, ColumnType, parse_columns
from mpload.ingest.rows import LeftOut, Reason, choose_columns
from mpload.units import printable

__all__ = [
    "Member",
    "Sample",
    "choose_cells",
    "column_name",
    "found_columns",
    "group_members",
    "is_attached",
    "label_in",
    "split_name",
]

_ATTACHED = frozenset({"txt", "json", "npy", "npz", "xml"})
_INTEGER = re.compile(rb"\s*(-?\d{1,19})\s*")
_LABELS = ("label", "cls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a shard that is an image, a label or an attached file. A .json file with a label can be both."""

    name: str
    key: str
    column: str = ""
    """Name of an image's column; empty if the member is not an image."""
    cell: Cell | None = None
    """Location of the bytes; None if the member is only a label."""
    label: int | None = None
    """The label; None if the member contains none."""
    is_column: bool = True
    """Whether the file makes a column if it belongs to the first sample; False if it holds nothing but the label."""

    @property
    def is_attached(self) -> bool:
        """Whether the member is neither an image nor a label, and so makes no sample by itself."""
        return not self.column and self.label is None


@dataclass(slots=True, kw_only=True)
class Sample:
    """The members of one sample."""

    shard: str
    key: str
    images: dict[str, Member] = field(default_factory=dict)
    attached: dict[str, Member] = field(default_factory=dict)
    """Attached files by their extension, in lower case."""
    label: int | None = None
    label_member: str = ""

    def __str__(self) -> str:
        return f"{printable(self.shard)}: sample {printable(self.key)!r}"

    @property
    def extensions(self) -> list[str]:
        """Extensions of the attached files that make columns if this is the first sample, in their order."""
        return sorted(extension for extension, member in self.attached.items() if member.is_column)

    def cells(
        self, first: "Sample", left_out: LeftOut, extensions: Collection[str], labels: Collection[str]
    ) -> list[Cell]:
        """Return the cells of the sample's line, in the order of `found_columns(first)`.

        Args:
            first: the first sample.
            left_out: counts the attached files that the first sample lacks.
            extensions: the attached files that are wanted. The cells of others are empty.
            labels: the attached files that are only read for the label. They are counted if they say anything else.

        Raises:
            ArgumentError: the sample's members differ from those of the first sample.
        """
        self._check_like(first)
        cells: list[Cell] = [_cell(self.images[name]) for name in _image_names(first)]
        if self.label is not None:
            cells.append(self.label)
        for extension in first.extensions:
            if extension not in extensions:
                cells.append("")
                continue
            if extension not in self.attached:
                raise ArgumentError(
                    f"{self} has no member like {printable(first.attached[extension].name)}, which the first sample "
                    f"has ({first}). Give all samples the same members, or give columns without this one, such as "
                    "columns='image:span'"
                )
            cells.append(_cell(self.attached[extension]))
        if self.attached.keys() - first.attached.keys():
            for extension, member in self.attached.items():
                if extension not in first.attached:
                    left_out.add(Reason.NOT_IN_FIRST, f"{self.shard}: {member.name}")
        for extension in labels:
            found = self.attached.get(extension)
            if found is not None and (found.is_column or found.label not in {None, self.label}):
                left_out.add(Reason.MORE_THAN_LABEL, f"{self.shard}: {found.name}")
        return cells

    def add(self, member: Member) -> None:
        """Add a member to the sample.

        Raises:
            ArgumentError: the sample already has this member, or another image in the same column.
        """
        if member.column:
            self._add_image(member)
            return
        if self.label_member == member.name or (member.cell is not None and self._attach(member) is not member):
            raise ArgumentError(
                f"{printable(self.shard)}: member {printable(member.name)} occurs twice in a row. Delete one"
            )
        # A .cls file wins over a .json file, which may hold other data.
        if member.label is not None and not self.label_member.endswith(".cls"):
            self.label, self.label_member = member.label, member.name

    def _attach(self, member: Member) -> Member:
        return self.attached.setdefault(split_name(member.name)[1], member)

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
                f"{self} has a label ({printable(self.label_member)}) but no image. Every sample needs an image, and "
                "its members must be adjacent. If the image is elsewhere in the shard, sort the members by name when "
                "you write it (tar --sort=name). For arrays alone, use HDF5 or LMDB; for texts alone, a CSV file and "
                "--columns"
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
    """Return the columns of the first sample. The columns of files get type `type_`."""
    found = [Column(name=name, type=type_) for name in _image_names(first)]
    if first.label is not None:
        found.append(Column(name="label", type=ColumnType.INT))
    taken = {"label", *first.images}
    for extension in first.extensions:
        stem, _, last = extension.rpartition(".")
        name = _identifier(stem or last)
        if name in taken:
            name = _identifier(extension)
        if name in taken:
            raise ArgumentError(
                f"{first}: member {printable(first.attached[extension].name)} and another one are both column "
                f"{name!r}. Rename one of them (007.caption.txt is column caption), or delete it"
            )
        taken.add(name)
        found.append(Column(name=name, type=type_))
    return tuple(found)


def choose_cells(
    first: Sample, samples: Iterable[Sample], type_: ColumnType, columns: str | None, left_out: LeftOut
) -> tuple[tuple[Column, ...], Iterator[list[Cell]]]:
    """Return the columns of an index, and the cells of its lines.

    Args:
        first: the first sample, which determines the columns.
        samples: all samples.
        type_: the type of the columns of files.
        columns: other names for the columns, or a selection of them. It may name .json files that only hold the label.
        left_out: counts the attached files that the first sample lacks, and .json files that are only read for the
            label but say more; those only if `columns` is None, so that nobody has decided about them.
    """
    first = first if columns is None else _with_files_named(first, type_, columns)
    labels = [] if columns is not None else sorted(first.attached.keys() - {*first.extensions})
    chosen, numbers = choose_columns(found_columns(first, type_), columns)
    first_attached = len(first.images) + (first.label is not None)
    wanted = {first.extensions[number - first_attached] for number in numbers if number >= first_attached}

    def cells() -> Iterator[list[Cell]]:
        for sample in samples:
            made = sample.cells(first, left_out, wanted, labels)
            yield [made[number] for number in numbers]

    return chosen, cells()


def _with_files_named(first: Sample, type_: ColumnType, columns: str) -> Sample:
    """Return the first sample with its .json files of labels as columns, if `columns` names one of them or has all."""
    whole = replace(
        first, attached={extension: replace(member, is_column=True) for extension, member in first.attached.items()}
    )
    if whole.extensions == first.extensions:
        return first
    wanted, found = parse_columns(columns), found_columns(whole, type_)
    more = {*found} - {*found_columns(first, type_)}
    return whole if len(wanted) == len(found) or not more.isdisjoint(wanted) else first


def group_members(shard: str, members: Iterable[Member], left_out: LeftOut) -> Iterator[Sample]:
    """Group adjacent members with the same key into samples.

    Attached files that are not adjacent to an image or label with their key are counted in `left_out`.

    Raises:
        ArgumentError: a sample has a label but no image, or two images in one column.
    """
    sample = None
    waiting: list[Member] = []  # attached files whose image or label may follow
    for member in chain(members, [None]):
        if member is not None and member.is_attached:
            if sample is not None and sample.key == member.key:
                sample.add(member)
                continue
            if waiting and waiting[0].key != member.key:
                _leave_out(shard, waiting, left_out)
            waiting.append(member)
            continue
        if sample is not None and (member is None or sample.key != member.key):
            sample.check_images()
            yield sample
            sample = None
        if member is not None:
            sample = sample or Sample(shard=shard, key=member.key)
            if waiting and waiting[0].key == member.key:
                for attached in waiting:
                    sample.add(attached)
                waiting.clear()
            sample.add(member)
    _leave_out(shard, waiting, left_out)


def _leave_out(shard: str, waiting: list[Member], left_out: LeftOut) -> None:
    for member in waiting:
        left_out.add(Reason.ALONE, f"{shard}: {member.name}")
    waiting.clear()


def is_attached(extension: str) -> bool:
    """Whether a file with this lower-case extension is kept beside an image, though it is neither image nor label."""
    return extension.rpartition(".")[2] in _ATTACHED


def split_name(name: str) -> tuple[str, str]:
    """Return the key and lower-case extension of a member. Both are empty if its name has no stem or no dot."""
    base = name.rpartition("/")[2]
    stem, dot, extension = base.partition(".")
    return (name[: len(name) - len(extension) - 1], extension.lower()) if stem and dot else ("", "")


def column_name(extension: str) -> str:
    """Return the column of an image with this extension: `lr` for `lr.png`, `image` for `png`."""
    name = _identifier(extension.rpartition(".")[0]) or "image"
    return "label_image" if name == "label" else name


def _identifier(text: str) -> str:
    return re.sub(r"\W|^(?=\d)", "_", text, flags=re.ASCII)


def label_in(where: str, data: bytes, extension: str) -> tuple[int | None, bool]:
    """Return the label in a member's `data`, and whether the member holds anything else.

    The label is None if the member is a .json file without a label.

    Raises:
        ArgumentError: the label is not an integer, or the file is not JSON. The message starts with `where`.
    """
    if extension == "cls":
        match = _INTEGER.fullmatch(data)
        value: object = int(match[1]) if match else data[:40].decode("utf-8", "replace")
        has_more = False
    else:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{where} is not JSON: {error}") from error
        if not isinstance(document, dict):
            return None, True
        value = document.get("label", document.get("cls"))
        if value is None:
            return None, True
        has_more = not document.keys() <= set(_LABELS)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ArgumentError(f"{where} contains {value!r:.80}, but a label must be an integer of 64 bits")
    return value, has_more


def _cell(member: Member) -> Cell:
    assert member.cell is not None, "images and attached files have cells"
    return member.cell


def _image_names(first: Sample) -> list[str]:
    return sorted(first.images, key=lambda name: (name != "image", name))
