"""Decoders of clips: frames of a video through PyAV, and audio through soundfile. Both packages are optional."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from mpload.errors import ArgumentError, DecodeError, MploadError
from mpload.images.claims import PEAK_PIXEL_BYTES, Claim, unclaimed
from mpload.images.geometry import DrawsGeometry, show
from mpload.images.image import decoded_image
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Pixels

__all__ = ["AudioClip", "VideoClip"]


@dataclass(frozen=True, slots=True)
class VideoClip:
    """Show frames of a video file, at equal distances in time. Needs PyAV: `pip install 'mpload[video]'`.

    The part from `start` to `end` is divided into `num_frames` equal spans; each is shown as at its middle. Where the
    part goes beyond the end of the video, the last frame is shown again. A part that begins there is an error. Each
    worker reads the whole file but decodes from the key frame before `start` only. Frames are turned upright as the
    metadata says, by a multiple of 90 degrees.

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
        end: Where it ends, likewise; None means the end of the video.
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
        _check_seconds(self.seconds)
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
            version = int(av.__version__.partition(".")[0])
            with av.open(BytesIO(data), **_metadata_options(version)) as container:
                if not container.streams.video:
                    raise DecodeError("the file has no video")
                stream: Any = container.streams.video[0]
                if stream.codec_context is None:
                    raise DecodeError("the video has a codec that this PyAV cannot decode")
                stream.codec_context.thread_count = 1  # other cores have workers of their own
                height, width = stream.codec_context.height, stream.codec_context.width
                self.limits.check_size("video", height, width, len(data))
                claim(PEAK_PIXEL_BYTES * height * width)
                start, length = _part(self.start, self.end, self.seconds, record, _seconds_of(container, stream), dice)
                begin = _seconds_in(record, self.start)
                times = start + (np.arange(self.num_frames) + 0.5) * length / self.num_frames
                frames = _frames_at(container, stream, begin, times.tolist(), partial(_pixels, _to_rgb(version)))
                return self._shown(frames, rng, out)
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
    `samples` is one tensor if all clips have the same length, otherwise a list.

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
        _check_seconds(self.seconds)
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
            with soundfile.SoundFile(BytesIO(data)) as file:
                rate = file.samplerate
                start, length = _part(self.start, self.end, self.seconds, record, file.frames / rate, dice)
                _check_begin(_seconds_in(record, self.start), file.frames / rate)
                file.seek(min(round(start * rate), file.frames))
                samples = file.read(round(length * rate), dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise DecodeError(f"not audio that soundfile decodes, or damaged: {error}") from error
        return {"samples": np.array(samples.T, order="C"), "sample_rate": rate}


def _seconds_of(container: Any, stream: Any) -> float:
    """Return the length of a video; 0 if the file does not tell."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / 1e6


def _frames_at(
    container: Any, stream: Any, begin: float, times: Sequence[float], pixels_of: Callable[[Any], Pixels]
) -> Iterator[Pixels]:
    """Yield the pixels of the frame shown at each time, in seconds from the first; before that, those of the first.

    After the end of the video, they are those of the last frame, unless the part begins there: that is an error.
    """
    first = float((stream.start_time or 0) * stream.time_base)
    place, shown = 0, None
    for frame in _frames_from(container, stream, first, times[0]):
        num_before = sum(first + time < frame.time for time in times[place:])  # times ascend
        if shown is not None and num_before:
            yield from [pixels_of(shown)] * num_before
            place += num_before
        if place == len(times):
            return
        shown = frame
    if shown is None:
        raise DecodeError("the video has no frame in that part")
    if not place:
        _check_begin(begin, max(_end_of(shown, stream) - first, _seconds_of(container, stream)))
    yield from [pixels_of(shown)] * (len(times) - place)


def _end_of(frame: Any, stream: Any) -> float:
    """Return until when the last frame of a video is shown, in seconds; some files tell only the rate of frames."""
    if getattr(frame, "duration", 0) and frame.time_base is not None:
        return float(frame.time + frame.duration * frame.time_base)
    return float(frame.time + (1 / stream.average_rate if stream.average_rate else 0))


def _frames_from(container: Any, stream: Any, first: float, time: float) -> Iterator[Any]:
    """Return the frames from one at or before the time on."""
    container.seek(int((first + time) / stream.time_base), stream=stream)  # to the key frame before it
    frames = (frame for frame in container.decode(stream) if frame.time is not None)
    start = next(frames, None)
    if start is not None and start.time <= first + time:
        return chain([start], frames)
    container.seek(int(first / stream.time_base), stream=stream)  # an MPEG-TS is searched roughly, and may go too far
    return (frame for frame in container.decode(stream) if frame.time is not None)


def _pixels(to_rgb: Callable[[Any], Any], frame: Any) -> Pixels:
    """Return the pixels of a frame, upright."""
    pixels: Pixels = to_rgb(frame).to_ndarray()
    quarters = round(frame.rotation / 90)  # counterclockwise
    return np.ascontiguousarray(np.rot90(pixels, quarters)) if quarters else pixels


def _metadata_options(version: int) -> dict[str, Any]:
    """Return what lets PyAV pass over metadata that are not UTF-8. From version 19 on, it always does."""
    return {"metadata_errors": "replace"} if version < 19 else {}


def _to_rgb(version: int) -> Callable[[Any], Any]:
    """Return a function that converts frames to RGB, in this thread.

    From version 17 on, PyAV would start a thread for each core, and from 19 on keep them: a process that is forked
    later would wait for them for ever. So this does not use what PyAV keeps.
    """
    from av.video.reformatter import VideoReformatter  # noqa: PLC0415  optional

    options: Any = {"format": "rgb24"} | ({"threads": 1} if version >= 17 else {})
    return partial(VideoReformatter().reformat, **options)


def _part(
    start: float | str,
    end: float | str | None,
    seconds: float | None,
    record: Mapping[str, Any],
    whole_seconds: float,
    dice: float,
) -> tuple[float, float]:
    """Return where the part of a clip begins, and its length, in seconds."""
    first = _seconds_in(record, start)
    last = whole_seconds if end is None else _seconds_in(record, end)
    if not 0 <= first < last < math.inf:
        raise DecodeError(f"there is nothing from {first} to {last} seconds: the file has {whole_seconds:.3f} seconds")
    if seconds is None:
        return first, last - first
    length = min(seconds, last - first)
    return first + dice * (last - first - length), length


def _check_begin(begin: float, whole_seconds: float) -> None:
    if begin >= whole_seconds:
        raise DecodeError(
            f"the part begins at {begin} seconds, but the file has {whole_seconds:.3f} seconds. Correct the start, or "
            "remove the sample from the index"
        )


def _seconds_in(record: Mapping[str, Any], given: float | str) -> float:
    if not isinstance(given, str):
        return given
    if not isinstance(record.get(given), int | float):
        raise ArgumentError(
            f"the column {given!r} must hold seconds, but a record has {dict(record)!r:.200}. Declare {given}:float in "
            "#columns"
        )
    return float(record[given])


def _check_seconds(seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise ArgumentError(f"seconds must be a positive number, got {seconds!r}")


def _check_installed(name: str, package: str) -> None:
    if find_spec(package) is None:
        raise ArgumentError(f"{name} needs the package {package}: pip install 'mpload[video]'")
