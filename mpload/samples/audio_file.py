"""An audio file that soundfile has opened: parts of it, the same as in a decode of the whole file. It is optional."""

from io import BytesIO
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.jpeg_header import ImageBytes
from mpload.samples.audio_headers import check_whole, has_frame_count, last_page_samples, with_length

__all__ = ["AudioFile"]

_MP3_FRAME_SAMPLES = 1152
_MP3_LEAD_SAMPLES = 32 * _MP3_FRAME_SAMPLES  # a frame may need bits of many small ones before it


class AudioFile:
    """Audio that is open.

    Attributes:
        rate: Samples a second.
        num_samples: The samples of each channel. An MP3 file without a header tells it roughly.
    """

    def __init__(self, data: ImageBytes) -> None:
        """Open the audio.

        Args:
            data: The bytes of the file.

        Raises:
            DecodeError: The file is cut short.
            SoundFileError: It is damaged. All methods may raise this, or a RuntimeError.
        """
        import soundfile  # type: ignore[import-untyped]  # noqa: PLC0415  optional

        check_whole(data)
        self._data = data
        self._file: Any = soundfile.SoundFile(BytesIO(with_length(data)))
        self.rate: int = self._file.samplerate
        self.num_samples: int = self._file.frames

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, first: int, num_samples: int) -> NDArray[np.float32]:
        """Return samples, float32 [channels, n]: fewer where the file ends before.

        Args:
            first: The first of them.
            num_samples: How many.

        Raises:
            DecodeError: The file has fewer samples than it says.
        """
        first = min(first, self.num_samples)
        num_before = first - self._sure_place(first)
        self._file.seek(first - num_before)
        # In one piece: after each read, soundfile seeks to where it is.
        found = self._file.read(num_before + num_samples, dtype="float32", always_2d=True)
        samples = found[num_before:]
        missing = min(num_samples, self.num_samples - first) - len(samples)
        if missing and (not len(samples) or (missing > 2 * _MP3_FRAME_SAMPLES and has_frame_count(self._data))):
            seconds = (first - num_before + len(found)) / self.rate
            raise DecodeError(
                f"the audio is damaged or truncated: it ends after {seconds:.3f} seconds, but should have "
                f"{self.num_samples / self.rate:.3f}"
            )
        return np.array(samples.T, order="C")

    def _sure_place(self, first: int) -> int:
        """Return a place at or before a sample that can be sought, from which reading on gives the right samples."""
        if self._file.format == "MP3":
            return max(0, first - _MP3_LEAD_SAMPLES)
        if self._file.subtype == "OPUS":
            return max(0, first - self.rate)  # it needs a part of a second to settle
        if self._file.subtype == "VORBIS":  # in the last page, whose last samples may be cut off, seeks go wrong
            in_last_page = last_page_samples(self._data)
            return 0 if in_last_page is None else max(0, min(first, self.num_samples - in_last_page - 1))
        return first
