"""Both backends draw the same views: the native decoder, which decodes only what it needs, and simplejpeg."""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

from mpload.errors import ArgumentError, DecodeError
from mpload.images import backends
from mpload.images.crops import random_crop_box
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop, jpeg_backend
from mpload.images.image import open_image
from mpload.images.limits import Limits
from mpload.images.resize import Box, View
from mpload.memory.usage import anonymous_bytes
from mpload.units import MIB
from tests.golden.make_formats import FOLDER
from tests.support.jpegs import ALL_VARIETIES, make
from tests.support.native import needs_native
from tests.support.photos import distance, encode, photo

GOLDEN = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
WHOLE = sorted(name for name in GOLDEN if "truncated" not in name)


def draw(data: bytes, view: View, name: str = "auto", **options: Any) -> NDArray[np.uint8]:
    assert name in {"auto", "native", "simplejpeg"}
    out = np.full((view.shown.height, view.shown.width, 3), 99, np.uint8)
    open_image(data, backend=name, **options).draw(view, out)  # type: ignore[arg-type]
    return out


def some_views(height: int, width: int, rng: np.random.Generator, *, num: int) -> Iterator[View]:
    """Yield views of all kinds: at and near the edges, shrunk and enlarged, with windows, mirrored."""
    for number in range(num):
        box = random_crop_box(height, width, rng, scale=(0.001, 1.0), ratio=(0.2, 5.0))
        if number % 4 == 0:
            box = Box(top=height - box.height, left=width - box.width, height=box.height, width=box.width)
        full = int(rng.integers(1, 150)), int(rng.integers(1, 150))
        window = random_crop_box(*full, rng, scale=(0.1, 1.0)) if number % 3 == 0 else None
        yield View(box=box, full=full, window=window, mirror=bool(number % 2))


