"""Photos that are decoded with one call have the pixels that each gets alone; all others are declined."""

import random
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from mpload.errors import DecodeError
from mpload.images import backends
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.images.limits import Limits
from mpload.images.many import EncodedSamples, many_decoder
from mpload.plan.sample_rng import SampleRng
from tests.golden.make_formats import FOLDER
from tests.support.fuzz_decode import damage
from tests.support.fuzz_seeds import write_seeds
from tests.support.headers import exif, with_segments
from tests.support.native import needs_native
from tests.support.photos import encode, photo

Crop = RandomResizedCrop | ResizeCenterCrop

CROPS: dict[str, Crop] = {
    "random": RandomResizedCrop(64),
    "random, antialiased": RandomResizedCrop((30, 50), antialias=True, scale=(0.02, 1), ratio=(0.2, 5)),
    "random, as stored": RandomResizedCrop(16, exif_orientation=False),
    "centre": ResizeCenterCrop(48),
    "centre, antialiased": ResizeCenterCrop((17, 40), resize=60, antialias=True),
    "centre, as stored": ResizeCenterCrop(20, resize=20, exif_orientation=False),
}
SEED, EPOCH = 5, 3
DECLINED = {
    "jpeg_cmyk.jpg", "jpeg_ycck.jpg", "jpeg_progressive.jpg", "jpeg_truncated.jpg", "cmyk.jpg", "progressive.jpg",
    "twelve_bits.jpg", "no_codes.jpg", "no_tables.jpg", "no_end.jpg", "end_inside.jpg", "fill_bytes.jpg",
    "empty_table.jpg", "three_scans.jpg", "three_scans_no_table.jpg",
}  # fmt: skip

pytestmark = needs_native


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in write_seeds(tmp_path_factory.mktemp("seeds"))}
    sizes = ((1, 1), (3, 900), (900, 2), (400, 90), (700, 1000))
    files |= {f"{height}x{width}": made(height, width) for height, width in sizes}
    plain = files["420_90.jpg"]
    return files | {
        f"turned {number}, {'little' if flag else 'big'}": with_segments(plain, exif(number, little_endian=flag))
        for number in range(10)
        for flag in (True, False)
    }


def made(height: int, width: int) -> bytes:
    return encode(Image.fromarray(photo(height, width, np.random.default_rng(height))), "JPEG")


def packed(files: Sequence[bytes], *, gap: int = 3, at: Any = None, first: int = 0) -> EncodedSamples:
    lengths = np.array([len(data) for data in files], np.int64)
    starts = np.cumsum(lengths + gap) - lengths
    return EncodedSamples(
        data=np.frombuffer(bytes(gap) + b"".join(data + bytes(gap) for data in files), np.uint8),
        starts=starts,
        lengths=lengths,
        sample_ids=7 * np.arange(len(files), dtype=np.int64) + 11,
        key=SampleRng(seed=SEED, epoch=EPOCH).key,
        first=first,
        at=at,
    )


def decoded(crop: Crop, samples: EncodedSamples) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    decode = many_decoder(crop)
    assert decode is not None
    out = np.full((len(samples.lengths), *crop.output_shape), 99, np.uint8)
    is_made = decode(samples, out)
    assert is_made.dtype == np.uint8
    assert is_made.max(initial=0) <= 1
    return is_made, out


def alone(crop: Crop, data: bytes, sample_id: int) -> NDArray[np.uint8]:
    if isinstance(crop, ResizeCenterCrop):
        return crop(data)
    return crop(data, SampleRng(seed=SEED, epoch=EPOCH).for_sample(sample_id))


def compare(crop: Crop, files: Mapping[str, bytes]) -> set[str]:
    """Compare the photos that are made with those that the decoder makes; return the names of those declined."""
    samples = packed(list(files.values()))
    is_made, out = decoded(crop, samples)
    for number, (name, data) in enumerate(files.items()):
        if is_made[number]:
            np.testing.assert_array_equal(out[number], alone(crop, data, int(samples.sample_ids[number])), name)
    return {name for name, made in zip(files, is_made, strict=True) if not made}


@pytest.mark.parametrize("name", CROPS)
def test_photos_have_the_pixels_of_photos_decoded_alone(name: str, jpegs: dict[str, bytes]) -> None:
    declined = compare(CROPS[name], jpegs)
    assert declined <= DECLINED
    assert declined > {"jpeg_cmyk.jpg", "progressive.jpg", "no_end.jpg"}


def test_files_that_are_not_jpegs_are_declined() -> None:
    others = {path.name: path.read_bytes() for path in FOLDER.iterdir() if not path.name.startswith("jpeg")}
    assert compare(CROPS["centre"], others | {"empty": b"", "start": b"\xff\xd8\xff"}) == {*others, "empty", "start"}


