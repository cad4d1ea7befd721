"""Headers, random numbers and crops of many photos are computed in C with the results that Python gives for one."""

import random
import shutil
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.images.claims import unclaimed
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop, center_short_side
from mpload.images.jpeg import Jpeg
from mpload.images.jpeg_header import read_header
from mpload.images.resize import View
from mpload.plan.sample_rng import SampleRng
from tests.support.fuzz_decode import damage
from tests.support.fuzz_seeds import write_seeds
from tests.support.headers import exif, with_segments
from tests.support.native_parts import NUM_DRAWS, NativeParts, build_parts

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing")

_SIDES = st.integers(1, 65_535) | st.integers(1, 600)
_SIZES = st.tuples(st.integers(1, 3000), st.integers(1, 3000))
_WORDS = st.integers(0, 2**64 - 1)
_RATIOS = st.floats(5e-324, 2.0**53) | st.floats(0.01, 100) | st.integers(1, 2**53)
_DRAW = st.floats(0, 1, exclude_max=True)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> NativeParts:
    return build_parts(tmp_path_factory.mktemp("parts"))


class Drawn:
    """Stands in for a generator: gives chosen numbers, in the order in which a crop draws them."""

    def __init__(self, draws: Sequence[float]) -> None:
        self._draws = list(draws)

    def random(self, count: int | None = None) -> "float | np.ndarray[tuple[int], np.dtype[np.float64]]":
        taken, self._draws = self._draws[: count or 1], self._draws[count or 1 :]
        return taken[0] if count is None else np.array(taken)


def a_jpeg(height: int, width: int, orientation: int) -> Jpeg:
    return Jpeg(
        data=b"", stored_size=(height, width), orientation=orientation, frame=1, has_one_scan=True,
        allow_truncated=False, native=None, claim=unclaimed,
    )  # fmt: skip


def flat(view: View) -> tuple[int, ...]:
    return (*view.box, *view.full, *view.shown, int(view.mirror))


def python_view(image: Jpeg, view: View) -> tuple[int, ...]:
    size, denominator, box, full, corner, mirror, _ = image.stored_view(view)
    shown = (view.shown.height, view.shown.width)
    return (*size, denominator, *box, *full, *corner, *(shown[::-1] if image.orientation >= 5 else shown), int(mirror))


@given(seed=st.integers(0, 1000), epoch=st.integers(0, 1000), sample_id=st.integers(0, 2**63 - 1))
def test_random_numbers_are_those_of_the_sample(seed: int, epoch: int, sample_id: int, parts: NativeParts) -> None:
    rng = SampleRng(seed=seed, epoch=epoch)
    assert parts.draws(rng.key, sample_id) == rng.for_sample(sample_id).random(NUM_DRAWS).tolist()


@st.composite
def _random_crops(draw: st.DrawFn) -> RandomResizedCrop:
    scale = sorted(draw(st.tuples(*[st.floats(5e-324, 1) | st.floats(0.05, 1)] * 2)))
    ratio = sorted(draw(st.tuples(_RATIOS, _RATIOS)))
    return RandomResizedCrop(
        draw(_SIZES), scale=(scale[0], scale[1]), ratio=(ratio[0], ratio[1]), flip=draw(st.floats(0, 1))
    )


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(
    crop=_random_crops() | st.just(RandomResizedCrop(224)),
    height=_SIDES,
    width=_SIDES,
    draws=st.lists(_DRAW, min_size=NUM_DRAWS, max_size=NUM_DRAWS),
    orientation=st.integers(1, 8),
)
def test_every_random_crop_is_the_one_that_python_chooses(
    crop: RandomResizedCrop, height: int, width: int, draws: list[float], orientation: int, parts: NativeParts
) -> None:
    image = a_jpeg(height, width, orientation)
    shown = parts.random_shown(crop, image.height, image.width, draws)
    try:
        view = crop.draw_geometry(image.height, image.width, Drawn(draws)).view  # type: ignore[arg-type]
    except (OverflowError, ZeroDivisionError):
        assert shown is None
        return
    assert shown == flat(view)
    assert parts.stored_view((height, width, orientation), shown) == python_view(image, view)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(size=_SIZES, more=st.none() | st.integers(0, 3000), height=_SIDES, width=_SIDES, orientation=st.integers(1, 8))
def test_every_centre_crop_is_the_one_that_python_chooses(
    size: tuple[int, int], more: int | None, height: int, width: int, orientation: int, parts: NativeParts
) -> None:
    crop = ResizeCenterCrop(size, resize=None if more is None else max(size) + more)
    image = a_jpeg(height, width, orientation)
    view = crop.draw_geometry(image.height, image.width).view
    shown = parts.center_shown(center_short_side(crop), image.height, image.width, size)
    assert shown == flat(view)
    assert parts.stored_view((height, width, orientation), shown) == python_view(image, view)