def expected(whole: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    """Return the view of a fully decoded image, resized from its full size."""
    shown = view.shown
    resized = cv2.resize(view.box.of(whole), view.full[::-1], interpolation=cv2.INTER_LINEAR)
    pixels = shown.of(np.asarray(resized, np.uint8))
    return pixels[:, ::-1] if view.mirror else pixels


def is_full_size(view: View) -> bool:
    return view.box.height < 2 * view.full[0] or view.box.width < 2 * view.full[1]


def compare_crops(variety: str, *, num_photos: int, num_views: int) -> int:
    """Compare views that are decoded at full size with a full decode; return the number of views compared."""
    rng = np.random.default_rng(7)
    compared = 0
    for seed in range(num_photos):
        height, width = int(rng.integers(1, 400)), int(rng.integers(1, 400))
        data = make(variety, height, width, seed=seed)
        whole = simplejpeg.decode_jpeg(data)
        for view in some_views(height, width, rng, num=num_views):
            if is_full_size(view):
                for name in ("native", "simplejpeg"):
                    assert distance(draw(data, view, name), expected(whole, view)) <= 2, (name, seed, view)
                compared += 1
    return compared


@needs_native
@pytest.mark.parametrize("variety", ALL_VARIETIES)
def test_a_view_has_the_pixels_of_a_full_decode(variety: str) -> None:
    assert compare_crops(variety, num_photos=12, num_views=10) > 60


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("variety", ALL_VARIETIES)
def test_thousands_of_views_have_the_pixels_of_a_full_decode(variety: str) -> None:
    assert compare_crops(variety, num_photos=120, num_views=40) > 2400


@needs_native
@pytest.mark.parametrize("antialias", [False, True])
def test_every_length_is_resized_to_every_other(antialias: bool) -> None:
    data = make("444", 40, 40, seed=0)
    rng = np.random.default_rng(0)
    for length in range(1, 34):
        for full in range(1, 121):
            top, left = (int(start) for start in rng.integers(0, 41 - length, 2))
            box = Box(top=top, left=left, height=length, width=length)
            view = View(box=box, full=(full, full), antialias=antialias)
            assert distance(draw(data, view, "native"), draw(data, view, "simplejpeg")) <= 2, view


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("variety", ALL_VARIETIES)
def test_backends_agree_at_smaller_scales(variety: str, antialias: bool) -> None:
    rng = np.random.default_rng(8)
    for seed in range(8):
        height, width = int(rng.integers(100, 700)), int(rng.integers(100, 700))
        data = make(variety, height, width, seed=seed)
        for each in some_views(height, width, rng, num=8):
            full = (each.full[0] % 40 + 1, each.full[1] % 40 + 1)
            view = View(box=each.box, full=full, mirror=each.mirror, antialias=antialias)
            # The backends may round differently: one decodes fewer rows, or upsamples at another scale.
            assert distance(draw(data, view, "native"), draw(data, view, "simplejpeg")) <= 2, view


@needs_native
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_backends_agree_on_every_golden_file(name: str, antialias: bool) -> None:
    data = GOLDEN[name]
    for size in (6, 24, (20, 70)):
        middles = [ResizeCenterCrop(size, antialias=antialias, backend=each) for each in ("native", "simplejpeg")]
        assert distance(*(middle(data) for middle in middles)) <= 2
        crops = [RandomResizedCrop(size, antialias=antialias, backend=each) for each in ("native", "simplejpeg")]
        for seed in range(8):
            assert distance(*(crop(data, np.random.default_rng(seed)) for crop in crops)) <= 2


@pytest.mark.parametrize("name", ["auto", "simplejpeg"])
@pytest.mark.parametrize("variety", ["420", "444", "progressive", "restarts", "gray"])
def test_a_file_truncated_below_the_view_is_an_error(variety: str, name: str) -> None:
    data = make(variety, 200, 300, seed=0)
    view = View(box=Box(top=0, left=0, height=30, width=40), full=(30, 40))
    for length in (len(data) * 2 // 3, len(data) - 2, len(data) - 1):
        with pytest.raises(DecodeError, match="JPEG is truncated"):
            draw(data[:length], view, name)
    taken = draw(data[: len(data) - 2], view, name, limits=Limits(allow_truncated=True))
    assert distance(taken, draw(data, view, name)) <= 1


@pytest.mark.parametrize("name", ["auto", "simplejpeg"])
@pytest.mark.parametrize("variety", ["420", "progressive", "gray"])
def test_damage_inside_the_view_is_an_error(variety: str, name: str) -> None:
    data = make(variety, 200, 300, seed=0)
    place = len(data) // 2
    broken = data[:place] + b"\xff\xd3" + data[place + 2 :]
    for height in (200, 170):
        with pytest.raises(DecodeError, match=r"JPEG is damaged: .* premature end of data segment"):
            draw(broken, View(box=Box(top=0, left=0, height=height, width=300), full=(30, 40)), name)


@pytest.mark.parametrize("name", ["auto", "simplejpeg"])
def test_an_end_marker_at_a_restart_is_not_mistaken_for_the_end_of_a_crop(name: str) -> None:
    data = make("restarts", 200, 300, seed=0)
    restarts = [place for place in range(len(data)) if data[place] == 0xFF and 0xD0 <= data[place + 1] <= 0xD7]
    early = data[: restarts[len(restarts) // 3]] + bytes(40) + b"\xff\xd9"
    view = View(box=Box(top=0, left=0, height=170, width=300), full=(90, 110))
    assert distance(draw(early, view, name), expected(ImageDecoder()(early), view)) <= 2


@needs_native
def test_the_native_decoder_does_not_decode_below_the_view() -> None:
    data = make("420", 200, 300, seed=0)
    place = len(data) // 2
    broken = data[:place] + b"\xff\xd3" + data[place + 2 :]
    above = View(box=Box(top=0, left=0, height=30, width=40), full=(30, 40))
    np.testing.assert_array_equal(draw(broken, above), draw(data, above))


@pytest.mark.parametrize("name", ["auto", "simplejpeg"])
def test_bytes_between_segments_do_not_change_a_view(name: str) -> None:
    data = make("420", 200, 300, seed=0)
    place = data.index(b"\xff\xc0")
    view = View(box=Box(top=0, left=0, height=30, width=40), full=(30, 40))
    for junk in (b"odd", b"odd\xff\xd0"):
        odd = data[:place] + junk + data[place:]
        assert distance(draw(odd, view, name), draw(data, view, name)) <= 1


def test_an_image_decoded_by_opencv_is_cropped_alike_at_a_smaller_scale() -> None:
    data = bytearray(make("444", 160, 240, seed=3))
    data[data.index(b"\xff\xc0") + 11] = 0x31  # a subsampling that simplejpeg has no name for
    odd = bytes(data)
    view = View(box=Box(top=80, left=40, height=64, width=96), full=(16, 24))
    shown = cv2.resize(view.box.of(ImageDecoder()(odd)), (24, 16), interpolation=cv2.INTER_AREA)
    for name in ("auto", "simplejpeg"):
        assert np.abs(draw(odd, view, name).astype(int) - shown).mean() < 10


@pytest.mark.parametrize("name", ["auto", "simplejpeg"])
def test_antialias_is_pillows_filter(name: str) -> None:
    data = make("444", 220, 300, seed=5)
    whole = simplejpeg.decode_jpeg(data)
    for box, full in (((0, 0, 220, 300), (120, 110)), ((7, 13, 150, 201), (80, 110)), ((9, 8, 100, 60), (60, 90))):
        frame = Box(top=box[0], left=box[1], height=box[2], width=box[3])
        pillow = Image.fromarray(frame.of(whole)).resize(full[::-1], Image.Resampling.BILINEAR)
        view = View(box=frame, full=full, antialias=True)
        assert distance(draw(data, view, name), np.asarray(pillow)) <= 1
        window = Box(top=5, left=9, height=40, width=50)
        part = View(box=frame, full=full, window=window, mirror=True, antialias=True)
        assert distance(draw(data, part, name), window.of(np.asarray(pillow))[:, ::-1]) <= 1


@pytest.mark.parametrize("name", ["auto", "simplejpeg"])
def test_antialias_smooths_fine_stripes(name: str) -> None:
    stripes = np.where(np.arange(300) % 2, 255, 0).astype(np.uint8)
    data = encode(Image.fromarray(np.tile(stripes, (300, 1))), "JPEG", quality=95)
    view = View(box=Box(top=0, left=0, height=300, width=300), full=(160, 160))
    smooth = draw(data, View(box=view.box, full=view.full, antialias=True), name)
    assert draw(data, view, name).std() > 2.5 * smooth.std()


@needs_native
def test_threads_do_not_affect_each_other() -> None:
    files = [make(variety, 150, 200, seed=seed) for seed, variety in enumerate(ALL_VARIETIES)] + [
        GOLDEN["jpeg_truncated.jpg"]
    ]
    decode = RandomResizedCrop(64, limits=Limits(allow_truncated=True))

    def crop(number: int) -> NDArray[np.uint8]:
        return decode(files[number % len(files)], np.random.default_rng(number))

    alone = [crop(number) for number in range(100)]
    with ThreadPoolExecutor(4) as threads:
        for together, pixels in zip(threads.map(crop, range(100)), alone, strict=True):
            np.testing.assert_array_equal(together, pixels)


@needs_native
def test_other_threads_run_while_one_decodes() -> None:
    data = make("420", 1500, 2000, seed=0)
    out = np.empty((100, 100, 3), np.uint8)
    image = open_image(data)
    view = View(box=Box(top=0, left=0, height=1500, width=199), full=(100, 100))
    done = threading.Event()

    def work() -> None:
        for _ in range(5):
            image.draw(view, out)
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # no thread is asked to release the GIL; it must do so itself
    try:
        thread = threading.Thread(target=work)
        thread.start()
        turns = 0
        while not done.is_set() and turns < 10**7:
            turns += 1
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert turns > 1000


@needs_native
def test_memory_does_not_grow_with_the_number_of_images() -> None:
    files = [make(variety, 150, 200, seed=seed) for seed, variety in enumerate(ALL_VARIETIES)]
    files += [GOLDEN["jpeg_cmyk.jpg"], files[0][:2000], files[0].replace(b"\xff\xda", b"\xff\xdb"), files[5][:4000]]
    decode = RandomResizedCrop(64)

    def crop_all(rounds: int) -> int:
        for number in range(rounds):
            for data in files:
                try:
                    decode(data, np.random.default_rng(number))
                except DecodeError:
                    continue
        return anonymous_bytes(os.getpid())

    before = crop_all(20)
    assert crop_all(100) - before < MIB


def test_a_backend_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make("420", 150, 200, seed=0)
    pixels = RandomResizedCrop(64)(data, np.random.default_rng(0))
    calls: list[Any] = []

    def refuse(*arguments: Any) -> str:
        calls.append(arguments)
        return "not today"

    monkeypatch.setattr(
        backends, "NATIVE", SimpleNamespace(LIBJPEG_TURBO_VERSION="9.8.7", WITH_HUFFMAN=True, decode=refuse)
    )
    assert jpeg_backend() == "native (libjpeg-turbo 9.8.7)"
    ResizeCenterCrop(64, backend="simplejpeg")(data)
    plain = RandomResizedCrop(64, backend="simplejpeg")(data, np.random.default_rng(0))
    assert not calls
    np.testing.assert_array_equal(RandomResizedCrop(64, backend="native")(data, np.random.default_rng(0)), plain)
    assert len(calls) == 1
    assert distance(pixels, plain) <= 2


def test_the_native_backend_is_an_error_if_it_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "NATIVE", None)
    assert jpeg_backend() == "simplejpeg"
    assert RandomResizedCrop(64)(make("420", 150, 200, seed=0), np.random.default_rng(0)).shape == (64, 64, 3)
    with pytest.raises(ArgumentError, match=r"backend='native': the native decoder was not built"):
        RandomResizedCrop(64, backend="native")
    with pytest.raises(ArgumentError, match="backend must be one of 'auto', 'native', 'simplejpeg', got 'turbo'"):
        ResizeCenterCrop(64, backend="turbo")  # type: ignore[arg-type]


def test_a_png_is_drawn_by_the_same_rules_as_a_jpeg() -> None:
    pixels = photo(90, 120, np.random.default_rng(0))
    data = encode(Image.fromarray(pixels), "PNG")
    for view in some_views(90, 120, np.random.default_rng(1), num=30):
        np.testing.assert_array_equal(draw(data, view), expected(pixels, view))
    with Image.open(BytesIO(data)) as image:
        small = np.asarray(image.resize((30, 20), Image.Resampling.BILINEAR))
    whole = View(box=Box(top=0, left=0, height=90, width=120), full=(20, 30), antialias=True)
    assert distance(draw(data, whole), small) <= 1