@pytest.mark.parametrize("name", CROPS)
def test_damaged_photos_are_declined_or_have_the_pixels_of_photos_decoded_alone(
    name: str, jpegs: dict[str, bytes]
) -> None:
    dice = random.Random(len(name))
    originals = list(jpegs.values())
    files = {str(number): damage(dice.choice(originals), dice, originals) for number in range(400)}
    assert 50 < len(compare(CROPS[name], files)) < 350


@pytest.mark.parametrize("name", CROPS)
def test_truncated_photos_are_declined(name: str, jpegs: dict[str, bytes]) -> None:
    plain = jpegs["420_90.jpg"]
    files = {str(end): plain[:end] for end in range(len(plain) - 1)}
    assert compare(CROPS[name], files) == files.keys()


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker, *(len(body) + 2).to_bytes(2, "big")]) + body


def test_photos_without_a_scan_are_declined_however_many_bits_they_lack() -> None:
    """Each block uses 1,984 missing bits, which are 2³¹ after a part of the rows."""
    codes, size = bytes(15) + b"\x01" + b"\x0f", bytes([8, *(65500).to_bytes(2, "big"), *(1000).to_bytes(2, "big")])
    data = b"\xff\xd8" + segment(0xDB, bytes(1) + bytes([1] * 64))
    data += segment(0xC0, size + bytes([3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]))
    data += segment(0xC4, b"\x00" + codes) + segment(0xC4, b"\x10" + codes)
    data += segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])) + b"\xff\xd9" + bytes(520)
    is_made, _ = decoded(CROPS["centre"], packed([data] * 3))  # the tables are made for the second one
    assert is_made.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_bytes=2000), Limits(max_pixels=61 * 83 - 1), Limits(max_pixels=61 * 83),
        Limits(max_bytes=10**30, max_pixels=10**30, max_pixels_per_byte=10**30),
    ],
)  # fmt: skip
def test_exactly_the_photos_beyond_a_limit_are_declined(limits: Limits, jpegs: dict[str, bytes]) -> None:
    crop = ResizeCenterCrop(16, limits=limits)
    files = {name: data for name, data in jpegs.items() if name.startswith(("420", "444"))}
    too_large = set()
    for name, data in files.items():
        try:
            crop(data)
        except DecodeError:
            too_large.add(name)
    assert compare(crop, files) == too_large


@pytest.mark.parametrize("pixels_per_byte", [39, 40, 41])
def test_large_photos_with_too_few_bytes_are_declined(pixels_per_byte: int) -> None:
    data = encode(Image.new("L", (4200, 4000)), "JPEG")  # more than 16 million pixels
    data += bytes(4200 * 4000 // 40 - len(data))
    crop = ResizeCenterCrop(600, limits=Limits(max_pixels_per_byte=pixels_per_byte))
    assert compare(crop, {"large": data}) == ({"large"} if pixels_per_byte < 40 else set())


def test_photos_with_restart_markers_and_too_many_scans_are_declined(jpegs: dict[str, bytes]) -> None:
    photo, crop = jpegs["restarts.jpg"], ResizeCenterCrop(16, limits=Limits(max_scans=1))
    assert photo.count(b"\xff\xda") == 1
    more_scans = photo[:-2] + photo[photo.index(b"\xff\xda") :]
    with pytest.raises(DecodeError, match="more than max_scans=1 scans"):
        crop(more_scans)
    odd = photo.replace(b"\x03\x01\x22\x00", b"\x03\x01\x31\x00")  # a subsampling that simplejpeg has no name for
    assert odd != photo
    files = {"photo": photo, "more scans": more_scans, "scans behind the end": photo + photo, "odd": odd}
    assert compare(crop, files) == files.keys() - {"photo"}


def test_photos_may_be_left_out_and_lie_anywhere(jpegs: dict[str, bytes]) -> None:
    files = [jpegs["420_90.jpg"], jpegs["444_90.jpg"], jpegs["420_90.jpg"]]
    samples = packed(files)
    samples.lengths[0] = -1
    is_made, out = decoded(CROPS["centre"], samples)
    assert is_made.tolist() == [0, 1, 1]
    assert (out[0] == 99).all()
    samples = replace(samples, starts=samples.starts[[1, 1, 1]], lengths=samples.lengths[[1, 1, 1]])
    is_made, same = decoded(CROPS["centre"], samples)
    assert is_made.all()
    np.testing.assert_array_equal(same, np.stack([out[1]] * 3))


@settings(max_examples=300, deadline=None)
@given(
    bounds=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 9000), st.integers(-(2**63), 2**63 - 1)
                  | st.integers(-5, 9000)),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_bounds_outside_of_the_area_are_declined(bounds: list[tuple[int, int]]) -> None:
    samples = packed([made(40, 40)])
    starts, lengths = (np.array(each, np.int64) for each in zip(*bounds, strict=True))
    samples = replace(samples, starts=starts, lengths=lengths, sample_ids=np.arange(len(bounds)))
    is_made, _ = decoded(CROPS["centre"], samples)
    inside = (starts == 3) & (lengths <= len(samples.data) - 3)
    assert not is_made[~inside].any()


