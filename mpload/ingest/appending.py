"""`append_to_index`: adds what is new in a source to the end of its index.

The index is written anew and renamed, so that a reader has either the old one or the new one. A running job goes on
with the file that it has open.
"""

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, IndexChangedError, warn
from mpload.index.columns import Cell, Column, format_columns
from mpload.index.derived import machine_lock
from mpload.index.index import Index, header_of
from mpload.index.opening import open_index
from mpload.index.parts_index import PartsIndex
from mpload.index.publishing import check_out, new_file
from mpload.index.sidecar import Progress, TextStamp
from mpload.index.text import Dialect, Header, format_header, format_line, line_parser
from mpload.ingest.class_names import with_labels
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.image_sizes import measure_sizes, refuse_sizes
from mpload.ingest.lists import read_lines
from mpload.ingest.rows import Rows
from mpload.ingest.sources import SourcePath, open_source, refuse_whole_sources, source_paths
from mpload.ingest.web_names import with_warning_of_escapes
from mpload.ingest.writing import check_text
from mpload.storage.urls import is_url, redacted
from mpload.units import MIB, format_counted, printable

__all__ = ["Appended", "append_to_index"]

_LOCK_SECONDS = 3600.0
_DIGEST_BYTES = 16
_CHUNK_LINES = 1 << 16
_AGAIN = "Give the same options as when the index was made, or make a new index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What `append_to_index` has found and done."""

    path: Path
    """The index."""
    num_samples: int
    """Number of samples that it has now."""
    num_new: int
    """Number of samples that were appended."""
    new_classes: tuple[str, ...]
    """Names of the classes that were appended."""
    num_gone: int
    """Number of samples whose files the source no longer has. Their lines were kept."""
    gone: str | None
    """The first of their files."""
    num_changed: int
    """Number of samples of the source whose files the index has, but with other values. They were not appended."""
    changed: str | None
    """The first of their files."""


def append_to_index(
    source: SourcePath | Sequence[SourcePath],
    index: str | os.PathLike[str],
    *,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    folder: FolderOptions = FolderOptions(),
    with_sizes: bool = False,
    classes_from: str | None = None,
    num_workers: int = 8,
    progress: Progress | None = None,
) -> Appended:
    """Append the samples to an index that its source has gained, and leave all its lines as they are.

    A sample is new if the index has no line with the same files; without columns of files, if it has no such line.
    Classes keep their numbers, and the names of new ones follow. If nothing is new, no file is changed.

    A checkpoint of the shorter index fits the longer one, see docs/how-to/growing-data.md. The index appears when it is
    complete, and jobs that use the shorter one go on with it.

    Args:
        source: as for `build_index`: a folder, a list, tar files, tables or databases. Not COCO, Pascal VOC or YOLO.
        index: the index that `build_index` has made of it.
        columns: as for `build_index`.
        root: as for `build_index`.
        folder: as for `build_index`.
        with_sizes: also measure the sizes of samples. Sizes that the index has are kept, and completed.
        classes_from: as for `build_index`. The classes of the index keep their numbers, and a name that is none of them
            is an error.
        num_workers: number of threads that measure sizes.
        progress: called with the number of samples of the source examined so far.

    Returns:
        What was found and done.

    Raises:
        ArgumentError: the source is not that of the index, or of a kind that cannot be appended, or the column
            `classes_from` names a new class.
        IndexNotFoundError: there is no index.
        IndexChangedError: another program has changed the index in the meantime.
        IndexFormatError: a line of a list or of the index breaks the format.
        StorageError: a file cannot be read or written.

    Warns:
        MploadWarning: something in the source was left out, as for `build_index`.

    Memory: about 100 bytes per sample of the index.
    """
    if is_url(os.fspath(index)):
        raise ArgumentError(
            f"{redacted(os.fspath(index))}: is a URL. Append to a copy of the index in a folder, and upload that"
        )
    target = Path(os.path.normpath(Path(index).expanduser().absolute()))
    file = target.resolve()  # a link stays a link
    refuse_whole_sources(source, folder)
    busy = IndexChangedError(f"{target}: another process has been appending for {_LOCK_SECONDS:.0f} s. Try later")
    name = hashlib.blake2b(os.fsencode(file), digest_size=16).hexdigest()
    with machine_lock(f"{name}.append", limit_seconds=_LOCK_SECONDS, busy=busy):
        old, stamp = open_index(target), TextStamp.of(target)
        if isinstance(old, PartsIndex):
            raise ArgumentError(
                f"{target}: lists parts. Append to the last of them, or index what is new as a further part; then list "
                "them again: mpload merge PART ... -o LIST --as-parts"
            )
        if header_of(old).dialect is not Dialect.NATIVE:
            raise ArgumentError(f"{target}: is a plain list, not an index. Make an index of it: mpload index {target}")
        check_out(target, source_paths(source))
        if with_sizes:
            refuse_sizes(old.columns, old.root, target)
        with open_source(
            source, columns=columns, root=root, folder=folder, out=target, classes_from=classes_from
        ) as found_rows:
            rows = found_rows if classes_from is None else _labelled(old, found_rows, classes_from)
            rows = with_warning_of_escapes(rows, target)
            classes = _classes_of(old, rows)
            _check_same(old, rows)
            found = _Found(lines=_Lines.of(old))
            with tempfile.TemporaryFile(dir=file.parent) as scratch:
                num_new = found.write_new(scratch, _renumbered(old, rows, classes), progress)
                if num_new and not found.num_met:
                    raise ArgumentError(
                        f"{target}: contains no file of this source, so it was made of another one. Append to the "
                        "index of this source, or join both: mpload merge"
                    )
                if num_new:
                    _publish(old, stamp, classes, scratch)
        if rows.left_out:
            warn(f"left out of {target}: {rows.left_out}")
        now = open_index(target)
        if with_sizes or (num_new and old.nbytes is not None):
            measure_sizes(now, num_workers=num_workers, known=old.nbytes)
    gone = found.first_gone()
    return Appended(
        path=target,
        num_samples=len(now),
        num_new=num_new,
        new_classes=classes[len(old.classes) :] if num_new else (),
        num_gone=found.num_gone,
        gone=None if gone is None else _name_of(old, gone),
        num_changed=found.num_changed,
        changed=found.changed,
    )


