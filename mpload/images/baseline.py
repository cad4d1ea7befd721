"""Rewrites JPEGs without loss as baseline JPEGs that share one set of Huffman tables: they decode faster.

A progressive JPEG takes several times as long to decode as a baseline one. And the decoder keeps its lookup tables
while the Huffman tables stay the same from one photo to the next.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.images.backends import HOW_TO_BUILD
from mpload.images.claims import unclaimed
from mpload.images.jpeg import open_jpeg
from mpload.images.jpeg_header import libjpeg_header, read_header
from mpload.images.limits import Limits
from mpload.native import native_module

__all__ = ["HuffmanTables", "code_lengths", "tables_for"]

_JPEG_START = b"\xff\xd8\xff"
_MAX_CODE_BITS = 16
_DC_SYMBOLS = tuple(range(12))
_AC_SYMBOLS = (0x00, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 11)))
_KINDS = ((0x00, _DC_SYMBOLS), (0x10, _AC_SYMBOLS), (0x01, _DC_SYMBOLS), (0x11, _AC_SYMBOLS))
"""The name of each table in a JPEG, and all symbols that a baseline scan may contain."""


class _Native(Protocol):
    """The module `mpload.images._transcode`."""

    def count(self, data: bytes, counts: NDArray[np.int64]) -> bool:
        """Add the symbols of a JPEG to `counts`, [4, 256]. Return False if the file is declined."""
        ...

    def transcode(self, data: bytes, tables: bytes) -> bytes | None:
        """Return the JPEG with these tables. Return None if the file is declined."""
        ...


_NATIVE: Final[_Native | None] = native_module("images._transcode")


def _native() -> _Native:
    if _NATIVE is None:
        raise ArgumentError(f"JPEGs cannot be rewritten: the native module was not built. {HOW_TO_BUILD}")
    return _NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class HuffmanTables:
    """The Huffman tables of baseline JPEGs: for luma and for chroma, DC and AC.

    Attributes:
        segment: The tables as the contents of a JPEG's DHT segment.
    """

    segment: bytes

    def rewrite(self, data: bytes) -> bytes:
        """Return a JPEG as a baseline JPEG with these tables; return any file that cannot be rewritten as it is.

        The pixels and the markers in the header, among them EXIF data and colour profiles, stay the same. Restart
        markers, and bytes after the end of the image, are dropped. A file stays as it is if it is no JPEG, is damaged,
        does not have 8 bits per sample, or exceeds the default `Limits`.

        Memory: About 6 bytes per pixel, and twice the size of the file.

        Raises:
            ArgumentError: The native module was not built.
        """
        native = _native()
        rewritten = native.transcode(data, self.segment) if _is_acceptable(data) else None
        if rewritten is None or _facts(rewritten) != _facts(data):
            return data
        return rewritten


def tables_for(images: Iterable[bytes]) -> HuffmanTables:
    """Return the tables that suit all these JPEGs together best. They also have codes for the symbols of all others.

    Files that `HuffmanTables.rewrite` leaves as they are do not count.

    Raises:
        ArgumentError: The native module was not built.
    """
    native, counts = _native(), np.zeros((len(_KINDS), 256), np.int64)
    for data in filter(_is_acceptable, images):
        native.count(data, counts)
    segment = b""
    for (name, symbols), frequencies in zip(_KINDS, counts.tolist(), strict=True):
        frequent = sorted(symbols, key=lambda symbol: (-frequencies[symbol], symbol))
        lengths = code_lengths([frequencies[symbol] + 1 for symbol in frequent])
        segment += bytes([name, *lengths, *frequent])
    return HuffmanTables(segment=segment)


def _is_acceptable(data: bytes) -> bool:
    """Return whether `data` is a JPEG within the default limits."""
    if data[:3] != _JPEG_START:
        return False
    try:
        Limits().check_bytes(len(data))
        open_jpeg(data, upright=True, limits=Limits(), backend="auto", claim=unclaimed)
    except DecodeError:
        return False
    return True


def _facts(data: bytes) -> tuple[object, ...]:
    """Return what must not change: size, colour space and orientation."""
    return libjpeg_header(data), read_header(data).orientation


def code_lengths(counts: Sequence[int]) -> list[int]:
    """Return how many codes have 1 to 16 bits in an optimal code for symbols that occur that often.

    This is Huffman's algorithm as in Annex K.2 of the JPEG standard: with one more symbol, so that no code consists of
    ones only, and without longer codes.
    """
    nodes = [(count, [0]) for count in (*counts, 0)]  # total count, and the depth of each leaf below the node
    heapq.heapify(nodes)
    while len(nodes) > 1:
        (count, depths), (other_count, other_depths) = heapq.heappop(nodes), heapq.heappop(nodes)
        heapq.heappush(nodes, (count + other_count, [depth + 1 for depth in (*depths, *other_depths)]))
    depths = nodes[0][1]
    lengths = [depths.count(bits) for bits in range(max(depths) + 1)]
    for bits in range(len(lengths) - 1, _MAX_CODE_BITS, -1):
        while lengths[bits]:  # a pair becomes one code, a bit shorter; the other takes half of a shorter code's place
            shorter = max(place for place in range(bits - 1) if lengths[place])
            lengths[bits] -= 2
            lengths[bits - 1] += 1
            lengths[shorter + 1] += 2
            lengths[shorter] -= 1
    lengths[max(bits for bits, number in enumerate(lengths) if number)] -= 1  # the additional symbol
    return (lengths + [0] * _MAX_CODE_BITS)[1 : _MAX_CODE_BITS + 1]
