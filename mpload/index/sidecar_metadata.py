"""What a sidecar says of itself: which text it belongs to, where its rows are, and the checksum of all this."""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mpload.index.columns import ColumnType
from mpload.index.dialects import LABEL, PIXEL_SIZES
from mpload.index.text import Header

__all__ = [
    "LABEL_KEY",
    "SIDECAR_VERSION",
    "TOTALS_KEY",
    "Progress",
    "Rows",
    "TextStamp",
    "check_of",
    "seed_of",
    "unlike_before",
]

SIDECAR_VERSION = 2
TOTALS_KEY = b"mpload.totals"
LABEL_KEY = b"mpload.label"
"""The name of the label column, where it is `unlike_before`."""

Progress = Callable[[int], None]
"""Called from time to time with the number of samples processed so far."""

Rows = dict[str, NDArray[Any]]
"""Some rows: an array for each column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStamp:
    """Size and modification time of a text file, to detect changes without reading it."""

    num_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, file: Path | int) -> "TextStamp":
        """Return the stamp of a path or an open descriptor."""
        status = os.stat(file)  # noqa: PTH116  descriptors too
        return cls(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def unlike_before(header: Header) -> str:
    """Return the name of the label column if older versions chose another one: `width` or `height`. Else return ""."""
    first = next((number for number, column in enumerate(header.columns) if column.type is ColumnType.INT), None)
    label = header.label_column
    if label is None or first is None or header.columns[first].name not in PIXEL_SIZES:
        return ""
    return "" if header.columns[label].name == LABEL else header.columns[label].name


def check_of(metadata: Mapping[bytes, bytes], totals: Mapping[str, Any]) -> str:
    """Return the checksum of a sidecar's metadata."""
    words = [word for pair in sorted(metadata.items()) for word in pair]
    text = json.dumps(totals, sort_keys=True).encode()
    return hashlib.blake2b(b"\n".join([*words, text]), digest_size=16).hexdigest()


def seed_of(metadata: Mapping[bytes, bytes]) -> int:
    """Return the initial value of the row checksums. It depends on the text, so rows of another text do not match."""
    return zlib.crc32(metadata[b"mpload.text"])