def _labelled(index: Index, rows: Rows, column: str) -> Rows:
    """Return rows with the numbers that the index gives to the classes that a column of the source names."""
    if not index.classes:
        raise ArgumentError(f"{index.path}: has no classes, so it was made without classes_from={column!r}. {_AGAIN}")

    def unknown(name: str) -> ArgumentError:
        return ArgumentError(
            f"{index.path}: column {column!r} of the source names the class {printable(name)!r}, which is not among "
            f"the {format_counted(len(index.classes), 'class')} of the index. Correct the name, or make a new index "
            "with all classes"
        )

    return with_labels(rows, column, index.classes, unknown=unknown)


def _classes_of(index: Index, rows: Rows) -> tuple[str, ...]:
    """Return the classes of the index, then the new ones of the source."""
    can_renumber = header_of(index).label_column is not None and bool(index.classes)
    if rows.classes and rows.classes != index.classes and not can_renumber:
        raise ArgumentError(f"{index.path}: has no named classes of a label, unlike the source. {_AGAIN}")
    known = set(index.classes)
    return (*index.classes, *(name for name in rows.classes if name not in known))


def _check_same(index: Index, rows: Rows) -> None:
    if rows.columns != index.columns:
        raise ArgumentError(
            f"{index.path}: has columns '{format_columns(index.columns)}', but the source has "
            f"'{format_columns(rows.columns)}'. {_AGAIN}"
        )
    if rows.root != index.root:
        raise ArgumentError(
            f"{index.path}: has the root {printable(index.root)}, but the source has {printable(rows.root)}. {_AGAIN}"
        )


