"""`MixtureIndex`: the indexes of a mixture as one index."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, ColumnType, format_columns
from mpload.index.index import Index, Record, header_of, lines_of, records_of
from mpload.index.lookup import SidecarColumn
from mpload.index.mixed_lines import Adapter, LinesOfSource, MixedLines
from mpload.index.mixture import Mixture, names_of
from mpload.index.text import Header
from mpload.storage.urls import is_url
from mpload.units import format_count, format_counted

__all__ = ["MixtureIndex", "roots_of"]

_FILLED = {ColumnType.INT: int, ColumnType.FLOAT: float, ColumnType.STR: str}


class MixtureIndex(Index):
    """The indexes of a mixture, one after another, as one index. It has no text and no sidecar of its own.

    The sample_ids of records may be those of repeated draws, see `mpload.plan.repeats`: with N samples in all
    sources, `sample_id % N` says which sample it is.

    Memory: constant.
    Process: may be forked, or pickled and sent to any process of the same machine.
    """

    def __init__(self, mixture: Mixture, parts: Sequence[Index]) -> None:
        for part in parts:
            if isinstance(part, MixtureIndex):
                raise ArgumentError("the index of a mixture cannot be a source. Pass the Mixture itself")
        self.mixture = mixture
        self.parts = tuple(parts)
        """The indexes of the sources."""
        self.names = names_of(mixture)
        self.path = Path("mixture")
        """A name, for messages."""
        columns = _columns_of(mixture, self.parts)
        self._header = Header(columns=columns, classes=_classes_of(mixture, self.parts))
        kinds = {(part.root, part.allow_outside_root) for part in self.parts}
        self.has_one_root = len(kinds) == 1
        """Whether one storage reads the files of all sources."""
        urls = [part.root for part in self.parts if is_url(part.root)]
        self.root = self.parts[0].root if self.has_one_root else urls[0] if urls else ""
        self.allow_outside_root = any(part.allow_outside_root for part in self.parts)
        self._adapters = [self._adapter(number) for number in range(len(parts))]
        self._first_ids = np.cumsum([0, *map(len, self.parts)])

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of samples of each source."""
        return tuple(map(len, self.parts))

    @property
    def _layout(self) -> Any:  # type: ignore[override]
        raise ArgumentError("a mixture has no text and no sidecar of its own. Do that with the indexes of its sources")

    _text = _sidecar_file = _layout  # of what an `Index` reads its lines and columns

    @property
    def nbytes(self) -> SidecarColumn | None:
        """None: the sizes are in the sidecars of the sources."""
        return None

    @property
    def fingerprint(self) -> str:
        """A hash of all that samples depend on: the sources, the columns and the classes."""
        classes, fill = "\t".join(self.classes), sorted((self.mixture.fill or {}).items())
        words = [*(part.fingerprint for part in self.parts), format_columns(self.columns), classes, repr(fill)]
        if self.mixture.match_classes:
            words += [repr(adapter.labels.tolist()) for adapter in self._adapters]
        return hashlib.blake2b("\n".join(words).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return int(self._first_ids[-1])

    def records(self, sample_ids: ArrayLike) -> list[Record]:
        """Return the records of `sample_ids`, int64 [n], in the order of the ids; those of later laps too."""
        return records_of(self, sample_ids)

    def tag(self, number: int) -> str | None:
        """Return what stands before the paths of a source; None if one storage reads those of all sources."""
        part = self.parts[number]
        if self.has_one_root:
            return None
        return part.root.rstrip("/") + ("/" if part.allow_outside_root else "")

    def where(self, sample_id: int) -> str:
        """Return the file and line number that list sample `sample_id`, such as `photos.txt:17`."""
        row = sample_id % len(self)
        number = int(np.searchsorted(self._first_ids, row, side="right")) - 1
        return self.parts[number].where(row - int(self._first_ids[number]))

    def _lines(self, ids: NDArray[np.int64]) -> Any:
        if ids.size and int(ids.min()) < 0:
            raise ArgumentError(f"sample_ids must not be negative, got {int(ids.min())}")
        rows = self._rows(ids)
        numbers, inner = self._placed(rows)
        parts = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            lines = lines_of(self.parts[number], inner[places])
            parts.append(LinesOfSource(lines=lines, places=places, adapter=self._adapters[number]))
        return MixedLines(ids, rows, parts, len(self.columns))

    def _placed(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each row of the mixture, and its row there."""
        numbers = np.searchsorted(self._first_ids, rows, side="right") - 1
        return numbers, rows - self._first_ids[numbers]

    def _prefetch(self, sample_ids: Callable[[], NDArray[np.int64]]) -> None:
        known: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

        def rows_of(number: int) -> NDArray[np.int64]:
            if not known:
                known.append(self._placed(self._rows(sample_ids())))
            numbers, rows = known[0]
            found: NDArray[np.int64] = rows[numbers == number]
            return found

        for number, part in enumerate(self.parts):
            part._prefetch(lambda number=number: rows_of(number))  # type: ignore[misc]  # noqa: SLF001  the same class

    def _peers(self, sample_id: int) -> range:
        number = int(self._placed(self._rows(np.array([sample_id])))[0][0])
        return range(int(self._first_ids[number]), int(self._first_ids[number + 1]))

    def _map(self) -> None:
        for part in self.parts:
            part._map()  # noqa: SLF001  as above

    def _adapter(self, number: int) -> Adapter:
        mixture, header, columns = self.mixture, header_of(self.parts[number]), self.columns
        names = [column.name for column in header.columns]
        cells = tuple(names.index(column.name) if column.name in names else None for column in columns)
        fill = mixture.fill or {}
        constants: list[Cell] = [fill.get(column.name, 0) for column in columns]
        if mixture.source_column is not None:
            constants[-1] = number
        labels = np.array([self.classes.index(name) for name in header.classes], np.int64)
        label = None
        if mixture.match_classes and header.label_column is not None:
            label = cells.index(header.label_column)
        return Adapter(
            columns=columns,
            cells=cells,
            constants=tuple(constants),
            label=label,
            labels=labels,
            root=self.tag(number),
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _facts(self) -> dict[str, str]:
        facts = {
            "samples": format_count(len(self)),
            "sources": format_count(len(self.parts)),
            "columns": format_columns(self.columns),
        }
        return facts if not self.classes else {**facts, "classes": format_count(len(self.classes))}


def roots_of(index: Index) -> str:
    """Return the root of an index, or those of all sources, as one text."""
    if not isinstance(index, MixtureIndex) or index.has_one_root:
        return index.root
    return "\t".join(part.root for part in index.parts)


def _columns_of(mixture: Mixture, parts: Sequence[Index]) -> tuple[Column, ...]:
    """Return the columns of a mixture: those of the first source, then further ones of the others."""
    columns: dict[str, Column] = {}
    for part in parts:
        for column in part.columns:
            known = columns.setdefault(column.name, column)
            if known.type is not column.type and not (known.type.is_file and column.type.is_file):
                raise ArgumentError(
                    f"{part.path}: column {column.name} is of type {column.type}, but of type {known.type} in "
                    f"{parts[0].path} or another source. Sources of a mixture must have the same columns"
                )
    for part in parts:
        for name in columns.keys() - {column.name for column in part.columns}:
            _check_filled(mixture, columns[name], part)
    if unknown := sorted((mixture.fill or {}).keys() - columns.keys()):
        raise ArgumentError(f"fill has {unknown[0]!r}, which is no column of any source. Leave it out")
    if mixture.source_column is None:
        return tuple(columns.values())
    if mixture.source_column in columns:
        raise ArgumentError(f"source_column {mixture.source_column!r} is a column of the sources. Choose another name")
    return (*columns.values(), Column(name=mixture.source_column, type=ColumnType.INT))


def _check_filled(mixture: Mixture, column: Column, part: Index) -> None:
    fill, kind = mixture.fill or {}, _FILLED.get(column.type)
    if kind is None:
        raise ArgumentError(
            f"{part.path}: has no column {column}, which another source has. Add it, since columns of files cannot be "
            "filled"
        )
    if column.name not in fill:
        raise ArgumentError(
            f"{part.path}: has no column {column}, which another source has. Add the column, or pass "
            f"fill={{{column.name!r}: ...}} to the Mixture"
        )
    value = fill[column.name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ArgumentError(f"fill[{column.name!r}] must be of type {kind.__name__}, got {value!r}")


def _classes_of(mixture: Mixture, parts: Sequence[Index]) -> tuple[str, ...]:
    labelled = [part for part in parts if header_of(part).label_column is not None]
    if not labelled:
        return ()
    if mixture.match_classes:
        for part in labelled:
            if not part.classes:
                raise ArgumentError(f"{part.path}: has no #classes, so match_classes=True cannot match its labels")
        return tuple(dict.fromkeys(name for part in labelled for name in part.classes))
    for part in labelled[1:]:
        if part.classes != labelled[0].classes:
            raise ArgumentError(
                f"{part.path}: has {format_counted(len(part.classes), 'class name')}, which are not those of "
                f"{labelled[0].path}, so its labels differ in meaning. Pass match_classes=True to the Mixture, which "
                "matches labels by name"
            )
    return labelled[0].classes
