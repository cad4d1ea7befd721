"""Reads the tags of a TIFF's first image, and finds that parts of the file are missing.

OpenCV does not notice every missing part: it shows a plane of colour that was cut off as 0, and a missing palette as
shades of gray.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.jpeg_header import ImageBytes

__all__ = ["TiffTag", "as_stored", "check_whole", "first_number", "tiff_size", "tiff_tags", "with_number"]

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _CHANNELS, _PLANAR = 256, 257, 258, 259, 262, 277, 284  # tags
_STRIP_OFFSETS, _ORIENTATION, _ROWS_PER_STRIP, _STRIP_BYTES = 273, 274, 278, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_UNCOMPRESSED, _OLD_JPEG = 1, 6  # values of `_COMPRESSION`
_YCBCR = 6  # a value of `_PHOTOMETRIC`
_SEPARATE = 2  # a value of `_PLANAR`: each channel has strips or tiles of its own

_NUMBER_BYTES = {1: 1, 3: 2, 4: 4, 6: 1, 8: 2, 9: 4, 16: 8, 17: 8}  # of the types of whole numbers
_VALUE_BYTES = {**_NUMBER_BYTES, 2: 1, 5: 8, 7: 1, 10: 8, 11: 4, 12: 8, 13: 4}  # of all types
_DECODED_BY = frozenset(  # the tags that say how pixels are stored, except arrays with an entry for each strip or tile
    {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, 266, _CHANNELS, _ROWS_PER_STRIP, _PLANAR, 317, 320}
    | {_ORIENTATION, _TILE_WIDTH, _TILE_HEIGHT, 338, 339, 347, 529, 530, 532}  # 320: a palette; 347: tables of JPEG
)
_MANY = (1 << 32) - 1  # more pixels, channels or rows than any file has
_MANY_BYTES = 1 << 61


class TiffTag(NamedTuple):
    """A tag of a TIFF that holds one or several numbers.

    Attributes:
        value: The first number, or 2^32 - 1 if it is larger; 0 if the tag does not hold whole numbers.
        start: Offset in bytes of the first number in the file.
        end: Offset in bytes of its end; `start` if the tag does not hold whole numbers.
        order: The byte order of the file.
        num_values: How many numbers the tag holds.
        values_end: Offset in bytes of the end of the last number. Damaged files may end before it.
    """

    value: int
    start: int
    end: int
    order: Literal["little", "big"]
    num_values: int
    values_end: int


def tiff_tags(data: ImageBytes) -> dict[int, TiffTag]:
    """Return the tags of the first image by their numbers. Of repeated tags the first one counts, as in libtiff.

    Raises:
        DecodeError: The list of tags is not inside the file.
    """
    order: Literal["little", "big"] = "little" if bytes(data[:2]) == b"II" else "big"

    def number(start: int, num_bytes: int) -> int:
        return int.from_bytes(data[start : start + num_bytes], order)

    directory = number(4, 4)
    end = directory + 2 + 12 * number(directory, 2)
    _check_end("its list of tags", end, data)
    tags: dict[int, TiffTag] = {}
    for entry in range(directory + 2, end, 12):
        tag, kind, count = number(entry, 2), number(entry + 2, 2), number(entry + 4, 4)
        if tag not in tags or not tags[tag].value:
            num_bytes = _VALUE_BYTES.get(kind, 0) * count
            start = entry + 8 if num_bytes <= 4 else number(entry + 8, 4)
            one_end = start + _NUMBER_BYTES.get(kind, 0)
            value = min(number(start, one_end - start), _MANY)
            tags[tag] = TiffTag(value, start, one_end, order, count, start + num_bytes)
    return tags


def tiff_size(tags: dict[int, TiffTag]) -> tuple[int, int]:
    """Return width and height; 0 where a tag is missing."""
    return first_number(tags, _WIDTH, 0), first_number(tags, _HEIGHT, 0)


def first_number(tags: dict[int, TiffTag], tag: int, missing: int) -> int:
    """Return the first number of a tag, or `missing` if there is no such tag."""
    return tags[tag].value if tag in tags else missing


def with_number(data: ImageBytes, tag: TiffTag, value: int) -> ImageBytes:
    """Return a copy of a TIFF in which the first number of a tag is another one.

    It is the file itself if the tag, as in a damaged file, does not hold whole numbers.
    """
    if tag.start == tag.end or tag.end > len(data):
        return data
    copy = bytearray(data)
    copy[tag.start : tag.end] = value.to_bytes(tag.end - tag.start, tag.order)
    return copy


def as_stored(data: ImageBytes, tags: dict[int, TiffTag]) -> tuple[ImageBytes, int]:
    """Return a copy of a TIFF that OpenCV does not turn upright, and the orientation of the TIFF, EXIF's number.

    OpenCV turns files with tiles wrongly. The orientation is 1 if libtiff ignores the tag, as it does with others than
    1 to 8.
    """
    tag = tags.get(_ORIENTATION)
    if tag is None or tag.num_values != 1 or not 1 < tag.value <= 8:
        return data, 1
    return with_number(data, tag, 1), tag.value


def check_whole(data: ImageBytes, tags: dict[int, TiffTag]) -> None:
    """Check that all strips or tiles of the first image lie inside the file, and the tags that say how to decode them.

    Raises:
        DecodeError: A part of the first image is missing.
    """
    for number in _DECODED_BY & tags.keys():
        _check_end(f"its tag {number}", tags[number].values_end, data)
    if first_number(tags, _COMPRESSION, _UNCOMPRESSED) != _OLD_JPEG:  # that has a place of its own for its bytes
        _check_parts(data, tags)


def _check_parts(data: ImageBytes, tags: dict[int, TiffTag]) -> None:
    is_tiled = _TILE_WIDTH in tags
    names = (_TILE_OFFSETS, _STRIP_OFFSETS), (_TILE_BYTES, _STRIP_BYTES)  # libtiff takes each pair for one tag
    places, lengths = (tags.get(pair[not is_tiled]) or tags.get(pair[is_tiled]) for pair in names)
    num_parts = _num_parts(tags)
    if places is None or places.start == places.end or num_parts == 0:
        return  # OpenCV refuses it
    part = "a tile" if is_tiled else "a strip"
    if places.num_values < num_parts:
        raise DecodeError(f"TIFF is damaged: it has {places.num_values:,} of {num_parts:,} {part[2:]}s")
    starts = _numbers(data, places, num_parts)
    stored = np.zeros(num_parts, np.int64)  # 0 means that it is not known
    if lengths is not None and lengths.start < lengths.end:
        known = _numbers(data, lengths, min(lengths.num_values, num_parts))
        stored[: len(known)] = known
    if _is_planar(tags) and (is_tiled or _is_compressed(tags)) and ((starts > 0) & (stored == 0)).any():
        raise DecodeError(f"TIFF is damaged: it does not say how long {part} is")  # OpenCV would show it as 0
    is_stored = (starts > 0) | (stored > 0)  # GDAL leaves out strips of zeros, and says so with two zeros
    ends = np.where(is_stored, starts + _needed_bytes(tags, stored), 0)
    _check_end(part, int(ends.max()), data)


def _num_parts(tags: dict[int, TiffTag]) -> int:
    """Return the number of strips or tiles; 0 if their size is 0."""
    width, height = tiff_size(tags)
    rows = first_number(tags, _ROWS_PER_STRIP, height) or height
    if _TILE_WIDTH in tags:
        columns, rows = first_number(tags, _TILE_WIDTH, 0), first_number(tags, _TILE_HEIGHT, 0)
    else:
        columns = width
    if not rows or not columns:
        return 0
    return -(-width // columns) * -(-height // rows) * (first_number(tags, _CHANNELS, 1) if _is_planar(tags) else 1)


def _is_planar(tags: dict[int, TiffTag]) -> bool:
    return first_number(tags, _PLANAR, 1) == _SEPARATE and first_number(tags, _CHANNELS, 1) > 1


def _needed_bytes(tags: dict[int, TiffTag], stored: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes of each strip or tile libtiff reads, by the lengths in the file; 0 if that is not known.

    Some writers leave out lengths, or give too large ones: where pixels are not compressed, their number counts.
    """
    if _is_compressed(tags) or first_number(tags, _PHOTOMETRIC, 1) == _YCBCR:  # whose colours may have fewer pixels
        return stored
    expected = _rows(tags, len(stored)) * min(_row_bytes(tags), _MANY_BYTES >> 32)
    if _is_planar(tags):
        return np.maximum(stored, expected) if _TILE_WIDTH in tags else expected
    needed: NDArray[np.int64] = np.where(stored > 0, np.minimum(stored, expected), expected)
    return needed


