"""The format of one sample in a segment: a head of 48 bytes, then its payload, the bytes of its sources."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

__all__ = ["HEAD_BYTES", "Head", "join_parts", "make_entry", "make_head", "payload_fits", "read_head", "split_parts"]

_HEAD = struct.Struct("<QQQQQQ")  # head's checksum, payload's checksum, sample_id, stamp, payload_bytes, num_parts
HEAD_BYTES = _HEAD.size


class Head(NamedTuple):  # made for every hit; a dataclass takes three times as long
    """The head of an entry, without its own checksum, which has been verified."""

    payload_check: int
    sample_id: int
    stamp: int
    """A hash of the sources' sizes and modification times; 0 if they were not checked."""
    payload_bytes: int
    num_parts: int


def make_entry(parts: Sequence[bytes], *, sample_id: int, stamp: int, key: int) -> tuple[bytes, bytes]:
    """Return head and payload of an entry. The data set's `key` seeds the checksums: another's entries are invalid."""
    payload = join_parts(parts)
    return make_head(payload, num_parts=len(parts), sample_id=sample_id, stamp=stamp, key=key), payload


def make_head(payload: bytes | memoryview, *, num_parts: int, sample_id: int, stamp: int, key: int) -> bytes:
    """Return the head of an entry with this payload; see `make_entry`."""
    check = xxh3_64_intdigest(payload, seed=key)
    rest = _HEAD.pack(0, check, sample_id, stamp, len(payload), num_parts)[8:]
    return xxh3_64_intdigest(rest, seed=key).to_bytes(8, "little") + rest


def read_head(data: bytes | memoryview, *, key: int) -> Head | None:
    """Return the head in `data`, or None if it is not a valid head of the data set with this key."""
    if len(data) != HEAD_BYTES:
        return None
    check, *facts = _HEAD.unpack(data)
    return Head(*facts) if xxh3_64_intdigest(data[8:], seed=key) == check else None


def payload_fits(head: Head, payload: bytes | memoryview, *, key: int) -> bool:
    """Return whether `payload` has the head's length and checksum."""
    return len(payload) == head.payload_bytes and xxh3_64_intdigest(payload, seed=key) == head.payload_check


def join_parts(parts: Sequence[bytes]) -> bytes:
    """Return the bytes of a single source unchanged, or those of several sources after their lengths (uint64 each)."""
    if len(parts) == 1:
        return parts[0]
    return b"".join([struct.pack(f"<{len(parts)}Q", *map(len, parts)), *parts])


def split_parts(payload: bytes, num_parts: int) -> list[bytes]:
    """Undo `join_parts`; the payload's checksum must have been verified."""
    if num_parts == 1:
        return [payload]
    start = 8 * num_parts
    parts = []
    for length in struct.unpack_from(f"<{num_parts}Q", payload):
        parts.append(payload[start : start + length])
        start += length
    return parts
