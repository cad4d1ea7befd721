"""EXIF segments, put into JPEGs by hand: encoders write only one of their many forms."""

__all__ = ["exif", "with_segments"]


def exif(orientation: int, *, little_endian: bool) -> bytes:
    """Return the contents of an EXIF segment that holds an orientation, legal or not, behind another entry."""

    def number(value: int, num_bytes: int) -> bytes:
        return value.to_bytes(num_bytes, "little" if little_endian else "big")

    width = number(0x0100, 2) + number(4, 2) + number(1, 4) + number(640, 4)
    turned = number(0x0112, 2) + number(3, 2) + number(1, 4) + number(orientation, 2) + bytes(2)
    start = b"II" if little_endian else b"MM"
    return b"Exif\0\0" + start + number(42, 2) + number(8, 4) + number(2, 2) + width + turned + bytes(4)


def with_segments(jpeg: bytes, *contents: bytes, claimed_bytes: int | None = None) -> bytes:
    """Return `jpeg` with segments APP1 at its start; `claimed_bytes` replaces the length in their headers."""
    segments = b"".join(
        b"\xff\xe1" + (len(each) + 2 if claimed_bytes is None else claimed_bytes).to_bytes(2, "big") + each
        for each in contents
    )
    return jpeg[:2] + segments + jpeg[2:]
