"""Numbers the classes that a column of a source names."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mpload.errors import ArgumentError, MploadError, StorageError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.ingest.rows import Rows
from mpload.units import printable

__all__ = ["class_names", "with_labels"]

_LABEL = "label"
_KINDS = frozenset({ColumnType.STR, ColumnType.INT})
_MAX_CLASSES = 1 << 20


def class_names(rows: Rows, column: str) -> tuple[str, ...]:
    """Return the different cells of a column as texts, in alphabetical order, like the names of class folders.

    If the source numbers the classes of the column itself, the names are those that it gives, in its order.

    Memory: the names. Iterates over the cells of `rows`.

    Raises:
        ArgumentError: There is no such column of text or integers, a cell is empty, or there are more than a million
            names.
    """
    place = _place_of(rows, column)
    if column in rows.names:
        return rows.names[column]
    names = set()
    for number, cells in enumerate(rows.cells):
        if cells[place] not in names:
            _refuse_empty(rows, place, number, cells)
        names.add(cells[place])
        if len(names) > _MAX_CLASSES:
            raise ArgumentError(
                f"column {column!r} has more than {_MAX_CLASSES:,} different cells. Give the column of the classes"
            )
    return tuple(sorted(map(str, names)))


def with_labels(
    rows: Rows, column: str, names: Sequence[str], *, unknown: Callable[[str], MploadError] | None = None
) -> Rows:
    """Return rows with the column `label` in place of `column`: the place of each cell among `names`, the classes.

    If the source numbers the classes of the column itself, its numbers and names stay.

    Args:
        rows: the rows of the source.
        column: the column that names the classes.
        names: the names of the classes.
        unknown: returns the error for a name that is not among them.

    Raises:
        ArgumentError: There is no such column, or there is another column `label`. Iterating over the cells raises it
            if one is empty.
    """
    place = _place_of(rows, column)
    if any(other.name == _LABEL for number, other in enumerate(rows.columns) if number != place):
        raise ArgumentError(
            f"column {column!r} becomes 'label', but there is another column 'label'. Rename it, with --columns or "
            "build_index(columns=...)"
        )
    label = Column(name=_LABEL, type=ColumnType.INT)
    columns = tuple(label if number == place else other for number, other in enumerate(rows.columns))
    if column in rows.names:
        return replace(rows, columns=columns, classes=rows.names[column])
    numbers = {name: number for number, name in enumerate(names)}

    def cells() -> Iterator[Sequence[Cell]]:
        for sample, row in enumerate(rows.cells):
            name = str(row[place])
            if name not in numbers or not name.strip():  # an old index may have a class without a name
                _refuse_empty(rows, place, sample, row)
                raise _gained(name) if unknown is None else unknown(name)
            yield [numbers[name] if number == place else cell for number, cell in enumerate(row)]

    return replace(rows, columns=columns, cells=cells(), classes=tuple(names))


def _refuse_empty(rows: Rows, place: int, sample: int, cells: Sequence[Cell]) -> None:
    """Raise `ArgumentError` if the cell that should name the class of a sample is empty, as for a missing value."""
    if str(cells[place]).strip():
        return
    files = [str(cell) for column, cell in zip(rows.columns, cells, strict=True) if column.type.is_source][:1]
    raise ArgumentError(
        f"column {rows.columns[place].name!r} names no class for sample {sample} "
        f"({', '.join(['counted from 0', *map(printable, files)])}): its cell is empty. Leave such rows out of the "
        "source, or give them a name"
    )


def _gained(name: str) -> StorageError:
    return StorageError(f"the source has gained the class {name!r} while it was read. Index it again")


def _place_of(rows: Rows, column: str) -> int:
    for place, found in enumerate(rows.columns):
        if found.name == column and found.type in _KINDS:
            return place
    known = ", ".join(found.name for found in rows.columns if found.type in _KINDS) or "none"
    raise ArgumentError(f"classes_from={column!r}: there is no such column of text or integers. Give one of: {known}")
