"""Clips of videos in many containers show what a decode of the whole file shows."""

from fractions import Fraction
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mpload import DecodeError, VideoClip
from tests.support.clips import FPS, NUM_FRAMES, frame_number, video

av = pytest.importorskip("av")
TICKS = np.cumsum(np.random.default_rng(0).choice([20, 33, 250, 900], NUM_FRAMES)).tolist()
CONTAINERS: dict[str, dict[str, Any]] = {
    "MP4": {},
    "MP4 with B-frames": {"max_b_frames": 2},
    "MP4 in fragments": {"max_b_frames": 2, "options": {"movflags": "frag_keyframe+empty_moov"}},
    "MP4 that starts late": {"max_b_frames": 2, "start_seconds": 10.0},
    "MP4 with longer audio": {"audio_seconds": 9.0},
    "MP4 with shorter audio": {"audio_seconds": 1.0},
    "MP4 without a constant rate": {"ticks": TICKS},
    "MP4 of one frame": {"num_frames": 1},
    "MOV of key frames": {"kind": "mov", "codec": "mjpeg"},
    "Matroska with B-frames": {"kind": "matroska", "max_b_frames": 2},
    "Matroska that starts late": {"kind": "matroska", "start_seconds": 10.0},
    "Matroska with longer audio": {"kind": "matroska", "audio_seconds": 9.0},
    "Matroska with shorter audio": {"kind": "matroska", "audio_seconds": 1.0},
    "Matroska without a constant rate": {"kind": "matroska", "ticks": TICKS},
    "Matroska from a pipe": {"kind": "matroska", "options": {"live": "1"}},
    "Matroska of one frame": {"kind": "matroska", "num_frames": 1},
    "MPEG-TS": {"kind": "mpegts", "codec": "mpeg2video"},
    "MPEG-TS with B-frames": {"kind": "mpegts", "codec": "mpeg2video", "max_b_frames": 2},
    "MPEG-TS with long groups": {"kind": "mpegts", "max_b_frames": 2, "gop_size": 40},
    "MPEG-TS that starts late": {"kind": "mpegts", "codec": "mpeg2video", "max_b_frames": 2, "start_seconds": 10.0},
    "MPEG-TS with longer audio": {"kind": "mpegts", "codec": "mpeg2video", "max_b_frames": 2, "audio_seconds": 9.0},
    "MPEG-TS of one frame": {"kind": "mpegts", "codec": "mpeg2video", "num_frames": 1},
    "MPEG-PS with B-frames": {"kind": "mpeg", "codec": "mpeg2video", "max_b_frames": 2},
    "AVI": {"kind": "avi"},
    "AVI with B-frames": {"kind": "avi", "max_b_frames": 2},
    "FLV with longer audio": {"kind": "flv", "codec": "flv", "audio_seconds": 9.0},
    "FLV that starts late": {"kind": "flv", "codec": "flv", "start_seconds": 10.0},
    "NUT that starts late": {"kind": "nut", "max_b_frames": 2, "start_seconds": 10.0},
    "ASF": {"kind": "asf", "codec": "wmv2"},
}


@pytest.fixture(scope="module", params=list(CONTAINERS))
def data(request: pytest.FixtureRequest) -> bytes:
    return video(**CONTAINERS[request.param])


def whole(data: bytes) -> tuple[list[float], float, list[int]]:
    """Decode the whole file: when each frame is shown after the first one, when the last one ends, their numbers."""
    with av.open(BytesIO(data)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.pts is not None]
        end = max((packet.pts + (packet.duration or 0)) * packet.time_base for packet in packets)
    with av.open(BytesIO(data)) as container:
        frames = [*container.decode(video=0)]
    first, last = (frame.pts * frame.time_base for frame in (frames[0], frames[-1]))
    times = [float(frame.pts * frame.time_base - first) for frame in frames]
    end = end if end > last else last + Fraction(1, FPS)  # some containers tell only the rate
    numbers = [frame_number(frame.to_ndarray(format="rgb24")) for frame in frames]
    return times, float(end - first), numbers


def shown(data: bytes, num_frames: int = 1, **part: Any) -> list[int]:
    return [frame_number(frame) for frame in VideoClip(num_frames, **part)(data, np.random.default_rng(0), {})]


def test_each_frame_is_shown_from_its_time_until_that_of_the_next(data: bytes) -> None:
    times, end, numbers = whole(data)
    for number, (time, later) in zip(numbers, pairwise([*times, end]), strict=True):
        middle = (time + later) / 2
        assert shown(data, start=middle - 1e-3, end=middle + 1e-3) == [number]
        if time:  # exactly at its time
            assert shown(data, start=time - 1e-3, end=time + 1e-3) == [number]


