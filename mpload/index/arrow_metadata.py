"""Reads the metadata of an Arrow file without pyarrow, which takes 25 MB of memory in each process that loads it.

Arrow documents how its files end under "IPC File Format", https://arrow.apache.org/docs/format/Columnar.html, with the
tables of the footer in `File.fbs` and `Schema.fbs`. FlatBuffers documents how tables are stored,
https://flatbuffers.dev/internals.
"""

import os
import struct
from typing import BinaryIO

__all__ = ["arrow_metadata"]

_END_BYTES = 10  # the length of the footer, then six bytes that are always the same
_MAGIC = b"ARROW1"
_SCHEMA, _METADATA, _KEY, _VALUE = 1, 2, 0, 1
"""Numbers of fields: the schema in the footer, the metadata in the schema, and key and value in each of its items."""
_OFFSET = struct.Struct("<I")
_BACK = struct.Struct("<i")
_SHORT = struct.Struct("<H")


def arrow_metadata(file: BinaryIO) -> dict[bytes, bytes]:
    """Return the metadata of an Arrow file's schema. Only the file's end is read.

    Raises:
        ValueError: it is not an Arrow file, or is damaged.
        OSError: it cannot be read.
    """
    num_bytes = os.fstat(file.fileno()).st_size  # 0 for a device
    file.seek(max(0, num_bytes - _END_BYTES))
    end = file.read(_END_BYTES)
    footer_bytes = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or footer_bytes > num_bytes - _END_BYTES:
        raise ValueError("it is truncated, or no Arrow file")
    file.seek(num_bytes - _END_BYTES - footer_bytes)
    try:
        return _Footer(file.read(footer_bytes)).metadata()
    except struct.error as error:
        raise ValueError("its footer is damaged") from error


class _Footer:
    """A FlatBuffer. Each offset counts from its own place."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left_bytes = len(data)  # texts do not overlap, so they have no more bytes than this

    def metadata(self) -> dict[bytes, bytes]:
        if not (schema := self._field(self._target(0), _SCHEMA)) or not (items := self._field(schema, _METADATA)):
            return {}
        (num_items,) = _OFFSET.unpack_from(self._data, items)
        places = range(items + _OFFSET.size, items + (1 + num_items) * _OFFSET.size, _OFFSET.size)
        tables = map(self._target, places)
        found = dict[bytes, bytes]()
        for table in tables:
            if (key := self._text(table, _KEY)) in found:
                raise ValueError("its footer is damaged")
            found[key] = self._text(table, _VALUE)
        return found

    def _target(self, place: int) -> int:
        return place + int(_OFFSET.unpack_from(self._data, place)[0])

    def _field(self, table: int, number: int) -> int:
        """Return the place that a field of a table points to; 0 if the table lacks the field."""
        fields = table - _BACK.unpack_from(self._data, table)[0]
        if fields < 0:
            raise ValueError("its footer is damaged")
        place = (2 + number) * _SHORT.size
        if place >= _SHORT.unpack_from(self._data, fields)[0]:
            return 0
        (distance,) = _SHORT.unpack_from(self._data, fields + place)
        return self._target(table + distance) if distance else 0

    def _text(self, table: int, number: int) -> bytes:
        if not (place := self._field(table, number)):
            return b""
        (length,) = _OFFSET.unpack_from(self._data, place)
        self._left_bytes -= length
        if self._left_bytes < 0:
            raise ValueError("its footer is damaged")
        (text,) = struct.unpack_from(f"{length}s", self._data, place + _OFFSET.size)
        return bytes(text)
