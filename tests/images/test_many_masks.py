"""Masks that are decoded with one call have the values that each gets alone; all others are declined."""

import math
import random
import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from mpload.errors import DecodeError
from mpload.images import many_masks
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.geometry import Geometry
from mpload.images.limits import Limits
from mpload.images.many import EncodedSamples
from mpload.images.many_geometries import NUM_GEOMETRY, geometry_of
from mpload.images.mask import Mask
from tests.support.fuzz_decode import damage
from tests.support.geometries import drawn_numbers
from tests.support.value_files import palette_png, png, value_files

pytestmark = pytest.mark.skipif(many_masks.NATIVE is None, reason="the native module of masks is not built")

CROPS = (RandomResizedCrop((20, 31)), RandomResizedCrop(90, scale=(0.01, 0.2)), ResizeCenterCrop(24, resize=40))
FILES = value_files(37, 53)
PLAIN = {name: data for name, (data, _) in FILES.items() if name.startswith("png")}
DTYPES = ("int64", "uint8", "int8", "uint16", "int16", "int32", "uint32", "uint64")


def decoded(
    mask: Mask, files: list[bytes], geometries: list[Geometry]
) -> tuple[NDArray[np.bool_], NDArray[np.generic]]:
    """Decode files with one call, and return which were made, and all results."""
    decode = many_masks.many_masks(mask)
    assert decode is not None
    lengths = np.array([len(data) for data in files], np.int64)
    shape = len(files), *geometries[0].output_size
    memory = np.full(math.prod(shape) * np.dtype(mask.dtype).itemsize + 64, 77, np.uint8)
    at_line = -memory.ctypes.data % 64  # arrays of slots begin at a cache line
    out = np.ndarray(shape, mask.dtype, memory, at_line)
    samples = EncodedSamples(
        data=np.frombuffer(b"".join(files), np.uint8),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        sample_ids=np.zeros(len(files), np.int64),
        key=(0, 0),
        first=0,
        at=None,
        geometries=np.array(list(map(drawn_numbers, geometries)), np.int64),
    )
    return decode(samples, out) == 1, out


def drawn(crop: Any, height: int, width: int, seed: int) -> Geometry:
    geometry: Geometry = crop.draw_geometry(height, width, np.random.default_rng(seed))
    return geometry


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8, 16]), st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 40),
    st.integers(1, 40), st.sampled_from(CROPS), st.integers(0, 2**32), st.sampled_from(DTYPES), st.booleans(),
)  # fmt: skip
def test_a_plain_png_is_decoded_as_mask_decodes_it(
    bits: int, filters: list[int], height: int, width: int, crop: Any, seed: int, dtype: str, is_whole: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << bits, (height, width)) & rng.integers(0, 1 << bits)
    data = png(values, bits, 3 if bits < 16 and seed % 2 else 0, filters=filters)
    size = (height, width) if is_whole else (3 * height - seed % 2, 3 * width)
    geometry = drawn(crop, *size, seed)
    mask = Mask(dtype=dtype, ignore=100)
    (is_made,), (found,) = decoded(mask, [data], [geometry])
    assert is_made == (bits <= np.iinfo(dtype).bits - (dtype[0] == "i"))
    if is_made:
        np.testing.assert_array_equal(found, mask(data, geometry))


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
@pytest.mark.parametrize("side", [130, 161, 200, 300, 700])
def test_masks_may_be_shrunk_to_any_part_of_their_size(side: int, dtype: str) -> None:
    values = np.random.default_rng(side).integers(0, 256, (side, side))
    data, crop, mask = png(values, 8, 0), ResizeCenterCrop(40, resize=40), Mask(dtype=dtype)
    geometry = drawn(crop, side, side, 0)
    (is_made,), (found,) = decoded(mask, [data], [geometry])
    assert is_made
    np.testing.assert_array_equal(found, mask(data, geometry))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
