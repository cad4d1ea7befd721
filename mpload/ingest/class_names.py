"""Numbers the classes that a column of a source names."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.ingest.rows import Rows

__all__ = ["class_names", "with_labels"]

_LABEL = "label"
_KINDS = frozenset({ColumnType.STR, ColumnType.INT})
_MAX_CLASSES = 1 << 20


def class_names(rows: Rows, column: str) -> tuple[Cell, ...]:
    """Return the different cells of a column, in alphabetical order, or ascending if they are numbers.

    Memory: the names. Iterates over the cells of `rows`.

    Raises:
        ArgumentError: There is no such column of text or integers, or there are more than a million names.
    """
    place = _place_of(rows, column)
    names = set()
    for cells in rows.cells:
        names.add(cells[place])
        if len(names) > _MAX_CLASSES:
            raise ArgumentError(
                f"column {column!r} has more than {_MAX_CLASSES:,} different cells. Give the column of the classes"
            )
    return tuple(sorted(names))  # type: ignore[type-var]  # all texts, or all integers


def with_labels(rows: Rows, column: str, names: Sequence[Cell]) -> Rows:
    """Return rows with the column `label` in place of `column`: the place of each cell among `names`, the classes."""
    place = _place_of(rows, column)
    if any(other.name == _LABEL for number, other in enumerate(rows.columns) if number != place):
        raise ArgumentError(f"column {column!r} becomes 'label', but there is another column 'label'. Rename it")
    numbers = {name: number for number, name in enumerate(names)}

    def cells() -> Iterator[Sequence[Cell]]:
        for row in rows.cells:
            if row[place] not in numbers:
                raise StorageError(f"the source has gained the class {row[place]!r} while it was read. Index it again")
            yield [numbers[cell] if number == place else cell for number, cell in enumerate(row)]

    label = Column(name=_LABEL, type=ColumnType.INT)
    columns = tuple(label if number == place else other for number, other in enumerate(rows.columns))
    return replace(rows, columns=columns, cells=cells(), classes=tuple(map(str, names)))


def _place_of(rows: Rows, column: str) -> int:
    for place, found in enumerate(rows.columns):
        if found.name == column and found.type in _KINDS:
            return place
    known = ", ".join(found.name for found in rows.columns if found.type in _KINDS) or "none"
    raise ArgumentError(f"classes_from={column!r}: there is no such column of text or integers. Give one of: {known}")