def _renumbered(index: Index, rows: Rows, classes: tuple[str, ...]) -> Iterator[Sequence[Cell]]:
    """Yield the cells of the source, with the class numbers of the index."""
    place = header_of(index).label_column
    if not rows.classes or place is None or rows.classes == classes[: len(rows.classes)]:
        yield from rows.cells
        return
    numbers = {name: number for number, name in enumerate(classes)}
    new_numbers = [numbers[name] for name in rows.classes]
    for cells in rows.cells:
        label = cells[place]
        assert isinstance(label, int), "a column of labels holds integers"
        yield [*cells[:place], new_numbers[label] if label >= 0 else label, *cells[place + 1 :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """What identifies the lines of an index: digests of the files and of the whole line, `S16` [num_samples]."""

    files: NDArray[np.bytes_]
    whole: NDArray[np.bytes_]
    places: tuple[int, ...]
    """Numbers of the columns of files; empty if there are none."""

    @classmethod
    def of(cls, index: Index) -> "_Lines":
        """Read the lines of an index."""
        header = header_of(index)
        places = _places_of(header.columns)
        files, whole = (np.empty(len(index), f"S{_DIGEST_BYTES}") for _ in range(2))
        plain = _plain_lines(header)
        for number, line in enumerate(read_lines(index.path, header)):
            text = plain(line.text)
            whole[number] = _digest(text)
            files[number] = _digest(_files_in(text, places)) if places else whole[number]
        return cls(files=files, whole=whole, places=places)


@dataclass(slots=True, kw_only=True)
class _Found:
    """What of a source is in the index already."""

    lines: _Lines
    num_changed: int = 0
    changed: str | None = None
    _files: NDArray[np.bytes_] = field(init=False)
    _whole: NDArray[np.bytes_] = field(init=False)
    _is_met: NDArray[np.bool_] = field(init=False)
    """Whether the source has each of `_files`."""

    def __post_init__(self) -> None:
        self._files, self._whole = np.unique(self.lines.files), np.unique(self.lines.whole)
        self._is_met = np.zeros(len(self._files), np.bool_)

    @property
    def num_met(self) -> int:
        """Number of different files of the index that the source has."""
        return int(np.count_nonzero(self._is_met))

    @property
    def num_gone(self) -> int:
        """Number of lines whose files the source does not have."""
        return int(np.count_nonzero(self._are_gone()))

    def first_gone(self) -> int | None:
        """Return the first sample whose files the source does not have."""
        gone = np.flatnonzero(self._are_gone())
        return int(gone[0]) if len(gone) else None

    def write_new(self, out: BinaryIO, rows: Iterator[Sequence[Cell]], progress: Progress | None) -> int:
        """Write the lines of samples that the index lacks to `out`, and return their number."""
        num_new = done = 0
        for texts in _chunks(map(format_line, rows)):
            files = np.array([_digest(self._key(text)) for text in texts], f"S{_DIGEST_BYTES}")
            whole = np.array([_digest(text[:-1]) for text in texts], f"S{_DIGEST_BYTES}")
            places, is_known = _lookup(self._files, files)
            self._is_met[places[is_known]] = True
            is_changed = is_known & ~_lookup(self._whole, whole)[1]
            self.num_changed += int(np.count_nonzero(is_changed))
            if self.changed is None and is_changed.any():
                self.changed = _shown(self._key(texts[int(np.flatnonzero(is_changed)[0])]))
            for number in np.flatnonzero(~is_known).tolist():
                out.write(texts[number])
                num_new += 1
            done += len(texts)
            if progress is not None:
                progress(done)
        return num_new

    def _key(self, text: bytes) -> bytes:
        return _files_in(text[:-1], self.lines.places) if self.lines.places else text[:-1]

    def _are_gone(self) -> NDArray[np.bool_]:
        return ~self._is_met[np.searchsorted(self._files, self.lines.files)]


def _lookup(known: NDArray[np.bytes_], wanted: NDArray[np.bytes_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the place of each of `wanted` among `known`, which is sorted, and whether it is there."""
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return places, known[places] == wanted


def _chunks(texts: Iterator[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == _CHUNK_LINES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _plain_lines(header: Header) -> Callable[[bytes], bytes]:
    """Return what writes a line as `format_line` does. Only a line with escapes may look different."""
    parse = line_parser(header)
    return lambda line: format_line(parse(line))[:-1] if b"\\" in line else line


def _places_of(columns: Sequence[Column]) -> tuple[int, ...]:
    return tuple(number for number, column in enumerate(columns) if column.type.is_source)


def _files_in(line: bytes, places: Sequence[int]) -> bytes:
    cells = line.split(b"\t")
    return b"\t".join([cells[place] for place in places])


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


def _name_of(index: Index, sample_id: int) -> str:
    places = _places_of(index.columns)
    cells = index[sample_id].cells
    return printable(", ".join(str(cells[place]) for place in places or range(len(cells))))


def _shown(text: bytes) -> str:
    return printable(text.decode("utf-8", "surrogateescape").replace("\t", ", "))


def _publish(old: Index, stamp: TextStamp, classes: tuple[str, ...], new_lines: BinaryIO) -> None:
    """Replace the index by one with further lines, and with these classes."""
    header = header_of(old)
    with old.path.open("rb") as text, new_file(old.path.resolve()) as file:
        os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(text.fileno()).st_mode))
        if classes == header.classes:
            file.write(text.read(header.body_bytes))
        else:
            file.write(format_header(columns=header.columns, root=header.root, classes=classes))
            text.seek(header.body_bytes)
        shutil.copyfileobj(text, file, MIB)
        text.seek(-1, os.SEEK_END)
        if text.read(1) != b"\n":
            file.write(b"\n")
        new_lines.seek(0)
        shutil.copyfileobj(new_lines, file, MIB)
        check_text(file, old.path)
        if TextStamp.of(old.path) != stamp:
            raise IndexChangedError(f"{old.path}: was changed by another program in the meantime. Append again")
