"""Crops of a photo that one native call makes are those that their decoders make one by one."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.crops_of_photo import CropsOfPhoto, DrawnAhead
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.letterbox import Letterbox
from mpload.images.limits import Limits
from mpload.images.many import EncodedSamples
from mpload.plan.sample_rng import SampleRng
from tests.support.crops import Groups, one_by_one
from tests.support.jpegs import ALL_VARIETIES, NATIVE, VARIETIES, make
from tests.support.native import needs_native
from tests.support.photos import Photos

pytestmark = needs_native
SIZES = [(203, 301), (700, 500), (64, 1000)]
GROUPS: Groups = [(2, RandomResizedCrop(64, scale=(0.3, 1))), (3, RandomResizedCrop(20, scale=(0.05, 0.3)))]


@cache
def jpeg(variety: str, size: tuple[int, int]) -> bytes:
    return make(variety, *size, seed=len(variety))


def crops() -> st.SearchStrategy[Any]:
    sizes = st.tuples(st.integers(1, 150), st.integers(1, 150))
    areas = st.sampled_from([(0.05, 0.3), (0.3, 1.0), (0.001, 0.01)])
    random = st.builds(RandomResizedCrop, sizes, scale=areas, antialias=st.booleans(), flip=st.floats(0, 1))
    return random | st.builds(ResizeCenterCrop, st.integers(1, 90), antialias=st.booleans())


def at_once(data: bytes, groups: Groups, rng: np.random.Generator) -> list[NDArray[np.uint8]] | None:
    """Return the crops of each decoder; None if the call declines the photo."""
    writer = CropsOfPhoto.of(groups)
    assert writer is not None
    outs = [np.full(shape, 7, np.uint8) for shape in writer.shapes]
    return outs if writer.write(data, rng.random(writer.num_draws), outs) else None


@given(
    variety=st.sampled_from(sorted(ALL_VARIETIES)),
    size=st.sampled_from(SIZES),
    groups=st.lists(st.tuples(st.integers(1, 4), crops()), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_crops_have_the_same_pixels_and_draw_the_same_numbers(
    variety: str, size: tuple[int, int], groups: Groups, seed: int
) -> None:
    data, ours, alone = jpeg(variety, size), np.random.default_rng(seed), np.random.default_rng(seed)
    made, expected = at_once(data, groups, ours), one_by_one(data, groups, alone)
    assert ours.random() == alone.random()
    for crops_made, crops_expected in zip(made or [], expected if made else [], strict=True):
        np.testing.assert_array_equal(crops_made, crops_expected)


@pytest.mark.parametrize("variety", sorted(VARIETIES))
def test_photos_of_usual_varieties_are_not_declined(variety: str) -> None:
    assert at_once(jpeg(variety, (700, 500)), GROUPS, np.random.default_rng(0)) is not None


def test_a_photo_is_decoded_at_all_scales_in_one_pass() -> None:
    areas = [(0.9, 1.0), (0.2, 0.25), (0.9, 1.0), (0.9, 1.0)]
    groups: Groups = [
        (2, RandomResizedCrop(size, scale=area)) for size, area in zip((500, 200, 150, 40), areas, strict=True)
    ]
    data = make("420", 1200, 1000, seed=3)
    for seed in range(5):
        made = at_once(data, groups, np.random.default_rng(seed))
        assert made is not None
        for ours, alone in zip(made, one_by_one(data, groups, np.random.default_rng(seed)), strict=True):
            np.testing.assert_array_equal(ours, alone)


@pytest.mark.parametrize("kind", [f"exif_{number}" for number in range(1, 9)])
@pytest.mark.parametrize("upright", [True, False])
def test_photos_are_turned_as_their_exif_data_says(kind: str, upright: bool, photos: Photos) -> None:
    data = photos[kind].read_bytes()
    groups: Groups = [
        (3, RandomResizedCrop((20, 31), scale=(0.5, 1.0), exif_orientation=upright)),
        (2, ResizeCenterCrop(24, exif_orientation=upright)),
    ]
    made = at_once(data, groups, np.random.default_rng(1))
    assert made is not None
    for ours, alone in zip(made, one_by_one(data, groups, np.random.default_rng(1)), strict=True):
        np.testing.assert_array_equal(ours, alone)


@pytest.mark.parametrize("kind", ["png_rgb", "webp", "cmyk", "truncated"])
def test_other_files_are_declined(kind: str, photos: Photos) -> None:
    assert at_once(photos[kind].read_bytes(), GROUPS, np.random.default_rng(0)) is None


def test_photos_beyond_the_limits_are_declined() -> None:
    for limits in (Limits(max_pixels=1000), Limits(max_bytes=1000)):
        groups: Groups = [(2, RandomResizedCrop(20, limits=limits))]
        assert at_once(jpeg("420", SIZES[0]), groups, np.random.default_rng(0)) is None
        with pytest.raises(DecodeError):
            one_by_one(jpeg("420", SIZES[0]), groups, np.random.default_rng(0))


def test_small_crops_that_lie_far_apart_are_declined() -> None:
    """To decode each alone takes less work."""
    group = (2, RandomResizedCrop(20, scale=(0.002, 0.002)))
    results = [at_once(jpeg("420", (700, 500)), [group], np.random.default_rng(seed)) for seed in range(40)]
    assert any(made is None for made in results)
    assert any(made is not None for made in results)


def test_decoders_of_other_kinds_have_no_call() -> None:
    class Mine(RandomResizedCrop):
        pass

    assert CropsOfPhoto.of([*GROUPS, (1, Letterbox(30))]) is None
    assert CropsOfPhoto.of([(1, Mine(30))]) is None
    assert CropsOfPhoto.of([(300, RandomResizedCrop(30))]) is None
    assert CropsOfPhoto.of([(1, RandomResizedCrop(30))] * 33) is None


def test_arrays_that_do_not_fit_are_declined() -> None:
    writer = CropsOfPhoto.of(GROUPS)
    assert writer is not None
    draws, data = np.random.default_rng(0).random(writer.num_draws), jpeg("420", SIZES[0])
    good = [np.zeros(shape, np.uint8) for shape in writer.shapes]
    read_only = good[0].view()
    read_only.flags.writeable = False
    wrong: list[Any] = [good[0][:1], np.zeros(writer.shapes[0], np.int8), good[0][:, :, ::-1], read_only]
    for bad in wrong:
        assert not writer.write(data, draws, [bad, good[1]])
    assert writer.write(data, draws, good)


def test_numbers_drawn_ahead_are_given_out_in_their_order() -> None:
    rng = np.random.default_rng(0)
    drawn = DrawnAhead(np.random.default_rng(0).random(45))
    for _ in range(2):
        np.testing.assert_array_equal(drawn.random(20), rng.random(20))
        assert drawn.random() == rng.random()


def test_crops_of_many_photos_are_those_of_each() -> None:
    writer, rng = CropsOfPhoto.of(GROUPS), SampleRng(seed=1, epoch=2)
    assert writer is not None
    files = [jpeg("420", SIZES[0]), b"no image", jpeg("progressive", SIZES[0]), jpeg("444", SIZES[1])]
    ends = np.cumsum([len(data) for data in files])
    at = memoryview(bytearray(8)).cast("q")
    samples = EncodedSamples(
        data=np.frombuffer(b"".join(files), np.uint8),
        starts=ends - np.array([len(data) for data in files]),
        lengths=np.array([*map(len, files[:3]), -1]),
        sample_ids=np.array([5, 6, 7, 8]),
        key=rng.key,
        first=10,
        at=at,
    )
    outs = [np.zeros((4, *shape), np.uint8) for shape in writer.shapes]
    assert writer.write_many(samples, outs).tolist() == [1, 0, 0, 0]
    assert 10 <= at[0] <= 13
    for out, alone in zip(outs, one_by_one(files[0], GROUPS, rng.for_sample(5)), strict=True):
        np.testing.assert_array_equal(out[0], alone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": np.zeros(22)}, r"draws must be float64 \[46\]"),
        ({"crops": ()}, "an array for each"),
        ({"crops": (7,)}, "crops must be tuples"),
        ({"outs": (np.zeros((2, 20, 20, 4), np.uint8),)}, "outs must be uint8"),
        ({"outs": (np.zeros((300, 2, 2, 3), np.uint8),)}, "outs must be uint8"),
        ({"outs": (np.zeros((20, 20, 3), np.uint8),)}, "outs must be uint8"),
    ],
)
def test_arguments_of_the_call_are_checked(changes: dict[str, Any], message: str) -> None:
    writer = CropsOfPhoto.of([(2, RandomResizedCrop(20))])
    assert writer is not None
    outs = (np.zeros((2, 20, 20, 3), np.uint8),)
    given_arguments = {"crops": writer.crops, "draws": np.zeros(46), "outs": outs, **changes}
    crops_given, draws, outs = (given_arguments[name] for name in ("crops", "draws", "outs"))
    with pytest.raises((ValueError, TypeError), match=message):
        NATIVE.decode_crops(jpeg("420", SIZES[0]), crops_given, draws, True, writer.bounds, outs)


def test_no_groups_are_declined() -> None:
    assert not NATIVE.decode_crops(jpeg("420", SIZES[0]), (), np.zeros(0), True, (1 << 30, 1 << 30, 100, 9), ())
