"""Checks an index and the files that it lists. Each fault is one finding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError, MploadError, SidecarError, StorageError, cause_of
from mpload.images.limits import Limits
from mpload.images.mask import Mask
from mpload.index.columns import Cell, ColumnType, path_of, range_of
from mpload.index.index import Index, header_of, sidecar_of
from mpload.index.label_lines import is_label_line
from mpload.index.lookup import SidecarFile
from mpload.index.parts import is_shortened, parts_of
from mpload.index.sidecar import Progress
from mpload.index.text import read_header
from mpload.ingest.folder_options import IMAGE_EXTENSIONS
from mpload.ingest.lists import Line, read_lines
from mpload.ingest.signatures import looks_like_image
from mpload.ingest.threads import map_in_threads
from mpload.storage.local import LocalStorage
from mpload.storage.ranges import LmdbValue, RowValue, Span
from mpload.storage.urls import redacted
from mpload.units import printable

__all__ = ["OBJECT_COLUMNS", "Finding", "check_index", "check_lines"]

OBJECT_COLUMNS = ("boxes", "objects")
"""Names of columns that may hold objects. `mpload index` writes the first one."""

_CHUNK_SAMPLES = 256
_NUM_PROBED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault in an index, or in a file that it lists."""

    where: str
    """The line, such as `train.txt:17`, or `train.txt` if the fault concerns the whole index."""
    sample_id: int | None
    path: str | None
    """The path as written in the index; None if the fault does not concern a file."""
    cause: str

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.path + ': ' if self.path else ''}{self.cause}")


def check_lines(path: Path) -> Iterator[Finding]:
    """Yield a finding for each line of a text that breaks the format, even if `open_index` refuses the text.

    Raises:
        IndexNotFoundError: there is no file at `path`.
        IndexFormatError: the directives are broken, there are no samples, or `path` is not a regular file.
        StorageError: the text cannot be opened.

    Memory: constant.
    """
    header = read_header(path)
    for sample_id, line in enumerate(read_lines(path, header)):
        try:
            line.parse(header)
        except ValueError as error:
            yield Finding(where=f"{path}:{line.number}", sample_id=sample_id, path=None, cause=str(error))


