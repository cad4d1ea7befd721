"""Decoders of clips: frames of a video through PyAV, and audio through soundfile. Both packages are optional."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from mpload.errors import ArgumentError, DecodeError, MploadError
from mpload.images.claims import PEAK_PIXEL_BYTES, Claim, unclaimed
from mpload.images.geometry import DrawsGeometry, show
from mpload.images.image import decoded_image
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Pixels
from mpload.samples.audio_file import AudioFile
from mpload.samples.clip_parts import check_begin, check_seconds, drawn_part, seconds_in
from mpload.samples.video_file import VideoFile

__all__ = ["AudioClip", "VideoClip"]


@dataclass(frozen=True, slots=True)
class VideoClip:
    """Show frames of a video file, at equal distances in time. Needs PyAV: `pip install 'mpload[video]'`.

    The part from `start` to `end` is divided into `num_frames` equal spans; each is shown as at its middle. Where the
    part goes beyond the end of the video, the last frame is shown again. A part that begins there is an error. Frames
    are turned upright as the metadata says, by a multiple of 90 degrees.

    The frames are those that a decode of the whole file shows at these times. Each worker reads the whole file, but
    decodes from the key frame before `start` only, where the container can seek to it: most can, MPEG program streams
    (`.mpg`, `.vob`) cannot.

    ```python
    # clips.txt: #columns clip:path start:float end:float
    clip = mpload.VideoClip(16, crop=mpload.RandomResizedCrop(112), start="start", end="end")
    dataset = mpload.MPDataset("clips.txt", decode={"clip": clip}, batch_size=8)
    batch["clip"]  # uint8 [8, 16, 3, 112, 112]
    ```

    Attributes:
        num_frames: The number of frames.
        crop: The crop of each frame, such as `RandomResizedCrop(112)`. All frames of a clip show the same region; None
            shows whole frames.
        start: Where the part begins, in seconds from the video's first frame, or the column of the index that says so.
        end: Where it ends, likewise; None means the end of the video's last frame, even if the audio is longer.
        seconds: Length of a shorter part, which is chosen at random between `start` and `end`; None takes all.
        of: The column of the index that holds the videos; None means the column with the decoder's key.
        limits: Which files and frames are refused.

    Raises:
        ArgumentError: A number is out of range, or PyAV is not installed.
    """

    num_frames: int
    _: KW_ONLY
    crop: Callable[..., Any] | None = None
    start: float | str = 0.0
    end: float | str | None = None
    seconds: float | None = None
    of: str | None = None
    limits: Limits = Limits()
    makes_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        num_frames: object = self.num_frames
        if not isinstance(num_frames, int) or num_frames < 1:
            raise ArgumentError(f"num_frames must be a positive integer, got {num_frames!r}")
        if self.crop is not None and not isinstance(self.crop, DrawsGeometry):
            raise ArgumentError(f"crop must be a decoder such as RandomResizedCrop(112), got {self.crop!r:.80}")
        check_seconds(self.seconds)
        _check_installed("VideoClip", "av")

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """The shape of every result: (num_frames, height, width, 3); None if it varies."""
        shape = getattr(self.crop, "output_shape", None)
        return None if shape is None else (self.num_frames, *shape)

    def __call__(
        self,
        data: ImageBytes,
        rng: np.random.Generator,
        record: Mapping[str, Any],
        out: Pixels | None = None,
        claim: Claim = unclaimed,
    ) -> Pixels:
        """Return the frames, uint8 RGB [num_frames, height, width, 3].

        Args:
            data: The bytes of a video file.
            rng: The generator to draw the part and then the crop from.
            record: The cells of the sample's line, by the name of their column.
            out: The array to write to, uint8 `output_shape`; None creates one.
            claim: Called with a number of bytes before that much memory is allocated.

        Raises:
            DecodeError: `data` is not a video, is damaged or exceeds the limits, or there is no such part.
        """
        import av  # noqa: PLC0415  optional

        self.limits.check_bytes(len(data))
        dice = float(rng.random())
        try:
            with VideoFile(data) as video:
                self.limits.check_size("video", video.height, video.width, len(data))
                claim(PEAK_PIXEL_BYTES * video.height * video.width)
                start, length = drawn_part(self.start, self.end, self.seconds, record, lambda: video.seconds, dice)
                times = start + (np.arange(self.num_frames) + 0.5) * length / self.num_frames
                return self._shown(video.pixels_at(times.tolist(), seconds_in(record, self.start)), rng, out)
        except MploadError:  # some are a ValueError too
            raise
        except (av.FFmpegError, ValueError) as error:
            raise DecodeError(f"not a video that PyAV decodes, or damaged: {error}") from error

    def _shown(self, frames: Iterable[Pixels], rng: np.random.Generator, out: Pixels | None) -> Pixels:
        crop: Any = self.crop
        geometry = None
        for number, frame in enumerate(frames):
            if out is None:
                out = np.empty(self.output_shape or (self.num_frames, *frame.shape), np.uint8)
            if crop is None:
                out[number] = frame
                continue
            geometry = geometry or crop.draw_geometry(frame.shape[0], frame.shape[1], rng)
            show(crop, decoded_image(frame), geometry, out[number])
        assert out is not None
        return out


@dataclass(frozen=True, slots=True)
class AudioClip:
    """Read audio from a file: WAV, FLAC, Ogg or MP3. Needs soundfile: `pip install 'mpload[video]'`.

    A sample is a dict: `samples`, float32 [channels, n] in [-1, 1], and `sample_rate`, in samples a second. In a batch,
    `samples` is one tensor if all clips have the same length, otherwise a list. They are those of a decode of the whole
    file. A file that is cut short is an error where it can be told: WAV, FLAC, Ogg, and MP3 with a Xing header.

    Attributes:
        start: Where the clip begins, in seconds, or the column of the index that says so.
        end: Where it ends, likewise; None means the end of the file.
        seconds: Length of a shorter part, which is chosen at random between `start` and `end`; None takes all.
        of: The column of the index that holds the files; None means the column with the decoder's key.
        limits: Which files are refused.

    Raises:
        ArgumentError: A number is out of range, or soundfile is not installed.
    """

    _: KW_ONLY
    start: float | str = 0.0
    end: float | str | None = None
    seconds: float | None = None
    of: str | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_seconds(self.seconds)
        _check_installed("AudioClip", "soundfile")

    def __call__(self, data: ImageBytes, rng: np.random.Generator, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the samples and their rate.

        Args:
            data: The bytes of an audio file.
            rng: The generator to draw the part from.
            record: The cells of the sample's line, by the name of their column.

        Raises:
            DecodeError: `data` is not audio, is damaged or exceeds the limits, or there is no such part.
        """
        import soundfile  # type: ignore[import-untyped]  # noqa: PLC0415  optional

        self.limits.check_bytes(len(data))
        dice = float(rng.random())
        try:
            with AudioFile(data) as file:
                whole_seconds = file.num_samples / file.rate
                start, length = drawn_part(self.start, self.end, self.seconds, record, lambda: whole_seconds, dice)
                check_begin(seconds_in(record, self.start), whole_seconds)
                samples = file.read(round(start * file.rate), round(length * file.rate))
        except MploadError:  # some are a ValueError too
            raise
        except (soundfile.SoundFileError, RuntimeError, ValueError, MemoryError) as error:
            # Of the wrong length that a damaged header tells, soundfile may make an array.
            raise DecodeError(f"not audio that soundfile decodes, or damaged: {error}") from error
        return {"samples": samples, "sample_rate": file.rate}


def _check_installed(name: str, package: str) -> None:
    if find_spec(package) is None:
        raise ArgumentError(f"{name} needs the package {package}: pip install 'mpload[video]'")
