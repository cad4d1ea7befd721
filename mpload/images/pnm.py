"""Decodes PGM and PPM, the binary formats of Netpbm (P5 and P6): a short header, then the values of all pixels.

NumPy reads the values: OpenCV does not scale them by their maximum, and refuses or misreads some comments.
"""

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.claims import PEAK_PIXEL_BYTES, Claim
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.opencv import cv2
from mpload.images.resize import Pixels

__all__ = ["PnmHeader", "pgm_values", "pnm_format", "pnm_pixels", "read_pnm_header"]

_NAMES: Final = {b"P5": "PGM", b"P6": "PPM"}
_SPACES: Final = b" \t\n\v\f\r"
_MAX_HEADER_BYTES = 1 << 16  # comments can be longer only on purpose
_MAX_VALUE = 65_535
_STRIP_VALUES = 1 << 18  # values that are scaled at a time, since the temporary arrays are larger than the result

# White space, then more of it and comments. A comment right behind a number is refused: to some readers it ends the
# number, to Netpbm's specification it does not. The patterns are possessive, so that a long header is read once.
_GAP = rb"[ \t\n\v\f\r](?:[ \t\n\v\f\r]|#[^\r\n]*+[\r\n])*+"
_HEADER = re.compile(rb"P[56]" + (_GAP + rb"(\d{1,10})") * 3 + rb"[ \t\n\v\f\r]")


class PnmHeader(NamedTuple):
    """The header of a PGM or PPM file.

    Attributes:
        kind: "PGM" or "PPM".
        width: Width in pixels.
        height: Height in pixels.
        max_value: The value of full brightness, 1 to 65,535. Above 255, values have two bytes, the upper one first.
        num_bytes: Length of the header: the offset of the first pixel.
    """

    kind: str
    width: int
    height: int
    max_value: int
    num_bytes: int

    @property
    def num_values(self) -> int:
        """Number of values of all pixels."""
        return self.height * self.width * (1 if self.kind == "PGM" else 3)


def pnm_format(data: ImageBytes) -> str:
    """Return "PGM" or "PPM" if bytes begin like such a file, otherwise an empty string."""
    start = bytes(data[:3])
    return _NAMES.get(start[:2], "") if len(start) == 3 and start[2] in _SPACES else ""


def read_pnm_header(data: ImageBytes) -> PnmHeader:
    """Read the header of a PGM or PPM file.

    Args:
        data: The file, or its first bytes.

    Raises:
        DecodeError: The header is damaged or truncated.
    """
    kind = pnm_format(data) or "PNM"
    found = _HEADER.match(data, 0, _MAX_HEADER_BYTES)
    if found is None:
        raise DecodeError(
            f"{kind} header is damaged or truncated: three numbers, width, height and the maximum value, must follow "
            f"its first two bytes; it starts with {bytes(data[:24])!r}"
        )
    width, height, max_value = map(int, found.groups())
    if not 0 < max_value <= _MAX_VALUE:
        raise DecodeError(f"{kind} header is damaged: the maximum value must be in [1, {_MAX_VALUE}], got {max_value}")
    return PnmHeader(kind, width, height, max_value, found.end())


def pnm_pixels(data: ImageBytes, *, limits: Limits, claim: Claim) -> Pixels:
    """Return the pixels of a PGM or PPM file, uint8 RGB [height, width, 3].

    Values are scaled from the maximum value to 255 and rounded, as Pillow does for PPM.

    Args:
        data: The bytes of the file. Those behind the first image are ignored.
        limits: Which files are refused.
        claim: Called with a number of bytes before that much memory is allocated.

    Raises:
        DecodeError: The file is damaged or truncated, or exceeds `limits`.
    """
    header, stored = _stored(data, limits, claim)
    values = _scaled(stored, header.max_value).reshape(header.height, header.width, -1)
    return values if header.kind == "PPM" else cv2.cvtColor(values, cv2.COLOR_GRAY2RGB)  # type: ignore[return-value]


def pgm_values(data: ImageBytes, *, limits: Limits, claim: Claim) -> NDArray[np.uint8 | np.uint16]:
    """Return the values that a PGM file stores, uint8 or uint16 [height, width]. They are not scaled.

    Arguments and errors are those of `pnm_pixels`.
    """
    header, stored = _stored(data, limits, claim)
    return stored.astype(stored.dtype.newbyteorder("=")).reshape(header.height, header.width)


def _stored(data: ImageBytes, limits: Limits, claim: Claim) -> tuple[PnmHeader, NDArray[np.uint8 | np.uint16]]:
    """Return the header, and a view of the values, in the order of bytes of the file."""
    header = read_pnm_header(data)
    limits.check_size(header.kind, header.height, header.width, len(data))
    value_bytes = 1 if header.max_value < 256 else 2
    end = header.num_bytes + value_bytes * header.num_values
    if end > len(data):
        raise DecodeError(f"{header.kind} is truncated: its pixels end at byte {end:,} of {len(data):,}")
    claim(PEAK_PIXEL_BYTES * header.height * header.width)
    return header, np.frombuffer(data, f">u{value_bytes}", header.num_values, header.num_bytes)


def _scaled(stored: NDArray[np.unsignedinteger], max_value: int) -> NDArray[np.uint8]:
    """Return values as a new array in which `max_value` has become 255. Values above it are 255, too."""
    if max_value == 255:
        return stored.astype(np.uint8)
    table = np.minimum(np.rint(np.arange(256 if max_value < 256 else 65_536) / max_value * 255), 255).astype(np.uint8)
    scaled = np.empty(len(stored), np.uint8)
    for start in range(0, len(stored), _STRIP_VALUES):
        scaled[start : start + _STRIP_VALUES] = table[stored[start : start + _STRIP_VALUES]]
    return scaled
