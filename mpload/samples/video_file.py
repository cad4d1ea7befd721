"""A video file that PyAV has opened: where it ends, and the frames that are shown at given times. PyAV is optional.

Containers are not taken at their word. Many tell the length of the whole file, with audio that goes on for longer; some
estimate it. Many seek to a place after the time that was asked for, or to a frame that is not a key frame. So the end
is read from the last packets, and a seek counts only if the frame it leads to is a key frame that is not too late.
Otherwise the file is decoded from its beginning.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from io import BytesIO
from itertools import chain, dropwhile
from typing import Any, Self

import numpy as np

from mpload.errors import DecodeError
from mpload.images.jpeg_header import ImageBytes
from mpload.images.resize import Pixels
from mpload.samples.clip_parts import check_begin

__all__ = ["VideoFile"]

_AVI = "avi"  # numbers the frames in the order in which they are stored, which is not that in which they are shown
_MPEG_PS = "mpeg"  # tells the times of few frames; those between are guessed, after a seek otherwise than before it
_LAST_TIME = (1 << 62) - 1  # in the units of a stream
_NO_FRAME: tuple[float, Any] = (math.inf, None)
_SAME_SECONDS = 1e-6  # times that differ by less are the same: they are sums of floats


class VideoFile:
    """A video that is open. All times are in seconds from its first frame.

    Attributes:
        height: Of its frames, before they are turned upright.
        width: Likewise.
    """

    def __init__(self, data: ImageBytes) -> None:
        """Open the video.

        Args:
            data: The bytes of the file.

        Raises:
            DecodeError: There is no video in it that PyAV can decode.
            FFmpegError: It is damaged. All methods may raise this.
        """
        import av  # noqa: PLC0415  optional

        self._av = av
        self._version = int(av.__version__.partition(".")[0])
        self._data = data
        self._open()
        context = self._stream.codec_context
        self.height, self.width = context.height, context.width

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()

    @cached_property
    def seconds(self) -> float:
        """When the last frame ends. Later audio does not count. Nothing is decoded for it but the first frame."""
        if self._format == _AVI and self._stream.duration:
            return float(self._stream.duration * self._stream.time_base)
        for place in self._places(self._first + (self._container.duration or 0) / 1e6):
            last = dropwhile(lambda packet: not packet.is_keyframe, self._packets_from(place))
            end = self._end_of(last)  # the packets before that key frame are shown before it too
            if end is not None:
                return end - self._first
        self._reopen()
        return (self._end_of(self._packets()) or self._first) - self._first

    def pixels_at(self, times: Sequence[float], begin: float) -> Iterator[Pixels]:
        """Yield the frame shown at each time, upright, uint8 RGB [height, width, 3].

        After the end of the video that is the last frame, unless the part begins there.

        Args:
            times: The times, ascending, from 0 on.
            begin: When the part begins that they are in.

        Raises:
            DecodeError: The part begins after the end, or the file does not tell the times of frames.
        """
        to_rgb = self._to_rgb()
        place, shown = 0, None
        for shown_from, frame in self._frames_from(times[0]):
            num_before = sum(time + _SAME_SECONDS < shown_from - self._first for time in times[place:])
            if shown is not None and num_before:
                yield from [_pixels(to_rgb, shown)] * num_before
                place += num_before
            if place == len(times):
                return
            shown = frame
        if not place:
            check_begin(begin, self.seconds)
        yield from [_pixels(to_rgb, shown)] * (len(times) - place)

    @cached_property
    def _first(self) -> float:
        """The time of the first frame, as the file counts it. It is not always that of the first packet."""
        for time, _ in self._timed(self._decoded()):
            return time
        raise DecodeError(
            "the video has no frames whose times are known. Store it in a container that has them, such as MP4"
        )

    def _frames_from(self, time: float) -> Iterator[tuple[float, Any]]:
        """Return the frames, with their times, from one at or before the time on: a key frame, or else the first."""
        latest = self._first + time + _SAME_SECONDS
        for place in self._places(latest):
            frames = self._timed(self._frames_after_seek(place, latest))
            with suppress(self._av.FFmpegError):  # a decode from the beginning may do without what is damaged there
                start, frame = next(frames, _NO_FRAME)
                if start <= latest and frame.key_frame:
                    return chain([(start, frame)], frames)
        self._reopen()
        return self._timed(self._decoded())

    def _places(self, time: float) -> Iterator[float]:
        """Yield where to seek for a time: there, and then 1, 3, 7 seconds earlier and so on."""
        back = 0.0
        while time - back > self._first and self._format != _MPEG_PS:
            yield time - back
            back = 2 * back + 1

    def _frames_after_seek(self, place: float, latest: float) -> Iterator[Any]:
        """Yield the frames from the first key frame after a seek on; none if that is too late."""
        has_begun = False
        for packet in self._packets_from(place):
            has_begun = has_begun or packet.is_keyframe
            if has_begun:
                yield from packet.decode()
            elif packet.dts is not None and packet.dts * packet.time_base > latest:
                return  # a frame is not shown before it is decoded

    def _packets_from(self, place: float) -> Iterator[Any]:
        """Seek and return the packets from there on; none if the container cannot seek there."""
        with suppress(self._av.FFmpegError):
            self._container.seek(min(int(place / self._stream.time_base), _LAST_TIME), stream=self._stream)
            return self._packets()
        return iter(())

    def _packets(self) -> Iterator[Any]:
        """Yield the packets that follow."""
        with suppress(
            IndexError
        ):  # PyAV raises it at the end if there were streams that it had not seen when it opened
            yield from self._container.demux(self._stream)

    def _decoded(self) -> Iterator[Any]:
        """Yield the frames that follow."""
        for packet in self._packets():
            yield from packet.decode()

    def _timed(self, frames: Iterable[Any]) -> Iterator[tuple[float, Any]]:
        """Yield frames with the time from which each is shown, as the file counts it; not those that have none."""
        if self._format != _AVI:
            yield from ((frame.time, frame) for frame in frames if frame.time is not None)
            return
        number = None
        for frame in frames:
            if frame.dts is not None:
                number = frame.dts
            elif number is not None:
                number += 1  # the last frames follow when all packets have been read
            if number is not None:
                yield float(number * self._stream.time_base), frame

    def _end_of(self, packets: Iterable[Any]) -> float | None:
        """Return when the last frame of these packets ends; None if there is none."""
        rate = self._stream.average_rate
        ends = (
            float((packet.pts if packet.pts is not None else packet.dts) * packet.time_base)
            + float(packet.duration * packet.time_base if packet.duration else 1 / rate if rate else 0)
            for packet in packets
            if packet.dts is not None or packet.pts is not None
            if not packet.is_discard
        )
        return max(ends, default=None)

    def _open(self) -> None:
        # From version 19 on, PyAV always passes over metadata that are not UTF-8.
        options: dict[str, Any] = {"metadata_errors": "replace"} if self._version < 19 else {}
        self._container: Any = self._av.open(BytesIO(self._data), **options)
        try:
            if not self._container.streams.video:
                raise DecodeError("the file has no video")
            self._stream: Any = self._container.streams.video[0]
            self._format = self._container.format.name
            if self._stream.codec_context is None:
                raise DecodeError("the video has a codec that this PyAV cannot decode")
        except BaseException:
            self._container.close()
            raise
        self._stream.codec_context.thread_count = 1  # other cores have workers of their own

    def _reopen(self) -> None:
        """Go back to the beginning of the file. A seek does not lead there in every container."""
        self._container.close()
        self._open()

    def _to_rgb(self) -> Callable[[Any], Any]:
        """Return a function that converts frames to RGB, in this thread.

        From version 17 on, PyAV would start a thread for each core, and from 19 on keep them: a process that is forked
        later would wait for them for ever. So this does not use what PyAV keeps.
        """
        from av.video.reformatter import VideoReformatter  # noqa: PLC0415  optional

        options: Any = {"format": "rgb24"} | ({"threads": 1} if self._version >= 17 else {})
        return partial(VideoReformatter().reformat, **options)


def _pixels(to_rgb: Callable[[Any], Any], frame: Any) -> Pixels:
    """Return the pixels of a frame, upright."""
    pixels: Pixels = to_rgb(frame).to_ndarray()
    quarters = round(frame.rotation / 90)  # counterclockwise
    return np.ascontiguousarray(np.rot90(pixels, quarters)) if quarters else pixels
