"""The sidecar of a list of parts: where the lines of each part are, so that a process opens a part without pyarrow.

It is a text with a line of JSON for the head, and one for each part. The lines of parts are padded to the same length,
so that any of them is read by its number. Like every sidecar, it is derived, and made again when it does not fit.
"""

import hashlib
import json
import operator
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

from mpload.errors import IndexChangedError
from mpload.index.columns import Column, format_columns, parse_columns
from mpload.index.index import Index, header_of, sidecar_of
from mpload.index.lookup import BatchOffsets, SidecarLayout
from mpload.index.open_file import OpenFile
from mpload.index.text import Header

__all__ = ["PartRow", "PartsHead", "PartsTable", "fingerprint_of_parts", "read_table", "write_table"]

_VERSION: Final = 1
_CHECK_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """What is known of one part."""

    source: str
    """Its absolute path or its URL."""
    text: str
    """Path of the text, or of a copy of it. Empty if the part has no samples."""
    text_bytes: int = 0
    text_mtime_ns: int = 0
    body_bytes: int = 0
    """See `Header`."""
    num_lines: int = 0
    """See `Header`."""
    num_samples: int = 0
    """Number of samples that count. The text may have more lines."""
    fingerprint: str = ""
    """Fingerprint of these samples."""
    sidecar: str = ""
    sidecar_bytes: int = 0
    sidecar_rows: int = 0
    digest: str = ""
    """See `SidecarLayout`."""
    seed: int = 0
    """See `SidecarLayout`."""
    columns: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """See `SidecarLayout`."""
    checks: tuple[int, int, int] = (0, 0, 0)
    """See `SidecarLayout`."""

    @classmethod
    def of(cls, part: Index, source: str) -> "PartRow":
        """Return the row of an open index."""
        header, layout, (text_bytes, mtime_ns) = header_of(part), sidecar_of(part), part._stamp  # noqa: SLF001
        return cls(
            source=source,
            text=str(part.path),
            text_bytes=text_bytes,
            text_mtime_ns=mtime_ns,
            body_bytes=header.body_bytes,
            num_lines=header.num_lines,
            num_samples=len(part),
            fingerprint=part.fingerprint,
            sidecar=str(layout.path),
            sidecar_bytes=layout.file_bytes,
            sidecar_rows=layout.num_samples,
            digest=layout.digest,
            seed=layout.seed,
            columns={name: _numbers(offsets) for name, offsets in layout.columns.items()},
            checks=_numbers(layout.checks),
        )

    def layout(self) -> SidecarLayout:
        """Return the layout of the part's sidecar."""
        return SidecarLayout(
            path=Path(self.sidecar),
            file_bytes=self.sidecar_bytes,
            num_samples=self.sidecar_rows,
            digest=self.digest,
            columns={name: _offsets(numbers) for name, numbers in self.columns.items()},
            checks=_offsets(self.checks),
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsHead:
    """What all parts have in common."""

    source: str
    """Absolute path or URL of the list."""
    digest: str
    """Digest of the list."""
    root: str
    columns: str
    """As in `#columns`."""
    classes: tuple[str, ...]

    @property
    def header(self) -> Header:
        """The header that every part has, but for its size."""
        return Header(columns=parse_columns(self.columns), classes=self.classes)


@dataclass(frozen=True, kw_only=True)
class PartsTable:
    """A table in a file.

    Process: may be forked, or pickled and sent to any process of the same machine.
    """

    path: Path
    head: PartsHead
    head_bytes: int
    row_bytes: int
    num_parts: int
    check: str
    """Checksum of the rows."""

    @cached_property
    def file(self) -> OpenFile:
        """The open file.

        Raises:
            IndexChangedError: it is another table by now.
            StorageError: it cannot be opened.
        """
        file = OpenFile(self.path)
        if file.read(0, self.head_bytes) != _head(self.head, row_bytes=self.row_bytes, check=self.check):
            raise IndexChangedError(f"{self.head.source}: changed after it was opened. Open it again")
        return file

    def row(self, number: int) -> PartRow:
        """Return what is known of a part; see `file` for what is raised."""
        return _row(self.file.read(self.head_bytes + number * self.row_bytes, self.row_bytes))

    def rows(self) -> list[PartRow]:
        """Return what is known of all parts."""
        data = self.file.read(self.head_bytes, self.num_parts * self.row_bytes)
        return [_row(data[start : start + self.row_bytes]) for start in range(0, len(data), self.row_bytes)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def fingerprint_of_parts(fingerprints: Sequence[str], columns: Sequence[Column]) -> str:
    """Return the fingerprint of an index of parts with these fingerprints; those without samples are left out."""
    words = ["parts", format_columns(tuple(columns)), *fingerprints]
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()


def write_table(file: BinaryIO, head: PartsHead, rows: Sequence[PartRow]) -> None:
    """Write a table to an empty file."""
    lines = [_json(asdict(row)) for row in rows]
    row_bytes = max(map(len, lines)) + 1
    body = b"".join(line.ljust(row_bytes - 1) + b"\n" for line in lines)
    file.write(_head(head, row_bytes=row_bytes, check=_check_of(body)) + body)


def read_table(path: Path) -> PartsTable:
    """Return the table in a file, which is read whole and checked.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no table, or is damaged.
    """
    with path.open("rb") as file:  # up to its size, in case that it grows meanwhile
        head, _, body = file.read(os.fstat(file.fileno()).st_size).partition(b"\n")
    facts = json.loads(head)
    try:
        is_known, row_bytes = facts.pop("version") == _VERSION, operator.index(facts.pop("row_bytes"))
        check = facts.pop("check")
        facts["classes"] = tuple(facts["classes"])
        found = PartsHead(**facts)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("it is no table of parts") from error
    if not is_known or row_bytes < 1 or len(body) % row_bytes or check != _check_of(body):
        raise ValueError("it is damaged, or of another version")
    return PartsTable(
        path=path,
        head=found,
        head_bytes=len(head) + 1,
        row_bytes=row_bytes,
        num_parts=len(body) // row_bytes,
        check=check,
    )


def _head(head: PartsHead, *, row_bytes: int, check: str) -> bytes:
    return _json({"version": _VERSION, "row_bytes": row_bytes, "check": check, **asdict(head)}) + b"\n"


def _row(line: bytes) -> PartRow:
    return PartRow(**json.loads(line))


def _json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()  # ASCII: surrogates are escaped


def _check_of(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES).hexdigest()


def _numbers(offsets: BatchOffsets) -> tuple[int, int, int]:
    return offsets.first_bytes, offsets.stride_bytes, offsets.last_bytes


def _offsets(numbers: Sequence[int]) -> BatchOffsets:
    first, stride, last = numbers
    return BatchOffsets(first_bytes=first, stride_bytes=stride, last_bytes=last)