def test_a_clip_of_the_whole_video_ends_with_its_last_frame(data: bytes) -> None:
    times, end, numbers = whole(data)
    middles = (np.arange(20) + 0.5) * end / 20
    places = np.searchsorted(times, middles + 1e-6) - 1
    assert shown(data, 20) == [numbers[place] for place in places]


def test_random_clips_are_within_the_video(data: bytes) -> None:
    _, end, _ = whole(data)
    seconds = end / 8
    for seed in range(20):
        begin = seconds * 7 * np.random.default_rng(seed).random()
        clip = VideoClip(2, seconds=seconds)(data, np.random.default_rng(seed), {})
        assert [frame_number(frame) for frame in clip] == shown(data, 2, start=begin, end=begin + seconds)


def test_a_part_that_begins_after_the_last_frame_is_an_error(data: bytes) -> None:
    _, end, _ = whole(data)
    with pytest.raises(DecodeError, match=rf"the part begins at {end + 0.01} seconds, but the file has {end:.3f} sec"):
        shown(data, start=end + 0.01, end=end + 1)


@pytest.mark.parametrize("cut", [0.35, 0.6, 0.95])
def test_a_truncated_transport_stream_shows_the_frames_that_it_has(cut: float) -> None:
    data = video(kind="mpegts", codec="mpeg2video", max_b_frames=2)
    data = data[: int(cut * len(data))]
    times, end, numbers = whole(data)
    assert 10 < len(numbers) < NUM_FRAMES
    for number, (time, later) in zip(numbers, pairwise([*times, end]), strict=True):
        assert shown(data, start=time, end=later) == [number]


def test_a_transport_stream_that_was_cut_at_its_beginning_starts_with_its_first_whole_frame() -> None:
    data = video(kind="mpegts", codec="mpeg2video", max_b_frames=2)
    data = data[len(data) * 3 // 10 // 188 * 188 :]
    times, end, numbers = whole(data)
    assert numbers[0] > 10
    for number, (time, later) in zip(numbers, pairwise([*times, end]), strict=True):
        assert shown(data, start=time, end=later) == [number]


@pytest.mark.parametrize("container", ["MPEG-TS with longer audio", "FLV with longer audio", "Matroska with B-frames"])
def test_damaged_videos_raise_nothing_but_decode_errors(container: str) -> None:
    data = video(**CONTAINERS[container])
    rng = np.random.default_rng(0)
    num_refused = 0
    for number in range(100):
        damaged = bytearray(data)
        for place in rng.integers(len(data) if number % 2 else 2000, size=8):
            damaged[place] = rng.integers(256)
        part: dict[str, Any] = ({}, {"seconds": 0.5}, {"start": 1e17, "end": 2e17})[number % 3]
        try:
            VideoClip(2, **part)(bytes(damaged), rng, {})
        except DecodeError:
            num_refused += 1
    assert 30 < num_refused < 100


def h264(kind: str) -> bytes:
    try:
        return video(kind=kind, codec="libx264", max_b_frames=2)
    except (av.FFmpegError, ValueError) as error:
        pytest.skip(f"this PyAV has no encoder of H.264: {error}")


def test_frames_of_an_avi_that_are_stored_in_another_order_are_shown_in_theirs() -> None:
    """An AVI numbers the frames of H.264 in the order in which they are stored."""
    data = h264("avi")
    assert shown(data, NUM_FRAMES) == list(range(NUM_FRAMES))
    for first in (3, 13, 26, 40):
        assert shown(data, 3, start=first / FPS, end=(first + 3) / FPS) == [first, first + 1, first + 2]


def test_open_groups_of_frames_are_shown_whole() -> None:
    """B-frames that are shown before a key frame need the group before it."""
    for kind in ("mp4", "matroska", "mpegts"):
        data = video(kind=kind, codec="mpeg2video", max_b_frames=3, gop_size=8)
        times, end, numbers = whole(data)
        assert numbers == list(range(NUM_FRAMES))
        for number, (time, later) in zip(numbers, pairwise([*times, end]), strict=True):
            assert shown(data, start=time, end=later) == [number], kind


def test_a_video_that_does_not_tell_the_times_of_its_frames_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"no frames whose times are known\. Store it in a container"):
        shown(h264("h264"))