def test_the_number_of_the_photo_that_is_next_is_written_before_each(jpegs: dict[str, bytes]) -> None:
    cell = np.zeros(1, np.int64)
    samples = packed([jpegs["700x1000"]] * 40, at=cell.data, first=37)
    seen = []
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(decoded, CROPS["centre"], samples)
        while not done.done():
            seen.append(int(cell[0]))
    assert cell[0] == 37 + 39
    assert seen == sorted(seen)
    assert set(seen) - {0, 37 + 39}


def test_photos_are_declined_if_memory_runs_out(jpegs: dict[str, bytes]) -> None:
    crop, samples = RandomResizedCrop(8000), packed([jpegs["turned 6, big"]])
    out = np.empty((1, 8000, 8000, 3), np.uint8)
    decode = many_decoder(crop)
    assert decode is not None
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (100 << 20), before[1]))  # one turned result takes 192 MB
    try:
        is_made = decode(samples, out)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert not is_made.any()


def test_an_empty_chunk_has_no_photos() -> None:
    is_made, out = decoded(CROPS["random"], packed([]))
    assert is_made.shape == (0,)
    assert out.shape == (0, 64, 64, 3)


class Sharpened(ResizeCenterCrop):
    """A user's decoder, which inherits from one of ours."""


@pytest.mark.parametrize(
    "decode",
    [
        ImageDecoder(),
        RandomResizedCrop(16, backend="simplejpeg"),
        ResizeCenterCrop(16, backend="simplejpeg"),
        RandomResizedCrop(16, ratio=(1, 2**53 + 1)),
        ResizeCenterCrop(16, resize=70_000),
        Sharpened(16),
        len,
    ],
)
def test_other_decoders_decode_samples_one_by_one(decode: Callable[..., Any]) -> None:
    assert many_decoder(decode) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starts", np.zeros(2, np.int64)),
        ("lengths", np.zeros(1, np.int32)),
        ("sample_ids", np.zeros(9, np.uint8)[1:]),
        ("key", (1,)),
        ("crop", (1.0, 2.0)),
        ("crop", (2**40,)),
        ("crop", [9]),
        ("out", np.zeros((8, 8, 3), np.uint8)),
        ("out", np.zeros((1, 8, 8, 4), np.uint8)),
        ("out", np.zeros((1, 0, 8, 3), np.uint8)),
        ("out", np.zeros((1, 8, 8, 3), np.int16)),
        ("out", np.zeros((2, 8, 8, 3), np.uint8)),
        ("out", np.zeros((1, 8, 16, 3), np.uint8)[:, :, ::2]),
        ("is_made", bytes(1)),
        ("at", np.zeros(2, np.int64)),
        ("at", bytes(8)),
        ("entries", b""),
        ("geometries", np.zeros((1, 12), np.int64)),
        ("geometries", np.zeros((1, 26), np.int32)[:, ::2]),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any) -> None:
    native = backends.NATIVE
    assert native is not None
    number = np.zeros(1, np.int64)
    arguments: dict[str, Any] = {
        "area": b"", "starts": number, "lengths": number, "sample_ids": number, "key": (1, 2), "crop": (9,),
        "antialias": False, "upright": True, "limits": (1, 1, 1, 1), "entries": None,
        "entry_bounds": None, "out": np.zeros((1, 8, 8, 3), np.uint8),
        "is_made": np.ones(1, np.uint8), "at": None, "first": 0, "geometries": None,
    }  # fmt: skip
    native.decode_many(*arguments.values())
    assert arguments["is_made"][0] == 0
    with pytest.raises((ValueError, BufferError, TypeError, OverflowError)):
        native.decode_many(*(arguments | {name: value}).values())


def test_any_thread_may_decode(jpegs: dict[str, bytes]) -> None:
    samples = packed(list(jpegs.values()))
    expected = decoded(CROPS["random"], samples)
    with ThreadPoolExecutor(4) as threads:
        for is_made, out in threads.map(lambda _: decoded(CROPS["random"], samples), range(8)):
            np.testing.assert_array_equal(is_made, expected[0])
            np.testing.assert_array_equal(out[is_made == 1], expected[1][is_made == 1])
