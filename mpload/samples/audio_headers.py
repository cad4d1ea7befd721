"""What the headers of audio files tell that soundfile does not: whether a file is cut short, and where pages begin."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mpload.errors import DecodeError
from mpload.images.jpeg_header import ImageBytes
from mpload.units import KIB

__all__ = ["check_whole", "has_frame_count", "last_page_samples", "with_length"]

_SAMPLES_CHUNK = {b"RIFF": b"data", b"RIFX": b"data", b"RF64": b"data", b"FORM": b"SSND"}
_KINDS = {b"FORM": "AIFF"}  # the others are WAV
_UNKNOWN_LENGTH = 0x7FFF_0000  # programs that write to a pipe announce this many bytes or more, or none
_SLACK_BYTES = 64  # some programs count the header in
_MAX_CHUNKS = 1000
_PAGE = b"OggS"
_PAGE_HEADER = struct.Struct("<4sBBqIIIB")  # magic, version, flags, granule, serial, number, checksum, segments
_TAIL_BYTES = 256 * KIB  # four pages or more


def check_whole(data: ImageBytes) -> None:
    """Raise a `DecodeError` if a WAV, AIFF or Ogg file is cut short. soundfile would return what is left of it."""
    if data[:4] == _PAGE:
        end = _end_of_pages(data)
        if end > len(data):
            raise DecodeError(f"Ogg is truncated: its last page ends at byte {end:,} of {len(data):,}")
        return
    begin, length = _samples(data)
    if length < _UNKNOWN_LENGTH and begin + length > len(data) + _SLACK_BYTES:
        kind = _KINDS.get(bytes(data[:4]), "WAV")
        raise DecodeError(f"{kind} is truncated: its samples end at byte {begin + length:,} of {len(data):,}")


def with_length(data: ImageBytes) -> ImageBytes:
    """Return a WAV file whose length is not unwritten: soundfile would find no samples. Others are returned as is."""
    begin, length = _samples(data)
    if data[:4] != b"RIFF" or length or not 0 < begin < len(data):
        return data
    if struct.unpack_from("<I", data, 4)[0] == len(data) - 8:
        return data  # it is empty, and other chunks follow
    return b"".join((data[: begin - 4], b"\xff" * 4, data[begin:]))


def has_frame_count(data: ImageBytes) -> bool:
    """Return whether an MP3 file tells its length. That of other MP3 files is estimated."""
    begin = 0
    if data[:3] == b"ID3" and len(data) > 10:
        begin = 10 + sum((byte & 127) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
    frame = bytes(data[begin : begin + 256])
    return b"Xing" in frame or b"Info" in frame


def last_page_samples(data: ImageBytes) -> int | None:
    """Return how many samples end in the last page of an Ogg file; None if that is unknown."""
    last = None
    for page in _pages_from_the_end(data):
        if page.granule < 0:  # no packet ends there
            continue
        if last is None:
            last = page
        elif page.serial == last.serial:
            return last.granule - page.granule
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """A page of an Ogg file. It ends before byte `end`."""

    end: int
    serial: int
    granule: int


def _samples(data: ImageBytes) -> tuple[int, int]:
    """Return where the samples of a WAV or AIFF file begin, and their length, in bytes; (0, 0) if that is unknown."""
    kind = bytes(data[:4])
    name = _SAMPLES_CHUNK.get(kind)
    if name is None:
        return 0, 0
    begin, length = _chunk(data, name)
    if kind == b"RF64":
        begin_64, length_64 = _chunk(data, b"ds64")
        length = struct.unpack_from("<Q", data, begin_64 + 8)[0] if 16 <= length_64 <= len(data) - begin_64 else 0
    return begin, length


def _chunk(data: ImageBytes, name: bytes) -> tuple[int, int]:
    """Return where a chunk of a RIFF or IFF file begins, and its length, in bytes; (0, 0) if it has none."""
    header = struct.Struct(">4sI" if bytes(data[:4]) in {b"RIFX", b"FORM"} else "<4sI")
    place = 12
    for _ in range(_MAX_CHUNKS):
        if place + header.size > len(data):
            break
        found, length = header.unpack_from(data, place)
        place += header.size
        if found == name:
            return place, length
        place += length + length % 2
    return 0, 0


def _end_of_pages(data: ImageBytes) -> int:
    """Return the byte before which the last page of an Ogg file ends.

    Whether that page says it is the last one does not matter: in a recording that was stopped it does not.
    """
    end = next((page.end for page in _pages_from_the_end(data)), 0)
    rest = bytes(data[end : end + len(_PAGE)])
    return end + _PAGE_HEADER.size if rest and _PAGE.startswith(rest) else end


def _pages_from_the_end(data: ImageBytes) -> Iterator[_Page]:
    """Yield the last pages of an Ogg file, the last one first."""
    tail = bytes(data[-_TAIL_BYTES:])
    skipped = len(data) - len(tail)
    place = len(tail)
    while (place := tail.rfind(_PAGE, 0, place)) >= 0:
        body = place + _PAGE_HEADER.size
        if body > len(tail):
            yield _Page(end=skipped + body, serial=0, granule=-1)
            continue
        _, _, _, granule, serial, _, _, num_segments = _PAGE_HEADER.unpack_from(tail, place)
        segments = tail[body : body + num_segments]
        yield _Page(end=skipped + body + num_segments + sum(segments), serial=serial, granule=granule)
