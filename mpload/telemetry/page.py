"""A page of memory on which a loader says what it is doing, for whoever attaches to its process.

It is nameless (`memfd`), so nothing is left of it however the process ends; others of the same user find it among the
process's descriptors. Layout: magic (8 bytes), format version, sequence number, length (u64 each, little-endian), then
a JSON object of that length. The sequence number is odd while anything else is written: a reader that saw it odd, or
change, reads again.
"""

import json
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpload.transport.fence import Fence
from mpload.transport.limits import shared_memory

__all__ = ["PAGE_VERSION", "StatsPage", "read_pages"]

PAGE_VERSION = 1
_NAME = "mpload-stats"
_MAGIC = b"MPLSTATS"
_HEAD = struct.Struct("<8s3Q")
_WORD = struct.Struct("<Q")
_SEQUENCE = slice(16, 24)
_LENGTH = slice(24, 32)
_PAGE_BYTES = 1 << 16
_ATTEMPTS = 100


class StatsPage:
    """The writer's side. Lives as long as this object."""

    def __init__(self) -> None:
        fd = shared_memory(_NAME, _PAGE_BYTES)
        self._map = mmap.mmap(fd, _PAGE_BYTES)  # which has a descriptor of its own
        os.close(fd)
        self._fence = Fence()
        self._turn_to(1)
        self._map[: _HEAD.size] = _HEAD.pack(_MAGIC, PAGE_VERSION, self._sequence, 0)
        self.write({})

    def close(self) -> None:
        """Take the page away. May be called again."""
        self._map.close()

    def write(self, facts: Mapping[str, Any]) -> None:
        """Put `facts`, as JSON can carry them, on the page; what does not fit leaves it as it was."""
        text = json.dumps(facts).encode()
        if len(text) > _PAGE_BYTES - _HEAD.size:
            return
        self._turn_to(self._sequence | 1)
        self._fence()
        self._map[_LENGTH] = _WORD.pack(len(text))
        self._map[_HEAD.size : _HEAD.size + len(text)] = text
        self._fence()
        self._turn_to(self._sequence + 1)

    def _turn_to(self, sequence: int) -> None:
        """Write the sequence number alone and at once, not by `pack_into`, which puts zeros there first."""
        self._map[_SEQUENCE] = _WORD.pack(sequence)
        self._sequence = sequence


def read_pages(pid: int) -> list[dict[str, Any]]:
    """Return what the loaders of a process say, the oldest first; none where it has none, or another format.

    Raises:
        FileNotFoundError: there is no such process.
        PermissionError: it belongs to another user.
    """
    found = []
    for link in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda link: int(link.name)):
        try:
            if f"memfd:{_NAME} " in f"{link.readlink()} ":
                facts = _read(link)
                if facts is not None:
                    found.append(facts)
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def _read(path: Path) -> dict[str, Any] | None:
    fence = Fence()
    with path.open("rb") as file:
        for _ in range(_ATTEMPTS):
            before = os.pread(file.fileno(), _HEAD.size, 0)
            fence()
            page = os.pread(file.fileno(), _PAGE_BYTES, 0)
            fence()
            after = os.pread(file.fileno(), _HEAD.size, 0)
            if len(page) < _PAGE_BYTES:  # its loader is about to make it
                return None
            magic, version, sequence, length = _HEAD.unpack_from(page)
            if magic != _MAGIC or version != PAGE_VERSION:
                return None
            if sequence % 2 == 0 and before == after == page[: _HEAD.size]:
                facts: dict[str, Any] = json.loads(page[_HEAD.size : _HEAD.size + length])
                return facts
    return None
