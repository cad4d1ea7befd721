"""`Index`: an opened index, with records by sample_id, labels, classes and a fingerprint."""

import hashlib
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpload.errors import ArgumentError, IndexChangedError, IndexFormatError, MploadError
from mpload.index.columns import Column, format_columns
from mpload.index.line_reader import LineReader, misfit_of
from mpload.index.lines import NATIVE, Lines, Maps, cells_of
from mpload.index.lookup import SidecarColumn, SidecarFile, SidecarLayout, check_sample_ids, first_rows
from mpload.index.open_file import OpenFile
from mpload.index.record import Record
from mpload.index.text import Header
from mpload.plan.parts import Fold, Share
from mpload.storage.mapped import can_load, map_of
from mpload.storage.urls import redacted
from mpload.units import MIB, format_count, format_facts, html_table

__all__ = [
    "Index",
    "Record",
    "fingerprint_of",
    "header_of",
    "lines_of",
    "map_lines",
    "misfit",
    "peers_of",
    "prefetch_lines",
    "read_text",
    "records_of",
    "require_files",
    "sidecar_of",
    "text_bytes",
]

_MAX_MAPPED_BYTES = 64 * MIB  # of text and sidecar: an index of about a million lines


class Index:
    """An opened index: made by `mpload.open_index`.

    `len(index)` is the number of samples. `index[7]` is a `Record`; `index[7:9]` and `index.records(ids)` are lists of
    records.

    Memory: constant. Lines are read on demand from the text, and columns from the sidecar.
    Process: may be forked, or pickled and sent to any process of the same machine. Each unpickled copy opens the files
    itself.
    """

    def __init__(
        self, *, path: Path, header: Header, layout: SidecarLayout, root: str, allow_outside_root: bool, source: str,
        copies: Path | None,
    ) -> None:  # fmt: skip
        self.path = path
        """Absolute path of the text."""
        self._source = source
        """The path or URL that it was opened from."""
        self._copies = copies
        """The folder of copies on a local disk, if it was opened with one."""
        self._header = header
        self.root = root
        """The folder or URL that paths are relative to."""
        self.allow_outside_root = allow_outside_root
        """Whether paths may lead outside the root."""
        self._layout = layout
        self._num_samples = layout.num_samples
        """Number of samples. The text may have more lines: see `mpload.index.growth`."""
        self._fingerprint = fingerprint_of(layout.digest, layout.num_samples, header)
        self._text = OpenFile(path)
        self._sidecar_file = SidecarFile(layout)
        self._stamp = self._text.stamp()
        self._num_missed = 0
        self._maps: Maps | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """Name and type of each column."""
        return self._header.columns

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, ordered by class number. Empty if the index does not name its classes."""
        return self._header.classes

    @property
    def labels(self) -> SidecarColumn:
        """The label column, int64 [N]. Its values are read from the sidecar on demand.

        Raises:
            IndexFormatError: the index has no label column: an integer column, but not `width` or `height`.
        """
        if (labels := self._sidecar_file.columns.get("label")) is None:
            raise IndexFormatError(f"{self.path}: has no column of labels, only {format_columns(self.columns)}")
        return first_rows(labels, len(self))

    @property
    def nbytes(self) -> SidecarColumn | None:
        """Encoded size of each sample in bytes, int64 [N]; None unless measured by `mpload index --stat`."""
        nbytes = self._sidecar_file.columns.get("nbytes")
        return None if nbytes is None else first_rows(nbytes, len(self))

    @property
    def fingerprint(self) -> str:
        """A hash of the lines, their number and the columns. A checkpoint is tied to it."""
        return self._fingerprint

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.records(np.arange(*key.indices(len(self)), dtype=np.int64))
        sample_id = operator.index(key)
        if not -len(self) <= sample_id < len(self):
            raise IndexError(f"sample_id {sample_id} is outside [0, {len(self)})")
        return self.records([sample_id % len(self)])[0]

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), 4096):
            yield from self[start : start + 4096]

    def records(self, sample_ids: ArrayLike) -> list[Record]:
        """Return the records of `sample_ids`, int64 [n] with values in [0, N), in the order of the ids.

        Raises:
            ArgumentError: an id is out of range.
            IndexChangedError: the text was changed after it was opened.
            IndexFormatError: a line breaks the format.
            SidecarError: the sidecar was truncated.
        """
        check_sample_ids(np.asarray(sample_ids, np.int64), len(self))
        return records_of(self, sample_ids)

    def select(
        self,
        out: str | os.PathLike[str],
        *,
        where: str | None = None,
        keys: Iterable[str | PurePath] | None = None,
        key_column: str | None = None,
        sample_ids: ArrayLike | None = None,
        part: Share | Fold | None = None,
        relative: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> "Index":
        """Write an index of some of the samples, in the same order, with the same root, columns and classes.

        A sample is written if it fulfils `where`, `keys` and `sample_ids`. The `part` is then taken of those that do.
        Lines are copied unchanged. Those of a plain list become lines of an index.

        Args:
            out: path of the index text to write. An older one is replaced when the new one is complete.
            where: a condition on the columns, written as in Python: `label == 3 and width >= 256`, `label in ("cat",
                "dog")`, `"night" in image`, `not image.endswith(".png")`, `height / width < 2`. It may use `and`, `or`,
                `not`, comparisons, `in`, `+ - * / // %`, `startswith` and `endswith`, the names of classes, and
                `nbytes` where sizes were measured. It is translated, never run as Python.
            keys: texts. A sample is selected if its cell of `key_column` is one of them. The index must contain each.
            key_column: the column of the keys, of texts or files; None means the first column.
            sample_ids: int64 [n]: numbers of samples. Duplicates count once.
            part: `Share(0.1)`, a tenth; or `Fold(0, of=5)`, one of five folds.
            relative: write `#root` relative to the folder of `out`. If the root of this index is relative, so is that
                of the new one.
            progress: called with the number of samples examined so far.

        Returns:
            The new index, opened.

        Raises:
            ArgumentError: an argument breaks a rule, a key is not found, or no sample is selected.
            IndexChangedError: the text was changed after it was opened.
            IndexFormatError: a path of a plain list leads outside the root.
            StorageError: a file cannot be read or written.

        Memory: constant; besides, about 100 bytes per key, 8 bytes per sample_id and 100 bytes per value of the column
        by which a part is stratified.
        """
        # Imported by its name, and only here: it opens the new index, and it needs pyarrow, which workers do without.
        selecting = import_module("mpload.index.selecting")
        choice = selecting.choice_of(
            self, where=where, keys=keys, key_column=key_column, sample_ids=sample_ids, part=part
        )
        selected: Index = selecting.write_selection(self, out, choice, relative=relative, progress=progress)
        return selected

    def _lines(self, ids: NDArray[np.int64]) -> Lines:
        rows = self._rows(ids)
        data, bounds = self._read(rows)
        cells = cells_of(data, bounds, self._header)
        return Lines(
            sample_ids=ids, rows=rows, data=data, bounds=bounds, cells=cells, header=self._header, where=self.where
        )

    def _read(self, rows: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        """Return parts of the text that contain all lines, and where each starts and ends in them, int64 [n, 2]."""
        bounds = np.empty((len(rows), 2), np.int64)
        read = None if NATIVE is None else NATIVE.read(self._files(), self._maps, rows, bounds)
        if read is not None:
            data, self._num_missed = read
            return data, bounds
        lines = self._line_reader().read(rows)
        ends = np.cumsum([0, *map(len, lines)], dtype=np.int64)
        return b"".join(lines), np.stack([ends[:-1], ends[1:]], axis=1)

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each sample's line; see `Lines.rows`."""
        if ids.size and int(ids.max()) >= len(self) > 0:
            ids = ids % len(self)
        check_sample_ids(ids, len(self))
        return np.ascontiguousarray(ids)

    def _prefetch(self, sample_ids: Callable[[], NDArray[np.int64]]) -> None:
        if self._num_missed and NATIVE is not None:
            self._num_missed = NATIVE.ask(self._files(), self._rows(sample_ids()))

    def _peers(self, sample_id: int) -> range:  # noqa: ARG002  for indexes in which it matters
        return range(len(self))

    def _map(self) -> None:
        sidecar_bytes = self._layout.file_bytes
        text = map_of(self._text.descriptor, max_bytes=_MAX_MAPPED_BYTES - sidecar_bytes)
        sidecar = map_of(self._sidecar_file.descriptor, max_bytes=sidecar_bytes)
        if text is not None and sidecar is not None and can_load(text) and can_load(sidecar):
            self._maps = text, sidecar

    def _files(self) -> tuple[int, ...]:
        """Return the files and where the lines are, as the native module wants them."""
        rows = self._layout.columns["offset"]
        return (
            self._text.descriptor, self._sidecar_file.descriptor, self._layout.num_samples,
            rows.first_bytes, rows.stride_bytes, rows.last_bytes, self._header.body_bytes, *self._stamp,
        )  # fmt: skip

    def _read_text(self, offset_bytes: int, num_bytes: int) -> bytes:
        data = self._text.read(offset_bytes, num_bytes) if self._text.stamp() == self._stamp else b""
        if len(data) != num_bytes:
            raise IndexChangedError(f"{self.path}: changed after it was opened. Open it again")
        return data

    def where(self, sample_id: int) -> str:
        """Return the file and line number that list sample `sample_id`, such as `train.txt:17`."""
        return f"{self.path}:{self._header.num_lines + sample_id + 1}"

    def _line_reader(self) -> LineReader:
        return LineReader(
            path=self.path,
            text=self._text,
            sidecar=self._sidecar_file,
            layout=self._layout,
            body_bytes=self._header.body_bytes,
            stamp=self._stamp,
        )

    def __getstate__(self) -> dict[str, Any]:
        now: Index | None = self
        with suppress(MploadError, OSError):  # `__setstate__` raises the right error
            status = self.path.stat()
            if (status.st_size, status.st_mtime_ns) != self._stamp:
                now = import_module("mpload.index.growth").same_samples(self)  # by its name, as it opens indexes
        stored = (now or self).__dict__
        return {key: value for key, value in stored.items() if key not in {"_text", "_sidecar_file", "_maps"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._maps = None
        self._text = OpenFile(self.path)
        if self._text.stamp() == self._stamp:
            self._sidecar_file = SidecarFile(self._layout)
            return
        try:  # it may have grown since it was pickled: a spawned process takes seconds to start
            now: Index = import_module("mpload.index.growth").same_samples(self)
        except IndexChangedError as error:
            raise IndexChangedError(f"{self.path}: changed after it was opened. Open it again") from error
        self.__dict__.update(now.__dict__)

    def __repr__(self) -> str:
        return format_facts(f"Index {self.path}", self._facts())

    def _repr_html_(self) -> str:
        return html_table(f"Index {self.path}", self._facts())

    def _facts(self) -> dict[str, str]:
        facts = {
            "samples": format_count(len(self)),
            "columns": format_columns(self.columns),
            "root": redacted(self.root),
        }
        return facts if not self.classes else {**facts, "classes": format_count(len(self.classes))}


def fingerprint_of(digest: str, num_samples: int, header: Header) -> str:
    """Return the fingerprint of an index: of the digest of its lines, their number and the columns."""
    words = f"{digest} {num_samples} {format_columns(header.columns)}"
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()


def header_of(index: Index) -> Header:
    """Return the header of an index."""
    return index._header  # noqa: SLF001


def map_lines(index: Index) -> None:
    """Map the files of a small index into memory: see `mpload.storage.mapped`. Lines are then copied, not read."""
    index._map()  # noqa: SLF001  as above


def peers_of(index: Index, sample_id: int) -> range:
    """Return the samples that may take the place of one: those of its source."""
    return index._peers(sample_id)  # noqa: SLF001  as above


def prefetch_lines(index: Index, sample_ids: Callable[[], NDArray[np.int64]]) -> None:
    """Start to load lines that will be requested soon, if lines have had to be loaded lately; it does not wait.

    Call it again before the lines are requested: the first call loads their rows of the sidecar, which say where they
    are, and the second one loads the lines themselves. `sample_ids` returns int64 [n], and is called only if needed.
    """
    index._prefetch(sample_ids)  # noqa: SLF001


def require_files(index: Index, *, what: str) -> None:
    """Raise `ArgumentError` if an index has no column of files. `what` is what cannot be used then."""
    if not any(column.type.is_source for column in index.columns):
        raise ArgumentError(
            f"{index.path}: {what} is for files, but the columns '{format_columns(index.columns)}' contain none. Do "
            "without it, or add a column of type path, span, lmdb or row, such as image:path"
        )


def records_of(index: Index, sample_ids: ArrayLike) -> list[Record]:
    """Return the records of `sample_ids`, as `Index.records` does, but also those of repeated draws; see `lines_of`."""
    return lines_of(index, sample_ids).records()


def lines_of(index: Index, sample_ids: ArrayLike) -> Lines:
    """Return the lines of `sample_ids`, int64 [n], in the order of the ids.

    An id of N or greater is a repeated draw of the sample `id % N`; see `mpload.plan.repeats`.

    Raises:
        ArgumentError: an id is negative, or the index is empty.
        IndexChangedError: the text was changed after it was opened.
        SidecarError: the sidecar was truncated.
    """
    return index._lines(np.asarray(sample_ids, np.int64).reshape(-1))  # noqa: SLF001


def text_bytes(index: Index) -> int:
    """Return the size of the text when the index was opened."""
    return index._stamp[0]  # noqa: SLF001  as above


def read_text(index: Index, offset_bytes: int, num_bytes: int) -> bytes:
    """Return bytes of the text; raise `IndexChangedError` if it was changed after it was opened."""
    return index._read_text(offset_bytes, num_bytes)  # noqa: SLF001  as above


def misfit(index: Index) -> IndexChangedError:
    """Return the error of a sidecar whose offsets are not those of the text's lines."""
    return misfit_of(index.path, sidecar_of(index).path)


def sidecar_of(index: Index) -> SidecarLayout:
    """Return the layout of an index's sidecar, which includes its path."""
    return index._layout  # noqa: SLF001