def compare_draws(parts: NativeParts, *, num: int) -> None:
    crops = [RandomResizedCrop(224), RandomResizedCrop((96, 160), scale=(0.3, 1), ratio=(1, 3), flip=0.1)]
    dice = random.Random(0)
    rng = SampleRng(seed=3, epoch=1)
    for sample_id in range(num):
        height, width = (dice.choice((dice.randrange(1, 65_536), dice.randrange(1, 2000))) for _ in range(2))
        image, crop = a_jpeg(height, width, dice.randrange(1, 9)), crops[sample_id % 2]
        view = crop.draw_geometry(image.height, image.width, rng.for_sample(sample_id)).view
        shown = parts.random_shown(crop, image.height, image.width, parts.draws(rng.key, sample_id))
        assert shown == flat(view), (height, width, sample_id)
        stored = parts.stored_view((height, width, image.orientation), shown)
        assert stored == python_view(image, view), (height, width, sample_id)


def test_thousands_of_samples_draw_the_crops_of_python(parts: NativeParts) -> None:
    compare_draws(parts, num=20_000)


@pytest.mark.slow
def test_a_million_samples_draw_the_crops_of_python(parts: NativeParts) -> None:
    compare_draws(parts, num=1_000_000)


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """JPEGs of all kinds, with EXIF data of both byte orders and all orientations."""
    files = [path.read_bytes() for path in write_seeds(tmp_path_factory.mktemp("seeds"))]
    plain = files[0]
    tagged = [with_segments(plain, exif(number, little_endian=flag)) for number in range(10) for flag in (True, False)]
    long = [with_segments(plain, long_exif(number, flag)) for number in range(10) for flag in (True, False)]
    return [*files, *tagged, *long]


def long_exif(orientation: int, little_endian: bool) -> bytes:
    """Return EXIF data in which the orientation has 32 bits."""
    data = exif(orientation, little_endian=little_endian)
    if little_endian:
        return data.replace(b"\x12\x01\x03\0", b"\x12\x01\x04\0")
    long = b"\x01\x12\0\x04" + (1).to_bytes(4, "big") + orientation.to_bytes(4, "big")
    return data[:-16] + long + data[-4:]


def compare_headers(parts: NativeParts, files: list[bytes], *, num: int, seed: int) -> int:
    """Compare the headers of damaged files; return how many of them were not declined."""
    dice = random.Random(seed)
    num_read = 0
    starts = [data[:1000] for data in files]
    for number in range(num):
        data = (
            b"\xff\xd8\xff" + damage(dice.choice(starts), dice, starts)[3:] if number >= len(files) else files[number]
        )
        found = parts.header(data)
        if found is not None:
            height, width, orientation, frame, has_one_scan = read_header(data)
            has_restarts = frame == 0  # libjpeg may then refuse a header whose size is read here
            assert found[2:] == (orientation, has_restarts), data
            assert has_restarts or found[:2] == (height, width), data
            assert has_one_scan
            num_read += 1
    return num_read


def test_damaged_headers_are_read_as_python_reads_them_or_declined(parts: NativeParts, jpegs: list[bytes]) -> None:
    assert compare_headers(parts, jpegs, num=20_000, seed=0) > 5000


@pytest.mark.slow
def test_a_million_damaged_headers_are_read_as_python_reads_them(parts: NativeParts, jpegs: list[bytes]) -> None:
    assert compare_headers(parts, jpegs, num=1_000_000, seed=1) > 250_000


def test_plain_headers_are_not_declined(parts: NativeParts, jpegs: list[bytes]) -> None:
    for data in jpegs:
        height, width, orientation, frame, _ = read_header(data)
        has_restarts = b"\xff\xdd\x00\x04" in data
        expected = (height, width, orientation, has_restarts) if frame or has_restarts else None
        assert parts.header(data) == expected


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(tiff=st.binary(max_size=80), order=st.sampled_from([b"II", b"MM", b""]), cut=st.integers(0, 40))
def test_any_exif_data_gives_the_orientation_that_python_finds(
    tiff: bytes, order: bytes, cut: int, parts: NativeParts, jpegs: list[bytes]
) -> None:
    data = with_segments(jpegs[0], b"Exif\0\0" + order + tiff, claimed_bytes=max(0, len(tiff) + 10 - cut))
    found = parts.header(data)
    assert found is None or found[:3] == read_header(data)[:3]
