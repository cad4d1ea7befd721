"""The files of tables: a head of 4,096 bytes, which is JSON, and then entries of 8 bytes. Without pyarrow."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from mpload.errors import IndexChangedError
from mpload.units import KIB, MIB

__all__ = ["BLOCK_ROWS", "ENTRY_BYTES", "HEAD_BYTES", "MappedTable", "checksum_of", "facts_of", "write_head"]

BLOCK_ROWS: Final = 1 << 16
"""Number of rows that are handled at once when a table is made."""
HEAD_BYTES: Final = 4096
ENTRY_BYTES: Final = 8
_CHECKED_BYTES: Final = 4 * MIB
_PIECE_BYTES: Final = 64 * KIB
_AGAIN: Final = "Open the dataset again"


def write_head(file: BinaryIO, facts: Mapping[str, Any]) -> None:
    """Write the head of a table: facts as JSON, up to 4,000 bytes."""
    file.seek(0)
    file.write(json.dumps(dict(facts)).encode().ljust(HEAD_BYTES))


def facts_of(path: Path) -> dict[str, Any]:
    """Return the facts in the head of a table.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no complete table.
    """
    with path.open("rb") as file:
        facts = json.loads(file.read(HEAD_BYTES))
        num_bytes = file.seek(0, os.SEEK_END)
    if not isinstance(facts, dict) or num_bytes != HEAD_BYTES + ENTRY_BYTES * facts.get("num_entries", -1):
        raise ValueError("its size is wrong")
    return facts


def checksum_of(path: Path, *, head_bytes: int = HEAD_BYTES) -> str:
    """Return a checksum of the first and the last 4 MiB of a table's entries, which follow a head of `head_bytes`.

    These are all entries of up to a million samples. It finds most damage, such as zeros, in the same time for any
    number of samples.
    """
    checksum = xxh3_64()
    with path.open("rb") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        for start in (head_bytes, max(head_bytes + _CHECKED_BYTES, num_bytes - _CHECKED_BYTES)):
            file.seek(start)
            for _ in range(_CHECKED_BYTES // _PIECE_BYTES):
                checksum.update(file.read(_PIECE_BYTES))
    return checksum.hexdigest()


@dataclass(frozen=True, kw_only=True)
class MappedTable:
    """A table in a file, mapped into memory when it is first used, or unpickled.

    Process: may be forked, or pickled and sent to any process of the same machine. All share the pages.
    """

    path: Path
    num_samples: int
    """Number of samples of the index."""
    digest: str
    """Digest of what the table was made of."""

    @cached_property
    def entries(self) -> NDArray[np.int64]:
        """The entries, int64 [n].

        Raises:
            IndexChangedError: the file cannot be read, or is another table.
        """
        try:
            entries = np.memmap(self.path, np.int64, mode="r", offset=HEAD_BYTES).view(np.ndarray)
            is_same = facts_of(self.path)["digest"] == self.digest
        except (OSError, ValueError, LookupError, OverflowError) as error:  # the last if it is shorter than its head
            raise IndexChangedError(f"{self.path}: the table cannot be read: {error}. {_AGAIN}") from error
        if not is_same:
            raise IndexChangedError(f"{self.path}: what the table was made of has changed during the run. {_AGAIN}")
        return entries

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "entries"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with suppress(IndexChangedError):  # raised again when it is used
            _ = self.entries  # mapped at once, for processes that are forked after the file was replaced