def _is_compressed(tags: dict[int, TiffTag]) -> bool:
    return first_number(tags, _COMPRESSION, _UNCOMPRESSED) != _UNCOMPRESSED


def _rows(tags: dict[int, TiffTag], num_parts: int) -> NDArray[np.int64]:
    """Return the number of rows of each strip or tile. The last strip of a plane may have fewer than the others."""
    if _TILE_WIDTH in tags:
        return np.full(num_parts, first_number(tags, _TILE_HEIGHT, 0), np.int64)
    height = first_number(tags, _HEIGHT, 0)
    rows = min(first_number(tags, _ROWS_PER_STRIP, height) or height, height)
    tops = np.arange(num_parts) % -(-height // rows) * rows
    return np.minimum(height - tops, rows)


def _row_bytes(tags: dict[int, TiffTag]) -> int:
    """Return the number of bytes of a row of a strip or tile that is not compressed."""
    width = first_number(tags, _TILE_WIDTH, first_number(tags, _WIDTH, 0))
    num_channels = 1 if _is_planar(tags) else first_number(tags, _CHANNELS, 1)
    return -(-width * num_channels * first_number(tags, _BITS, 1) // 8)


def _numbers(data: ImageBytes, tag: TiffTag, num: int) -> NDArray[np.int64]:
    """Return the first `num` numbers of a tag, none larger than `_MANY_BYTES`."""
    num_bytes = tag.end - tag.start
    _check_end("its list of strips", tag.start + num * num_bytes, data)
    kind = f"{'<' if tag.order == 'little' else '>'}u{num_bytes}"
    numbers = np.frombuffer(data, kind, num, tag.start).astype(np.uint64)
    return np.minimum(numbers, np.uint64(_MANY_BYTES)).astype(np.int64)


def _check_end(part: str, end: int, data: ImageBytes) -> None:
    if end > len(data):
        raise DecodeError(f"TIFF is damaged or truncated: {part} ends at byte {end:,} of {len(data):,}")
