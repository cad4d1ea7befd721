"""Opens the index that a list of parts describes.

All parts are opened once, and what was found is kept in the sidecar of the list. Later, it suffices to see that no file
has changed.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Protocol

from mpload.errors import IndexChangedError, IndexFormatError, IndexNotFoundError, MploadError, StorageError
from mpload.index.columns import format_columns
from mpload.index.derived import found_or_made
from mpload.index.index import Index, fingerprint_of, header_of
from mpload.index.parts_index import PartsIndex
from mpload.index.parts_table import PartRow, PartsHead, PartsTable, fingerprint_of_parts, read_table, write_table
from mpload.index.parts_text import PartList, read_parts
from mpload.index.sidecar import Progress
from mpload.index.text import Dialect
from mpload.storage.urls import is_url, redacted
from mpload.units import format_count, printable

__all__ = ["difference_of", "open_parts"]

_NUM_THREADS = 16
_LIST_AGAIN = "List the parts again: mpload merge PART ... -o LIST --as-parts"


class Opener(Protocol):
    """Opens the indexes at paths and URLs."""

    def prepare(self, sources: Sequence[str]) -> None:
        """Prepare to open these."""

    def part(self, source: str, progress: Progress) -> tuple[Path, Index | None]:
        """Return the text of an index, or its copy, and the opened index; None if it has no samples."""


def open_parts(
    text: Path,
    *,
    source: str,
    opener: Opener,
    allow_outside_root: bool,
    copies: Path | None,
    progress: Progress | None,
) -> PartsIndex:
    """Open the index that a list of parts describes.

    Args:
        text: the list.
        source: its absolute path or URL, if the text is a copy.
        opener: opens the parts, which are copied if they are at URLs or if there are `copies`.
        allow_outside_root: whether paths may lead outside the root.
        copies: the folder of copies on a local disk.
        progress: called with the number of samples processed so far.

    Raises:
        IndexChangedError: a part has not the samples that the list says.
        IndexFormatError: the list or a part breaks the format, or the parts do not fit together.
        IndexNotFoundError: a part is missing.
        MploadError: a part cannot be opened, see `open_index`.

    Memory: 8 bytes per part; in between, about 1 kB per part.
    """
    parts = read_parts(text, source=source)
    building = _Building(
        parts=parts, opener=opener, progress=progress or (lambda _: None), are_copied=copies is not None
    )
    table, rows = found_or_made(
        text,
        suffix=".mpx",
        folder="sidecars",
        find=building.find,
        write=building.write,
        what="the table of its parts",
        size="about 1 kB per part",
    )
    columns = table.head.header.columns
    return PartsIndex(
        path=text.absolute(),
        source=source,
        table=table,
        rows=rows,
        fingerprint=fingerprint_of_parts([row.fingerprint for row in rows if row.num_samples], columns),
        allow_outside_root=allow_outside_root,
        copies=copies,
    )


class _Building:
    """Finds or makes the table of a list."""

    def __init__(self, *, parts: PartList, opener: Opener, progress: Progress, are_copied: bool) -> None:
        self.parts = parts
        self.opener = opener
        self.progress = progress
        self.are_copied = are_copied
        self._made: tuple[PartsHead, list[PartRow]] | None = None

    def find(self, path: Path) -> tuple[PartsTable, list[PartRow]] | None:
        """Return the table at a path and its rows, if it is that of the list, and no file has changed."""
        table = read_table(path)
        if (table.head.source, table.head.digest) != (self.parts.source, self.parts.digest):
            return None
        rows = table.rows()
        if self._made is not None:
            return table, rows
        if any(self._must_be_opened(number) for number in range(len(rows))):
            return None
        shares = [rows[start::_NUM_THREADS] for start in range(min(_NUM_THREADS, len(rows)))]
        with ThreadPoolExecutor(_NUM_THREADS) as pool:  # network file systems take long to answer, but many at once
            return (table, rows) if all(pool.map(_are_unchanged, shares)) else None

    def write(self, file: BinaryIO) -> None:
        """Write the table to an empty file."""
        if self._made is None:
            self._made = self._make()
        write_table(file, *self._made)

    def _must_be_opened(self, number: int) -> bool:
        """Whether only opening a part shows if it has changed: it is copied, and the list does not say which it is."""
        is_copied = self.are_copied or is_url(self.parts.source_of(number))
        return is_copied and self.parts.parts[number].digest is None

    def _make(self) -> tuple[PartsHead, list[PartRow]]:
        rows: list[PartRow] = []
        first: Index | None = None
        done = 0
        wanted = [number for number, listed in enumerate(self.parts.parts) if listed.num_samples != 0]
        self.opener.prepare([self.parts.source_of(number) for number in wanted])
        for number, listed in enumerate(self.parts.parts):
            source = self.parts.source_of(number)
            if listed.num_samples == 0:
                rows.append(PartRow(source=source, text=""))
                continue
            text, part = self._opened(number, done)
            if part is None:
                rows.append(_row_without_samples(source, text))
                continue
            first = first or part
            if difference := difference_of(first, part):
                raise IndexFormatError(f"{self.parts.where(number)}: {difference}")
            rows.append(PartRow.of(part, source))
            done += len(part)
        if first is None:
            raise IndexFormatError(f"{redacted(self.parts.source)}: none of its parts has samples. List one that has")
        head = PartsHead(
            source=self.parts.source,
            digest=self.parts.digest,
            root=first.root,
            columns=format_columns(first.columns),
            classes=first.classes,
        )
        return head, rows

    def _opened(self, number: int, done: int) -> tuple[Path, Index | None]:
        """Open a part, cut to the number of samples that the list gives. Return None if it has no samples."""
        listed, where = self.parts.parts[number], self.parts.where(number)
        try:
            text, part = self.opener.part(self.parts.source_of(number), lambda count: self.progress(done + count))
        except IndexNotFoundError as error:
            raise IndexNotFoundError(f"{where} does not exist. Bring it back. {_LIST_AGAIN}") from error
        except IndexFormatError as error:
            raise IndexFormatError(f"{where}: {error}") from error
        except OSError as error:
            if isinstance(error, MploadError):
                raise
            raise StorageError(f"{where}: cannot be read: {error.strerror or error}. Check its disk") from error
        num_samples = listed.num_samples
        if part is None or num_samples is None or listed.digest is None:
            if part is None and num_samples:
                raise IndexChangedError(f"{where}: has no samples now, but {num_samples} were listed. {_LIST_AGAIN}")
            return text, part
        fingerprint = fingerprint_of(listed.digest, num_samples, header_of(part))
        growth = import_module("mpload.index.growth")  # by its name, as it opens indexes
        if not growth.is_prefix(part, num_samples, fingerprint):
            raise IndexChangedError(
                f"{where}: does not begin with the {format_count(num_samples)} samples that were listed. {_LIST_AGAIN}"
            )
        return text, growth.first_samples(part, num_samples, fingerprint=fingerprint)


def difference_of(first: Index, part: Index) -> str:
    """Return what two indexes differ in that parts must have in common, and what to do; empty if nothing."""
    name = printable(str(first.path))
    if header_of(part).dialect is not Dialect.NATIVE:
        return "is a plain list, not an index. Make an index of it: mpload index LIST -o PART"
    if part.columns != first.columns:
        return (
            f"has columns '{format_columns(part.columns)}', but {name} has '{format_columns(first.columns)}'. Make all "
            "parts with the same columns"
        )
    if part.classes != first.classes:
        return (
            f"has other class names than {name}, so its labels may differ in meaning. Index both from one folder of "
            "all classes"
        )
    if part.root != first.root:
        return (
            f"has the root {printable(redacted(part.root))}, but {name} has {printable(redacted(first.root))}. Give "
            "all parts one root, or merge them: mpload merge PART ... -o ALL"
        )
    return ""


def _row_without_samples(source: str, text: Path) -> PartRow:
    status = text.stat()
    return PartRow(source=source, text=str(text), text_bytes=status.st_size, text_mtime_ns=status.st_mtime_ns)


def _are_unchanged(rows: Sequence[PartRow]) -> bool:
    return all(map(_is_unchanged, rows))


def _is_unchanged(row: PartRow) -> bool:
    if not row.text:
        return True
    try:
        text = os.stat(row.text)  # noqa: PTH116  faster, and there may be many
        if (text.st_size, text.st_mtime_ns) != (row.text_bytes, row.text_mtime_ns):
            return False
        return not row.sidecar or os.stat(row.sidecar).st_size == row.sidecar_bytes  # noqa: PTH116
    except OSError:
        return False
