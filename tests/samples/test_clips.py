"""Parts of videos and audio files, from real files."""

import pickle
import struct
import sys
from typing import Any

import numpy as np
import pytest

from mpload import ArgumentError, AudioClip, DecodeError, Limits, RandomResizedCrop, ResizeCenterCrop, VideoClip
from tests.support.clips import FPS, NUM_FRAMES, RATE, audio, frame_number, video

pytest.importorskip("av")
pytest.importorskip("soundfile")
VIDEO, AUDIO = video(), audio()
RAW = video(kind="m4v")  # whose header does not tell the length


def numbers(clip: VideoClip, *, data: bytes = VIDEO, seed: int = 0, record: Any = None) -> list[int]:
    return [frame_number(frame) for frame in clip(data, np.random.default_rng(seed), record or {})]


def test_frames_are_shown_as_at_the_middles_of_equal_spans() -> None:
    assert numbers(VideoClip(NUM_FRAMES)) == list(range(NUM_FRAMES))
    assert numbers(VideoClip(5)) == [5, 15, 25, 35, 45]
    assert numbers(VideoClip(2 * NUM_FRAMES)) == [number // 2 for number in range(2 * NUM_FRAMES)]


@pytest.mark.parametrize(("codec", "kind"), [("mpeg4", "matroska"), ("mpeg2video", "mpegts"), ("ffv1", "avi")])
def test_other_codecs_and_containers_show_the_same_frames(codec: str, kind: str) -> None:
    data = video(codec=codec, kind=kind)
    assert numbers(VideoClip(4, start=1.0, end=3.0), data=data) == [12, 17, 22, 27]


MATRICES = {"clockwise": (0, 1, -1, 0), "half": (-1, 0, 0, -1), "counterclockwise": (0, -1, 1, 0)}


@pytest.mark.parametrize(("turn", "quarters"), [("clockwise", -1), ("half", 2), ("counterclockwise", 1)])
def test_frames_are_turned_upright_as_the_metadata_says(turn: str, quarters: int) -> None:
    data = turned(VIDEO, MATRICES[turn])
    (expected,), (found,) = (VideoClip(1)(each, np.random.default_rng(0), {}) for each in (VIDEO, data))
    np.testing.assert_array_equal(found, np.rot90(expected, quarters))
    cropped = VideoClip(2, crop=ResizeCenterCrop((40, 20)))(data, np.random.default_rng(0), {})
    assert cropped.shape == (2, 40, 20, 3)


def turned(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """Return an MP4 with this matrix, which turns x and y, in the header of its track."""
    a, b, c, d = matrix
    upright = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    place = data.index(upright, data.index(b"tkhd"))
    return (
        data[:place] + struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30) + data[place + 36 :]
    )


def test_the_part_may_be_given_or_come_from_the_record() -> None:
    whole = list(range(NUM_FRAMES))
    for first, last in ((0, 50), (7, 9), (30, 49), (49, 50)):
        clip = VideoClip(last - first, start="from", end="to")
        assert numbers(clip, record={"from": first / FPS, "to": last / FPS}) == whole[first:last]
        assert numbers(VideoClip(last - first, start=first / FPS, end=last / FPS)) == whole[first:last]


def test_a_shorter_part_is_chosen_at_random() -> None:
    clip = VideoClip(10, start=1.0, end=4.0, seconds=1.0)
    found = [numbers(clip, seed=seed) for seed in range(20)]
    assert found[3] == numbers(clip, seed=3)
    assert all(each[-1] - each[0] in {8, 9, 10} for each in found)
    assert min(each[0] for each in found) >= 10
    assert max(each[-1] for each in found) <= 40
    assert len({each[0] for each in found}) > 5


def test_all_frames_show_the_same_crop() -> None:
    clip = VideoClip(6, crop=RandomResizedCrop((20, 24)))
    assert clip.output_shape == (6, 20, 24, 3)
    out = np.zeros((6, 20, 24, 3), np.uint8)
    for seed in range(5):
        made = clip(VIDEO, np.random.default_rng(seed), {}, out)
        assert made is out
        rng = np.random.default_rng(seed)
        rng.random()
        geometry = RandomResizedCrop((20, 24)).draw_geometry(48, 64, rng)
        edges = [int(frame[:, :, 0].astype(int).max(axis=0).argmin()) for frame in made[3:]]
        assert len(set(edges)) == 1, geometry
    middle = VideoClip(NUM_FRAMES, crop=ResizeCenterCrop(32, resize=48))(VIDEO, np.random.default_rng(0), {})
    assert [frame_number(frame[:, :28]) for frame in middle] == list(range(NUM_FRAMES))


def test_audio_is_read_from_the_part() -> None:
    made = AudioClip(start="from", end=1.5)(AUDIO, np.random.default_rng(0), {"from": 0.5})
    assert made["sample_rate"] == RATE
    assert made["samples"].shape == (2, RATE)
    assert made["samples"].dtype == np.float32
    np.testing.assert_allclose(made["samples"][0], np.arange(RATE // 2, 3 * RATE // 2) / 32768, atol=1e-4)
    np.testing.assert_allclose(made["samples"][1] - made["samples"][0], 0.25, atol=1e-4)
    short = [AudioClip(seconds=0.25)(AUDIO, np.random.default_rng(seed), {})["samples"] for seed in (1, 1, 2)]
    assert short[0].shape == (2, RATE // 4)
    np.testing.assert_array_equal(short[0], short[1])
    assert not np.array_equal(short[0], short[2])


@pytest.mark.parametrize("decode", [VideoClip(4), AudioClip(), VideoClip(4, crop=RandomResizedCrop(8), seconds=1.0)])
def test_decoders_of_clips_are_values(decode: Any) -> None:
    assert pickle.loads(pickle.dumps(decode)) == decode
    assert hash(decode) == hash(pickle.loads(pickle.dumps(decode)))


@pytest.mark.parametrize(
    ("decode", "data", "message"),
    [
        (VideoClip(4), b"", "not a video"),
        (VideoClip(4), b"no video" * 100, "not a video"),
        (VideoClip(4), AUDIO, "the file has no video"),
        (VideoClip(4, limits=Limits(max_pixels=100)), VIDEO, "exceed max_pixels=100"),
        (VideoClip(4, limits=Limits(max_bytes=100)), VIDEO, "exceed max_bytes=100"),
        (VideoClip(4, start=9.0), VIDEO, r"nothing from 9.0 to 5.0 seconds: the file has 5.000 seconds"),
        (VideoClip(4, start=3.0, end=1.0), VIDEO, "nothing from 3.0 to 1.0 seconds"),
        (VideoClip(4, start=9.0, end=10.0), VIDEO, "the part begins at 9.0 seconds, but the file has 5.000 seconds"),
        (VideoClip(4, start=5.0, end=5.1), VIDEO, "the part begins at 5.0 seconds, but the file has 5.000 seconds"),
        (VideoClip(1, start="a", end=99), RAW, "the part begins at 9.0 seconds, but the file has 5.000 seconds"),
        (AudioClip(start=9.0, end=10.0), AUDIO, "the part begins at 9.0 seconds, but the file has 2.000 seconds"),
        (AudioClip(), b"no audio", "not audio"),
        (AudioClip(start=5.0), AUDIO, "nothing from 5.0 to 2.0 seconds"),
        (AudioClip(limits=Limits(max_bytes=100)), AUDIO, "exceed max_bytes=100"),
    ],
)
def test_files_and_parts_that_cannot_be_shown_are_decode_errors(decode: Any, data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(data, np.random.default_rng(0), {"a": 9})


@pytest.mark.parametrize("data", [VIDEO, RAW])
def test_a_part_that_goes_beyond_the_end_repeats_the_last_frame(data: bytes) -> None:
    last = NUM_FRAMES - 1
    assert numbers(VideoClip(4, start=4.8, end=5.2), data=data) == [last - 1, last, last, last]
    assert numbers(VideoClip(3, start=4.9, end=9.0), data=data) == [last] * 3


def test_damaged_files_raise_nothing_but_decode_errors() -> None:
    rng = np.random.default_rng(0)
    num_refused = 0
    for number in range(300):
        data = bytearray((VIDEO, AUDIO)[number % 2])
        for place in rng.integers(len(data) if number % 4 < 2 else 200, size=8):
            data[place] = rng.integers(256)
        decode: Any = (VideoClip(3), AudioClip())[number % 2]
        try:
            decode(bytes(data[: int(rng.integers(1, len(data) + 1))] if number % 3 == 0 else data), rng, {})
        except DecodeError:
            num_refused += 1
    assert 0 < num_refused < 300


@pytest.mark.parametrize(("package", "make"), [("av", lambda: VideoClip(2)), ("soundfile", AudioClip)])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArgumentError, match=rf"needs the package {package}: pip install 'mpload\[video\]'"):
        make()


def test_wrong_arguments_are_refused() -> None:
    for make, message in (
        (lambda: VideoClip(0), "num_frames must be a positive integer, got 0"),
        (lambda: VideoClip(2, seconds=0), "seconds must be a positive number, got 0"),
        (lambda: VideoClip(2, crop=224), "crop must be a decoder such as"),  # type: ignore[arg-type]
        (lambda: AudioClip(seconds=-1), "seconds must be a positive number, got -1"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make()
    with pytest.raises(
        ArgumentError, match=r"the column 'start' must hold seconds, .* Declare start:float in #columns"
    ):
        VideoClip(2, start="start")(VIDEO, np.random.default_rng(0), {"start": "soon"})