@example(30, 40, 40, 30)
@example(30, 40, 60, 80)
@example(30, 40, 60, 83)
def test_a_mask_is_declined_if_mask_says_that_it_belongs_to_another_image(
    height: int, width: int, image_height: int, image_width: int
) -> None:
    mask, data = Mask(), png(np.zeros((height, width), np.uint8), 8, 0)
    geometry = drawn(CROPS[0], image_height, image_width, 0)
    (is_made,), _ = decoded(mask, [data], [geometry])
    try:
        mask(data, geometry)
    except DecodeError:
        assert not is_made
    else:
        assert is_made


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_damaged_masks_are_declined_or_have_the_values_that_mask_reads(dtype: str) -> None:
    dice, mask = random.Random(0), Mask(dtype=dtype, limits=Limits(max_pixels=100_000))
    ids = (np.indices((37, 53)).sum(axis=0) // 9).astype(np.uint8)
    files = [*PLAIN.values(), png(ids, 8, 3, filters=[0, 1, 2, 3, 4]), palette_png(ids), png(ids, 16, 0, filters=[4])]
    damaged = [damage(dice.choice(files), dice, files) for _ in range(400)]
    damaged += [with_sound_checks(data, dice) for data in dice.choices(files, k=600)]
    geometries = [drawn(CROPS[0], 37, 53, number) for number in range(len(damaged))]
    is_made, found = decoded(mask, damaged, geometries)
    assert 20 < is_made.sum() < len(damaged) - 20
    for number in np.flatnonzero(is_made).tolist():
        np.testing.assert_array_equal(found[number], mask(damaged[number], geometries[number]))


def with_sound_checks(data: bytes, dice: random.Random) -> bytes:
    """Return a PNG with a byte changed in the middle of a chunk, whose checksum is right all the same."""
    changed = bytearray(data)
    place = dice.randrange(16, len(changed))
    changed[place] = dice.randrange(256)
    at = 8
    while at + 12 <= len(changed):
        end = at + 8 + int.from_bytes(changed[at : at + 4], "big")
        changed[end : end + 4] = zlib.crc32(changed[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(changed[: len(data)])


def test_unusual_files_are_declined() -> None:
    ids = np.arange(12, dtype=np.uint8).reshape(3, 4)
    plain = png(ids, 8, 0)
    interlaced, colours = BytesIO(), BytesIO()
    Image.fromarray(np.zeros((3, 4, 3), np.uint8)).save(colours, "PNG")
    header = bytearray(plain[:33])
    header[28] = 1
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    interlaced.write(bytes(header) + plain[33:])
    turned = plain[:33] + struct.pack(">I", 0) + b"eXIf" + zlib.crc32(b"eXIf").to_bytes(4, "big") + plain[33:]
    wrong_check = bytearray(plain)
    wrong_check[-17] ^= 1
    unusual = [
        interlaced.getvalue(),
        colours.getvalue(),
        turned,
        bytes(wrong_check),
        plain[:-12],
        plain[:-1],
        b"",
        b"no",
    ]
    unusual += [data for name, (data, _) in FILES.items() if not name.startswith("png")]
    is_made, _ = decoded(Mask(), [plain, *unusual], [drawn(CROPS[0], 30, 40, 0)] * (1 + len(unusual)))
    assert is_made.tolist() == [True] + [False] * len(unusual)


@pytest.mark.parametrize("limits", [Limits(max_bytes=60), Limits(max_pixels=1999)])
def test_limits_are_respected(limits: Limits) -> None:
    data = png(np.zeros((40, 50), np.uint8), 8, 0)
    geometry = drawn(CROPS[0], 40, 50, 0)
    assert decoded(Mask(), [data], [geometry])[0].all()
    mask = Mask(limits=limits)
    assert not decoded(mask, [data], [geometry])[0].any()
    with pytest.raises(DecodeError, match="exceed"):
        mask(data, geometry)


@given(st.sampled_from(CROPS), st.integers(1, 500), st.integers(1, 500), st.integers(0, 99))
def test_the_numbers_of_a_geometry_are_all_of_it(crop: Any, height: int, width: int, seed: int) -> None:
    geometry = drawn(crop, height, width, seed)
    assert geometry_of(crop, drawn_numbers(geometry)) == geometry


def test_geometries_that_lie_outside_of_their_image_are_declined() -> None:
    data, right = palette_png(np.zeros((30, 40), np.uint8)), drawn_numbers(drawn(CROPS[0], 30, 40, 0))
    decode = many_masks.NATIVE
    assert decode is not None
    for place in range(NUM_GEOMETRY - 1):
        for number in (-(2**63), -1, 2**31, 2**63 - 1):
            numbers = np.array([right], np.int64)
            numbers[0, place] = number
            assert not call(area=data, lengths=np.array([len(data)]), geometries=numbers)
    assert call(area=data, lengths=np.array([len(data)]), geometries=np.array([right], np.int64))


def call(**changes: Any) -> bool:
    native = many_masks.NATIVE
    assert native is not None
    arguments: dict[str, Any] = {
        "area": b"", "starts": np.zeros(1, np.int64), "lengths": np.zeros(1, np.int64),
        "geometries": np.zeros((1, NUM_GEOMETRY), np.int64), "max_bits": 8, "limits": (10**6, 10**6, 10**6),
        "out": np.zeros((1, 20, 31), np.int64), "is_made": np.ones(1, np.uint8), "at": None, "first": 0,
    }  # fmt: skip
    arguments |= changes
    native.decode_many(*arguments.values())
    return bool(arguments["is_made"][0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starts", np.zeros(2, np.int64)),
        ("lengths", np.zeros(1, np.int32)),
        ("geometries", np.zeros((1, 12), np.int64)),
        ("limits", (1, 2)),
        ("out", np.zeros((20, 31), np.int64)),
        ("out", np.zeros((1, 20, 31), np.complex128)),
        ("out", np.zeros((1, 20, 62), np.int64)[:, :, ::2]),
        ("out", np.zeros((1, 0, 31), np.int64)),
        ("is_made", np.zeros(2, np.uint8)),
        ("is_made", bytes(1)),
        ("at", np.zeros(2, np.int64)),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any) -> None:
    assert not call()
    with pytest.raises((ValueError, BufferError, TypeError)):
        call(**{name: value})


class OtherLimits(Limits):
    pass


WITH_A_FRACTION = Mask(limits=Limits(max_bytes=2.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("mask", [Mask(dtype="float32"), Mask(limits=OtherLimits()), WITH_A_FRACTION])
def test_other_masks_are_decoded_one_by_one(mask: Mask) -> None:
    assert many_masks.many_masks(mask) is None
    assert many_masks.many_masks(RandomResizedCrop(8)) is None
