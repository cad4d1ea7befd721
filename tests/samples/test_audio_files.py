"""Clips of audio are parts of a decode of the whole file, and files that are cut short are found out."""

import struct
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import AudioClip, DecodeError
from mpload.images.jpeg_header import ImageBytes
from mpload.samples.audio_headers import has_frame_count

soundfile: Any = pytest.importorskip("soundfile")
KINDS = {
    "WAV": ("WAV", "PCM_16", 16000),
    "WAV of 64 bits": ("RF64", "PCM_16", 16000),
    "compressed WAV": ("WAV", "IMA_ADPCM", 16000),
    "AIFF": ("AIFF", "PCM_16", 16000),
    "FLAC": ("FLAC", "PCM_16", 44100),
    "Ogg Vorbis": ("OGG", "VORBIS", 44100),
    "Ogg Vorbis of one page": ("OGG", "VORBIS", 8000),
    "Ogg Opus": ("OGG", "OPUS", 16000),
    "MP3": ("MP3", "MPEG_LAYER_III", 44100),
    "slow MP3": ("MP3", "MPEG_LAYER_III", 16000),
}
STREAM_LENGTHS = [0, 0xFFFFFFFF, 0x7FFFF000, 0x80000000]  # as FFmpeg, SoX and others write them to a pipe


def encoded(kind: str, *, seconds: float = 3.0) -> bytes:
    """Return a file of a rising tone. Such a tone takes few bits, so that MP3 frames need those of many before them."""
    name, subtype, rate = KINDS[kind]
    time = np.arange(int(seconds * rate) + 17) / rate
    file = BytesIO()
    soundfile.write(file, 0.5 * np.sin(2 * np.pi * (200 + 300 * time) * time), rate, format=name, subtype=subtype)
    return file.getvalue()


def clip(data: ImageBytes, **part: Any) -> NDArray[np.float32]:
    samples: NDArray[np.float32] = AudioClip(**part)(data, np.random.default_rng(0), {})["samples"][0]
    return samples


def whole(data: bytes) -> tuple[NDArray[np.float32], int]:
    samples, rate = soundfile.read(BytesIO(data), dtype="float32")
    return samples, rate


def wav(*, length: int, riff_length: int, rest: bytes = b"") -> bytes:
    """Return a WAV file of 1000 samples whose header tells these lengths."""
    data = bytearray(encoded("WAV", seconds=0)[:44] + np.arange(1000, dtype="<i2").tobytes() + rest)
    data[40:44], data[4:8] = struct.pack("<I", length), struct.pack("<I", riff_length)
    return bytes(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_the_same_as_in_a_decode_of_the_whole_file(kind: str) -> None:
    data = encoded(kind)
    expected, rate = whole(data)
    for first in [*range(0, len(expected), len(expected) // 40), len(expected) - 1]:
        np.testing.assert_allclose(clip(data, start=first / rate), expected[first:], atol=1e-5)
        last = min(first + rate // 4, len(expected))
        np.testing.assert_allclose(clip(data, start=first / rate, end=last / rate), expected[first:last], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_file_that_is_cut_short_is_an_error(kind: str, share: float) -> None:
    data = encoded(kind)
    with pytest.raises(DecodeError, match=r"is truncated: its|damaged"):
        clip(data[: int(share * len(data))])


@pytest.mark.parametrize("kind", ["Ogg Vorbis", "Ogg Opus"])
def test_an_ogg_file_may_be_cut_between_its_pages_only(kind: str) -> None:
    data = encoded(kind)
    last = data.rindex(b"OggS")
    before = data.rindex(b"OggS", 0, last)
    num_samples = len(clip(data))
    if soundfile.__libsndfile_version__ >= "1.2.2":  # older ones do not find the length of these
        assert 0 < len(clip(data[:last])) < num_samples  # a recording that was stopped
        assert len(clip(data + b"TAG" + bytes(125))) == num_samples
    for end in [*range(before + 20, last, 97), *range(last + 1, last + 30), len(data) - 1]:
        with pytest.raises(DecodeError, match=r"Ogg is truncated: its last page ends at byte [0-9,]+ of [0-9,]+$"):
            clip(data[:end])


def test_a_truncated_wav_file_says_where_its_samples_should_end() -> None:
    data = encoded("WAV")
    for cut in (data[:30044], bytearray(data[:30044]), memoryview(data[:30044])):
        with pytest.raises(DecodeError, match=r"^WAV is truncated: its samples end at byte 96,078 of 30,044$"):
            clip(cut)
    assert len(clip(data[:-40])) == len(clip(data)) - 20  # some programs count the header in


@pytest.mark.parametrize("length", STREAM_LENGTHS)
@pytest.mark.parametrize("riff_length", [0, 36, 0xFFFFFFFF])
def test_a_wav_file_from_a_pipe_does_not_tell_its_length(length: int, riff_length: int) -> None:
    data = wav(length=length, riff_length=riff_length)
    for made in (data, bytearray(data), memoryview(data)):
        np.testing.assert_array_equal(clip(made) * 32768, np.arange(1000))


def test_a_wav_file_without_samples_has_none_even_if_other_chunks_follow() -> None:
    rest = b"LIST" + struct.pack("<I", 4) + b"INFO"
    data = wav(length=0, riff_length=0)[:44]
    data = data[:4] + struct.pack("<I", len(data) + len(rest) - 8) + data[8:] + rest
    with pytest.raises(DecodeError, match=r"nothing from 0\.0 to 0\.0 seconds"):
        clip(data)


def test_only_an_mp3_file_that_tells_its_length_can_be_found_to_be_cut_short() -> None:
    data = encoded("MP3")
    assert has_frame_count(data)
    assert has_frame_count(b"ID3\4\0\0\0\0\2\0" + bytes(256) + data)
    place = data.index(b"Xing")
    nameless = data[:place] + bytes(4) + data[place + 4 :]
    assert not has_frame_count(nameless)
    assert len(clip(nameless[: len(data) // 2])) > 0


def test_a_damaged_header_that_tells_a_huge_length_is_a_decode_error() -> None:
    data = bytearray(encoded("FLAC"))
    data[21] |= 15  # the upper bits of the number of samples
    with pytest.raises(DecodeError, match="damaged"):
        clip(bytes(data))
