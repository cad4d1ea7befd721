"""`PartsIndex`: the indexes that a list of parts names, one after another, as one index.

A part is opened when one of its lines is needed, and closed when others were needed since. So descriptors and memory
do not grow with the number of parts, but for 8 bytes each.
"""

import errno
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import (
    ArgumentError,
    IndexChangedError,
    IndexFormatError,
    IndexNotFoundError,
    SidecarError,
    StorageError,
)
from mpload.index.columns import format_columns
from mpload.index.index import Index
from mpload.index.lines import NATIVE
from mpload.index.lookup import SidecarColumn
from mpload.index.parts_columns import PartsColumn
from mpload.index.parts_table import PartRow, PartsTable
from mpload.index.text import Header
from mpload.storage.urls import redacted
from mpload.units import format_count

__all__ = ["PartsIndex"]

_SHARE_OF_DESCRIPTORS = 8
_MIN_OPEN, _MAX_OPEN = 8, 1024
_DESCRIPTORS = 2
"""Each open part has two: of its text, and of its sidecar."""


class PartsIndex(Index):
    """The indexes of a list of parts as one index. It has no lines of its own.

    Memory: 8 bytes per part, 1 kB for each part that is replaced while the index is in use, and the parts that are
    open: at most 1,024, and an eighth of the descriptors that the process may have.
    Process: may be forked, or pickled and sent to any process of the same machine. Each opens parts itself.
    """

    def __init__(
        self, *, path: Path, source: str, table: PartsTable, rows: Sequence[PartRow], fingerprint: str,
        allow_outside_root: bool, copies: Path | None,
    ) -> None:  # fmt: skip
        self.path = path
        self._source = source
        self._copies = copies
        self._table = table
        _ = table.file  # opened now, before another process replaces it
        self._header = table.head.header
        self._last_header = self._header
        self.root = table.head.root
        self.allow_outside_root = allow_outside_root
        self._first_ids = np.cumsum([0, *(row.num_samples for row in rows)], dtype=np.int64)
        self._num_samples = int(self._first_ids[-1])
        self._fingerprint = fingerprint
        names = set.intersection(*(set(row.columns) for row in rows if row.num_samples))
        self._column_names = frozenset(names)
        self._open_parts: dict[int, Index] = {}
        self._replaced_rows: dict[int, PartRow] = {}
        self._num_missed = 0

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return self._table.num_parts

    @property
    def labels(self) -> SidecarColumn:
        """The label column; see `Index.labels`."""
        if "label" not in self._column_names:
            raise IndexFormatError(f"{self.path}: has no column of labels, only {format_columns(self.columns)}")
        return PartsColumn(self, "label")

    @property
    def nbytes(self) -> SidecarColumn | None:
        """Encoded size of each sample; None unless the sizes of all parts were measured."""
        return PartsColumn(self, "nbytes") if "nbytes" in self._column_names else None

    @property
    def _layout(self) -> Any:  # type: ignore[override]
        raise ArgumentError(
            f"{self.path}: lists parts, and has no lines and no sidecar of them. Do that with each part"
        )

    _text = _sidecar_file = _stamp = _layout  # of what an `Index` reads its own lines

    def where(self, sample_id: int) -> str:
        """Return the file and line number that list sample `sample_id`, such as `part-3.txt:17`."""
        number = self._number_of(sample_id)
        row = self._row(number)
        return f"{row.text}:{row.num_lines + sample_id - int(self._first_ids[number]) + 1}"

    def part(self, number: int) -> Index:
        """Return a part, opened.

        Raises:
            IndexChangedError: it was changed after the list was opened, otherwise than by further lines.
            IndexNotFoundError: its text is gone.
        """
        part = self._open_parts.pop(number, None)
        if part is None:
            self._close_all_but(_num_open() - 1)
            part = self._with_descriptors(lambda: self._opened(number))
        self._open_parts[number] = part  # as the last to be closed
        return part

    def column_of(self, number: int, name: str) -> SidecarColumn:
        """Return a column of the sidecar of a part."""
        return self.part(number)._sidecar_file.columns[name]  # noqa: SLF001  the same class

    def groups(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice, NDArray[np.int64]]]:
        """Yield the number of each part that has some of the rows, their places among `rows`, and their rows there."""
        if not len(rows):
            return
        numbers = np.searchsorted(self._first_ids, rows, side="right") - 1
        if (numbers == numbers[0]).all():
            yield int(numbers[0]), slice(None), rows - self._first_ids[numbers[0]]
            return
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
        for start, end in pairwise(edges):
            places = order[start:end]
            number = int(numbers[places[0]])
            yield number, places, rows[places] - self._first_ids[number]

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each part with samples from `start` to `stop`, and the first row and the end of these."""
        first, last = self._number_of(start), self._number_of(stop - 1)
        for number in range(first, last + 1) if start < stop else ():
            begin, end = self._first_ids[number : number + 2].tolist()
            if begin < end:
                yield number, max(start, begin) - begin, min(stop, end) - begin

    def listed(self) -> list[tuple[str, int]]:
        """Return the path or URL of each part that has samples, and their number."""
        return [(row.source, row.num_samples) for row in self._table.rows() if row.num_samples]

    def cut(self, num_samples: int) -> tuple[list[str], Index | None, int]:
        """Return the fingerprints of the parts that lie within the first samples, and the next part and its share.

        The part is None if the samples end where a part does.
        """
        number = self._number_of(num_samples - 1)
        num_last = num_samples - int(self._first_ids[number])
        rows = self._table.rows()
        is_whole = num_last == rows[number].num_samples
        whole = [row.fingerprint for row in rows[: number + is_whole] if row.num_samples]
        return whole, None if is_whole else self.part(number), num_last

    def _number_of(self, sample_id: int) -> int:
        return int(np.searchsorted(self._first_ids, sample_id, side="right")) - 1

    @property
    def num_listed(self) -> int:
        """The number of samples in the list, which may be more than the index has."""
        return int(self._first_ids[-1])

    def parts(self) -> Iterator[tuple[int, Index]]:
        """Yield the parts that have samples, each after the sample_id of its first sample."""
        for number, _, num_samples in self.spans(0, len(self)):
            part = self.part(number)
            if num_samples < len(part):  # by its name, as it opens indexes
                part = import_module("mpload.index.growth").first_samples(part, num_samples)
            yield int(self._first_ids[number]), part

    @property
    def table_path(self) -> Path:
        """The path of the list's sidecar."""
        return self._table.path

    def file_sizes(self) -> tuple[int, int]:
        """Return the bytes of all texts, and of all sidecars."""
        rows = self._table.rows()
        return sum(row.text_bytes for row in rows), sum(row.sidecar_bytes for row in rows)

    def _read(self, rows: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        bounds, pieces, start = np.empty((len(rows), 2), np.int64), [], 0
        self._num_missed = 0
        for number, places, rows_there in self.groups(rows):
            part = self.part(number)
            data, found = part._read(rows_there)  # noqa: SLF001  the same class
            bounds[places] = found + start
            pieces.append(data)
            start += len(data)
            self._num_missed += part._num_missed  # noqa: SLF001
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), bounds

    def _prefetch(self, sample_ids: Callable[[], NDArray[np.int64]]) -> None:
        if not self._num_missed or NATIVE is None:
            return
        rows = self._rows(sample_ids())
        self._num_missed = 0
        for number, _, rows_there in self.groups(rows):
            self._num_missed += NATIVE.ask(self.part(number)._files(), rows_there)  # noqa: SLF001

    def _map(self) -> None:
        """Map no files: parts are opened and closed, and there may be many."""

    def _opened(self, number: int) -> Index:
        row, (first, after) = self._row(number), self._first_ids[number : number + 2].tolist()
        try:
            part = Index(
                path=Path(row.text),
                header=self._header_of(row),
                layout=row.layout(),
                root=self.root,
                allow_outside_root=self.allow_outside_root,
                source=row.source,
                copies=self._copies,
            )
            part._num_samples, part._fingerprint = after - first, row.fingerprint  # noqa: SLF001
            if part._stamp == (row.text_bytes, row.text_mtime_ns):  # noqa: SLF001
                return part
        except SidecarError:
            pass
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
        part = self._reopened(number, after - first)
        self._replaced_rows[number] = PartRow.of(part, row.source)  # comparing its lines again would take as long again
        return part

    def _row(self, number: int) -> PartRow:
        """Return what is known of a part, which may have been replaced since the list was opened."""
        return self._replaced_rows.get(number) or self._table.row(number)

    def _header_of(self, row: PartRow) -> Header:
        last = self._last_header  # most parts have the same one
        if (last.body_bytes, last.num_lines) != (row.body_bytes, row.num_lines):
            last = self._last_header = replace(self._header, body_bytes=row.body_bytes, num_lines=row.num_lines)
        return last

    def _reopened(self, number: int, num_samples: int) -> Index:
        """Open a part that was replaced since the list was opened: lines may have been appended to it."""
        row = self._table.row(number)
        growth = import_module("mpload.index.growth")  # by its name, as it opens indexes
        try:
            part: Index = growth.listed_part(
                row.source,
                num_samples,
                row.fingerprint,
                allow_outside_root=self.allow_outside_root,
                copies=self._copies,
            )
        except IndexNotFoundError as error:
            raise IndexNotFoundError(f"{self.path}: its part {redacted(row.source)} is gone. Bring it back") from error
        except IndexChangedError as error:
            raise IndexChangedError(f"{self.path}: {error}") from error
        if part.columns != self.columns or part.root != self.root:
            raise IndexChangedError(
                f"{self.path}: its part {redacted(row.source)} has other columns or another root now"
            )
        return part

    def _with_descriptors(self, open_part: Callable[[], Index]) -> Index:
        """Open a part; if the process has no descriptors left, close all other parts first."""
        try:
            return open_part()
        except StorageError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE} or not self._open_parts:
                raise
        self._close_all_but(0)
        return open_part()

    def _close_all_but(self, num_parts: int) -> None:
        # Other threads may open and close parts too: a part that is closed stays open until its last line is read.
        if (surplus := len(self._open_parts) - num_parts) > 0:
            for number in list(self._open_parts)[:surplus]:
                self._open_parts.pop(number, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_parts": {}, "_replaced_rows": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with suppress(IndexChangedError, StorageError):
            _ = self._table.file
        if "file" in self._table.__dict__:
            return
        try:  # another process has made the table again, as parts were appended to, or listed
            now: Index = import_module("mpload.index.growth").same_samples(self)
        except IndexChangedError as error:
            raise IndexChangedError(f"{self.path}: changed after it was opened. Open it again") from error
        self.__dict__.update(now.__dict__)

    def _facts(self) -> dict[str, str]:
        samples = {"samples": format_count(len(self)), "parts": format_count(self.num_parts)}
        return samples | {key: value for key, value in super()._facts().items() if key != "samples"}


def _num_open() -> int:
    """Return how many parts may be open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_OPEN
    return min(max(limit // (_SHARE_OF_DESCRIPTORS * _DESCRIPTORS), _MIN_OPEN), _MAX_OPEN)