def check_index(
    index: Index,
    *,
    decode: Callable[[bytes], object] | None = None,
    check_objects: Callable[[bytes | str], object] | None = None,
    num_workers: int = 8,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Yield all faults, in the order of the samples.

    Every line is parsed and compared with the sidecar. Files must exist, spans must lie within their shards, and both
    must be inside the root. Files at a URL, LMDB values and Parquet rows are not checked; one finding says so.

    Args:
        index: the index to check.
        decode: called in threads with the bytes of every image. Any exception that it raises becomes a finding.
        check_objects: called in threads with every cell or file of a column of objects, which is named as in
            `OBJECT_COLUMNS` and begins with JSON or YOLO's lines. Every `DecodeError` that it raises becomes a finding.
        num_workers: number of threads that read and decode.
        progress: called with the number of samples checked so far.

    Memory: constant: the images of `num_workers` samples.
    """
    if (unchecked := _unchecked_files(index)) is not None:
        yield Finding(where=str(index.path), sample_id=None, path=None, cause=unchecked)
    for first_id, part in parts_of(index):
        tell = None if progress is None else partial(_tell, progress, first_id)
        for finding in _check_part(_Check(part, decode, check_objects), part, num_workers, tell):
            sample_id = finding.sample_id
            yield finding if sample_id is None else replace(finding, sample_id=sample_id + first_id)


def _tell(progress: Progress, first_id: int, num_samples: int) -> None:
    progress(first_id + num_samples)


def _check_part(check: "_Check", index: Index, num_workers: int, progress: Progress | None) -> Iterator[Finding]:
    done = 0
    for findings, num_lines in map_in_threads(check, _chunks(index), num_workers=num_workers):
        yield from findings
        done += num_lines
        if progress is not None:
            progress(done)
    if done != len(index):
        yield Finding(
            where=str(index.path),
            sample_id=None,
            path=None,
            cause=f"has {done} samples, but its sidecar has {len(index)}. {_REBUILD}",
        )


_REBUILD = "Delete the sidecar and open the index again, which rebuilds it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    first_id: int
    lines: Sequence[Line]
    labels: NDArray[np.int64] | None
    findings: list[Finding] = field(default_factory=list)


def _chunks(index: Index) -> Iterator[_Chunk]:
    """Yield the lines in chunks, with their labels from the sidecar.

    The first line whose offset differs from the sidecar's is a finding. Later differences are not reported.
    """
    columns = SidecarFile(sidecar_of(index)).columns
    lines = read_lines(index.path, header_of(index))
    if is_shortened(index):
        lines = islice(lines, len(index))
    first = 0
    offsets_match = True
    while chunk := list(islice(lines, _CHUNK_SAMPLES)):
        stop = min(first + len(chunk), len(index))
        finding, labels = None, None
        try:
            offsets = columns["offset"][first:stop]
            labels = columns["label"][first:stop] if "label" in columns else None
        except SidecarError as error:
            finding = Finding(where=str(index.path), sample_id=None, path=None, cause=str(error))
        else:
            finding = _first_wrong_offset(index, first, chunk, offsets)
        findings = [finding] if finding and offsets_match else []
        yield _Chunk(first_id=first, lines=chunk, labels=labels, findings=findings)
        offsets_match = offsets_match and finding is None
        first += len(chunk)


def _first_wrong_offset(
    index: Index, first_id: int, lines: Sequence[Line], offsets: NDArray[np.uint64]
) -> Finding | None:
    found = np.array([line.offset_bytes for line in lines[: len(offsets)]], np.uint64)
    wrong = np.flatnonzero(found != offsets)
    if not len(wrong):
        return None
    number = int(wrong[0])
    return Finding(
        where=f"{index.path}:{lines[number].number}",
        sample_id=first_id + number,
        path=None,
        cause=f"starts at byte {lines[number].offset_bytes}, but the sidecar {sidecar_of(index).path} says "
        f"{int(offsets[number])}. {_REBUILD}",
    )


class _Check:
    """Checks a chunk. May be called from several threads at once."""

    def __init__(
        self,
        index: Index,
        decode: Callable[[bytes], object] | None,
        check_objects: Callable[[bytes | str], object] | None,
    ) -> None:
        self._index = index
        self._decode = decode
        self._check_objects = check_objects
        self._sources = [number for number, column in enumerate(index.columns) if column.type.is_source]
        self._reads_files = "://" not in index.root
        self._images = {each for each in self._sources if self._holds_images(each)}
        self._objects = {number for number in range(len(index.columns)) if self._holds_objects(number)}

    def __call__(self, chunk: _Chunk) -> tuple[list[Finding], int]:
        findings = chunk.findings
        with self._storage() as storage:
            for number, line in enumerate(chunk.lines):
                sample_id = chunk.first_id + number
                where = f"{self._index.path}:{line.number}"
                try:
                    cells = line.parse(header_of(self._index))
                except ValueError as error:
                    findings.append(Finding(where=where, sample_id=sample_id, path=None, cause=str(error)))
                    continue
                if (cause := self._label_fault(cells, chunk.labels, number)) is not None:
                    findings.append(Finding(where=where, sample_id=sample_id, path=None, cause=cause))
                findings.extend(
                    Finding(where=where, sample_id=sample_id, path=path_of(cells[source]), cause=cause)
                    for source in self._sources
                    if (cause := self._file_fault(storage, cells[source], source)) is not None
                )
                findings.extend(
                    Finding(where=where, sample_id=sample_id, path=None, cause=cause)
                    for number in self._objects.difference(self._sources)
                    if (cause := self._object_fault(str(cells[number]), number)) is not None
                )
        return findings, len(chunk.lines)

    def _storage(self) -> LocalStorage:
        """Return a storage that reads the files which training reads: none that exceed the decoder's limits."""
        limits = getattr(self._decode, "limits", Limits())
        return LocalStorage(
            Path(self._index.root), allow_outside_root=self._index.allow_outside_root, max_bytes=limits.max_bytes
        )

    def _holds_images(self, source: int) -> bool:
        """Whether a column of files holds images, by its first cells, and not texts or arrays.

        The first column of files does, unless its first file is an array or a shard of arrays.
        """
        if self._decode is None or not self._reads_files:
            return False
        try:
            first = self._index[:_NUM_PROBED]
        except MploadError:  # a broken line, which is a finding of its own
            return True
        with self._storage() as storage:
            for record in first:
                cell = record.cells[source]
                if isinstance(cell, LmdbValue | RowValue):
                    return False
                wanted = range_of(cell)
                if source == self._sources[0]:
                    return not wanted.path.lower().endswith(".npy")
                if not isinstance(wanted, Span) and wanted.path.lower().endswith(IMAGE_EXTENSIONS):
                    return True
                try:
                    (data,) = storage.read([wanted])
                except StorageError:
                    continue
                if looks_like_image(data):
                    return True
        return False

    def _holds_objects(self, number: int) -> bool:
        """Whether a column has the name of objects, and its first cells or files look like them, or say nothing."""
        column = self._index.columns[number]
        if self._check_objects is None or column.name not in OBJECT_COLUMNS:
            return False
        cells = []
        for sample_id in range(min(_NUM_PROBED, len(self._index))):
            with suppress(MploadError):  # a broken line, which is a finding of its own
                cells.append(self._index[sample_id].cells[number])
        if column.type is ColumnType.STR:
            texts = list(map(str, cells))
        elif self._reads_files and column.type in {ColumnType.PATH, ColumnType.SPAN}:
            texts = self._texts(cells)
        else:
            return False
        texts = [text for text in texts if text.strip() not in {"", "null"}]
        return not texts or any(map(_looks_like_objects, texts))

    def _texts(self, cells: Sequence[Cell]) -> list[str]:
        """Return the files that can be read, as texts."""
        texts = []
        with self._storage() as storage:
            for cell in cells:
                with suppress(StorageError):  # a finding of its own
                    (data,) = storage.read([range_of(cell)])
                    texts.append(str(data, "utf-8-sig", "replace"))
        return texts

    def _label_fault(self, cells: Sequence[Cell], labels: NDArray[np.int64] | None, number: int) -> str | None:
        column = header_of(self._index).label_column
        if labels is None or column is None or number >= len(labels) or cells[column] == labels[number]:
            return None
        sidecar = sidecar_of(self._index).path
        return f"has label {cells[column]}, but the sidecar {sidecar} says {labels[number]}. {_REBUILD}"

    def _object_fault(self, data: bytes | str, number: int) -> str | None:
        assert self._check_objects is not None
        try:
            self._check_objects(data)
        except DecodeError as error:
            return f"column {self._index.columns[number].name!r}: {error}"
        return None

    def _file_fault(self, storage: LocalStorage, cell: Cell, source: int) -> str | None:
        if not self._reads_files or isinstance(cell, LmdbValue | RowValue):
            return None
        wanted = range_of(cell)
        if self._decode is None and source not in self._objects:
            # An empty read at the end proves that the file exists and is long enough.
            wanted = Span(wanted.path, wanted.offset_bytes + (wanted.length_bytes or 0), 0)
        try:
            (data,) = storage.read([wanted])
        except StorageError as error:
            return str(error).removeprefix(f"{printable(path_of(cell))}: ")
        if source in self._objects:
            return self._object_fault(data, source)
        if self._decode is None or source not in self._images:
            return None
        try:
            self._decode(data)
        except Exception as error:  # noqa: BLE001  a decoder may raise anything, and all of it is reported
            return None if _is_mask(data) else cause_of(error)
        return None


def _looks_like_objects(text: str) -> bool:
    """Whether a text begins with JSON or a line of YOLO, correct or not."""
    first = text.lstrip().partition("\n")[0]
    return first.startswith(("{", "[")) or is_label_line(first)


def _is_mask(data: bytes) -> bool:
    """Whether `Mask` can read a file. It also reads `.npy` and TIFF files of floats, which are no photographs."""
    try:
        Mask(dtype="float64")(data)
    except DecodeError:
        return False
    return True


def _unchecked_files(index: Index) -> str | None:
    """Return a sentence about files and values that cannot be checked; None if all can."""
    if "://" in index.root:
        return f"files at {redacted(index.root)} are not checked, only the lines and the sidecar"
    for column in index.columns:
        if column.type in {ColumnType.LMDB, ColumnType.ROW}:
            return f"{column.type} values are not checked, only the lines, the sidecar and other files"
    return None
