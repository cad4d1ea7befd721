"""Tables that are derived from a column of an index, or from a file of numbers: made once, and mapped by all processes.

A table is a file beside the sidecar, or in the user's cache folder if that is read-only.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, IndexChangedError
from mpload.index.blocks import blocks_of
from mpload.index.columns import ColumnType, format_columns
from mpload.index.derived import found_or_made
from mpload.index.index import Index
from mpload.index.parts import is_shortened
from mpload.index.settling import settled_stamp
from mpload.index.table_files import BLOCK_ROWS, checksum_of, facts_of, write_head

__all__ = [
    "Numbers",
    "Table",
    "kind_of",
    "numbers_of",
    "regrouped",
]

_VERSION = 3
_MAX_NAME = 400
_NUMBERS = frozenset({ColumnType.INT, ColumnType.FLOAT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of one index, which is found or made.

    Attributes:
        index: the index.
        name: what the table holds, such as `balanced(label)`.
        stamp: shows that a file of numbers is unchanged; empty for columns, which the index's fingerprint covers.
    """

    index: Index
    name: str
    stamp: Mapping[str, Any] = field(default_factory=dict)

    def find_or_make(self, write: Callable[[BinaryIO, Mapping[str, Any]], None]) -> tuple[Path, dict[str, Any]]:
        """Return the path of the table and the facts in its head.

        Args:
            write: writes a table to an empty file. Its head must hold the facts passed, `num_entries` and `digest`.

        Raises:
            SidecarError: the table cannot be written anywhere, or another process takes too long to make it.
        """
        return found_or_made(
            self.index.path,
            suffix=f".{self._code()}.mpw",
            folder="draws",
            find=self._found,
            write=lambda file: self._write(file, write),
            what=f"the table {self.name}",
            size="about 8 bytes per sample",
        )

    def spec_of(self, digest: str) -> str:
        """Return the name for checkpoints. It has the digest of a table that is not made of columns alone."""
        return f"{self.name}#{digest}" if self.stamp else self.name

    def _code(self) -> str:
        words = f"{self.name} {self.stamp.get('path')}"
        if is_shortened(self.index):  # the table of the whole index may be in use
            words += f" {self.index.fingerprint}"
        return hashlib.blake2b(words.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()

    def _found(self, path: Path) -> tuple[Path, dict[str, Any]] | None:
        facts = facts_of(path)
        fits = facts.items() >= self._identity().items() and facts.get("checksum") == checksum_of(path)
        return (path, facts) if fits else None

    def _write(self, file: BinaryIO, write: Callable[[BinaryIO, Mapping[str, Any]], None]) -> None:
        if self.stamp:
            numbers = Path(self.stamp["path"])
            now = settled_stamp(numbers)
            if (now.num_bytes, now.mtime_ns) != (self.stamp["num_bytes"], self.stamp["mtime_ns"]):
                raise IndexChangedError(f"{numbers}: changed while it was being read. Start again when it is complete")
        write(file, self._identity())
        file.flush()
        path = Path(file.name)
        write_head(file, {**facts_of(path), "checksum": checksum_of(path)})

    def _identity(self) -> dict[str, Any]:
        facts = {"version": _VERSION, "fingerprint": self.index.fingerprint, "name": self.name, **self.stamp}
        return {key: _shortened(value) if isinstance(value, str) else value for key, value in facts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A number for each sample of an index."""

    blocks: Callable[[], Iterator[NDArray[Any]]]
    """Return the numbers in arrays of exactly `BLOCK_ROWS`; the last may be shorter."""
    where: Callable[[int], str]
    """Return where the number of a sample is written, for messages."""
    name: str
    stamp: Mapping[str, Any] = field(default_factory=dict)
    """See `Table.stamp`."""


def numbers_of(index: Index, source: str | os.PathLike[str], *, what: str) -> Numbers:
    """Return the numbers in a column of an index, or in a `.npy` file.

    Args:
        index: the index.
        source: the name of a column of type int or float, or the path of a file that ends with `.npy`.
        what: what the numbers are called in messages, such as "weights".

    Raises:
        ArgumentError: there is no such column or file, or it does not fit.
    """
    text = os.fspath(source)
    if text.endswith(".npy"):
        return _numbers_of_file(index, Path(text).expanduser().absolute(), what=what)
    if kind_of(index, text, what=f"{what} {text!r}") not in _NUMBERS:
        raise ArgumentError(f"{what} {text!r}: the column holds no numbers. Use one of type int or float")
    return Numbers(
        blocks=lambda: regrouped(block.numbers(text) for block in blocks_of(index)), where=index.where, name=text
    )


def _numbers_of_file(index: Index, path: Path, *, what: str) -> Numbers:
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        status = path.stat()
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(f"{path}: the {what} cannot be read: {error}. Write them by numpy.save") from error
    if is_shortened(index) and array.ndim == 1:
        array = array[: len(index)]  # the other numbers are those of lines that were appended
    if array.shape != (len(index),) or array.dtype.kind not in "fiu":
        raise ArgumentError(
            f"{path}: the {what} are {array.dtype}{list(array.shape)}, but {index.path} needs numbers [{len(index)}], "
            "one for each sample"
        )
    return Numbers(
        blocks=lambda: (array[start : start + BLOCK_ROWS] for start in range(0, len(array), BLOCK_ROWS)),
        where=lambda sample_id: f"{path}: sample {sample_id}",
        name="",
        stamp={"path": str(path), "num_bytes": status.st_size, "mtime_ns": status.st_mtime_ns},
    )


def _shortened(name: str) -> str:
    """Return a name in ASCII as it stands in the head of a table, which has no room for a long one."""
    text = ascii(name)
    if len(text) <= _MAX_NAME:
        return text
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return f"{text[:_MAX_NAME]}...{digest}"


def kind_of(index: Index, name: str, *, what: str) -> ColumnType:
    """Return the type of a column; raise `ArgumentError` if there is none of this name."""
    for column in index.columns:
        if column.name == name:
            return column.type
    raise ArgumentError(f"{what}: {index.path} has no such column. Its columns are {format_columns(index.columns)}")


def regrouped(blocks: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the rows in arrays of exactly `BLOCK_ROWS`; the last may be shorter."""
    kept: NDArray[Any] | None = None
    for block in blocks:
        rows = block if kept is None else np.concatenate([kept, block])
        end = len(rows) // BLOCK_ROWS * BLOCK_ROWS
        for start in range(0, end, BLOCK_ROWS):
            yield rows[start : start + BLOCK_ROWS]
        kept = rows[end:]
    if kept is not None and len(kept):
        yield kept
