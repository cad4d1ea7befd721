"""What one sample looks like in a segment: a head of 48 bytes, then its sources' bytes."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

__all__ = ["HEAD_BYTES", "Head", "join_parts", "make_entry", "payload_fits", "read_head", "split_parts"]

_HEAD = struct.Struct("<QQQQQQ")  # checksum of the rest, of the payload, sample_id, stamp, payload_bytes, num_parts
HEAD_BYTES = _HEAD.size


class Head(NamedTuple):  # made for every hit: a dataclass takes three times as long
    """What stands before the payload of an entry; only made of heads whose checksum holds."""

    payload_check: int
    sample_id: int
    stamp: int
    """Of the sources that it was read from: changes when they do; 0 where nobody looked."""
    payload_bytes: int
    num_parts: int


def make_entry(parts: Sequence[bytes], *, sample_id: int, stamp: int, key: int) -> tuple[bytes, bytes]:
    """Return head and payload of an entry. `key` is the data set's: no entry of another one passes for its own."""
    payload = join_parts(parts)
    check = xxh3_64_intdigest(payload, seed=key)
    rest = _HEAD.pack(0, check, sample_id, stamp, len(payload), len(parts))[8:]
    return xxh3_64_intdigest(rest, seed=key).to_bytes(8, "little") + rest, payload


def read_head(data: bytes, *, key: int) -> Head | None:
    """Return the head that `data` is, or None where it is none, or another data set's."""
    if len(data) != HEAD_BYTES:
        return None
    check, *facts = _HEAD.unpack(data)
    return Head(*facts) if xxh3_64_intdigest(data[8:], seed=key) == check else None


def payload_fits(head: Head, payload: bytes, *, key: int) -> bool:
    """Whether `payload` is what the entry was made with."""
    return len(payload) == head.payload_bytes and xxh3_64_intdigest(payload, seed=key) == head.payload_check


def join_parts(parts: Sequence[bytes]) -> bytes:
    """Return one source's bytes as they are, several behind their lengths (uint64 each)."""
    if len(parts) == 1:
        return parts[0]
    return b"".join([struct.pack(f"<{len(parts)}Q", *map(len, parts)), *parts])


def split_parts(payload: bytes, num_parts: int) -> list[bytes]:
    """Undo `join_parts`, of a payload whose checksum holds."""
    if num_parts == 1:
        return [payload]
    start = 8 * num_parts
    parts = []
    for length in struct.unpack_from(f"<{num_parts}Q", payload):
        parts.append(payload[start : start + length])
        start += length
    return parts
