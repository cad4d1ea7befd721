"""The crops of many photos, which are decoded two at a time: each has the pixels that it has alone."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.images.crops_of_photo import CropsOfPhoto
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.many import EncodedSamples
from mpload.plan.sample_rng import SampleRng
from tests.support.crops import Groups, one_by_one
from tests.support.jpegs import ALL_VARIETIES, make
from tests.support.native import needs_native

pytestmark = needs_native
SIZES = [(203, 301), (480, 500), (16, 700), (9, 9)]
FAR = RandomResizedCrop(20, scale=(0.002, 0.002))
"""Crops that are declined now and then: to decode each alone takes less work."""
GROUPS: list[Groups] = [
    [(2, RandomResizedCrop(64, scale=(0.3, 1))), (3, RandomResizedCrop(20, scale=(0.05, 0.3)))],
    [(1, ResizeCenterCrop(200)), (1, RandomResizedCrop(40, scale=(0.9, 1)))],
    [(2, FAR)],
    [(1, ResizeCenterCrop(8))],
]
RNG = SampleRng(seed=1, epoch=2)


@cache
def jpeg(variety: str, size: tuple[int, int], quality: int) -> bytes:
    return make(variety, *size, seed=len(variety), quality=quality)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    data = draw(
        st.builds(jpeg, st.sampled_from(sorted(ALL_VARIETIES)), st.sampled_from(SIZES), st.sampled_from([30, 75, 98]))
    )
    match draw(st.sampled_from(["whole"] * 3 + ["damaged", "truncated"])):
        case "damaged":
            place = draw(st.integers(0, len(data) - 1))
            return data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
        case "truncated":
            return data[: draw(st.integers(0, len(data)))]
    return data


def crops_of(photos: list[bytes], writer: CropsOfPhoto) -> tuple[list[int], list[NDArray[np.uint8]]]:
    """Return which photos were decoded, and their crops, for each decoder."""
    lengths = np.array([len(data) for data in photos])
    samples = EncodedSamples(
        data=np.frombuffer(b"".join(photos) or b"0", np.uint8),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        sample_ids=np.arange(len(photos)),
        key=RNG.key,
        first=0,
        at=memoryview(bytearray(8)).cast("q"),
    )
    outs = [np.zeros((len(photos), *shape), np.uint8) for shape in writer.shapes]
    return writer.write_many(samples, outs).tolist(), outs


def check_crops(photos: list[bytes], groups: Groups) -> list[int]:
    """Check the photos that were decoded, and return which were."""
    writer = CropsOfPhoto.of(groups)
    assert writer is not None
    is_made, crops = crops_of(photos, writer)
    for number in np.flatnonzero(is_made):
        alone = one_by_one(photos[number], groups, RNG.for_sample(int(number)))
        for ours, expected in zip(crops, alone, strict=True):
            np.testing.assert_array_equal(ours[number], expected)
    return is_made


@given(photos=st.lists(files(), min_size=1, max_size=7), groups=st.sampled_from(GROUPS))
def test_each_photo_has_the_crops_that_it_has_alone(photos: list[bytes], groups: Groups) -> None:
    check_crops(photos, groups)


@pytest.mark.parametrize("first", ["optimised", "420", "444"])
def test_photos_borrow_tables_and_keep_them_while_another_photo_has_others(first: str) -> None:
    """Two photos are large: all others have their turns beside one, some with its tables and some with their own."""
    large = make(first, 900, 900, seed=0)
    others = [make(variety, 180, 240, seed=seed) for seed in range(4) for variety in ("optimised", "420", "gray")]
    assert all(check_crops([others[0], large, *others, large, *others[::-1]], GROUPS[0]))


@pytest.mark.parametrize("end", [b"", b"\xff\xd9"])
def test_a_damaged_photo_does_not_disturb_the_one_beside_it(end: bytes) -> None:
    good = [make("420", 400, 500, seed=seed) for seed in range(3)]
    cut = good[2][: len(good[2]) // 2] + end
    assert check_crops([good[0], cut, good[1], cut, cut, good[2]], GROUPS[0]) == [1, 0, 1, 0, 0, 1]
