"""Files in every format and variety have the same pixels as in Pillow, whichever decoder is used."""

import zlib
from base64 import b64decode
from contextlib import suppress
from io import BytesIO

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps

from mpload.errors import DecodeError
from mpload.images.backends import Backend
from mpload.images.crops import random_crop_box
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.images.limits import Limits
from mpload.units import MIB
from tests.golden.make_formats import FOLDER, make_files
from tests.support.fuzz_decode import fuzz
from tests.support.photos import distance, photo

FILES = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
TRUNCATED = {"jpeg_truncated.jpg", "png_truncated.png", "ppm_truncated.ppm"}
WHOLE = sorted(FILES.keys() - TRUNCATED)
TOLERANCE = {"jpeg": 2, "webp": 2}  # other versions of a lossy codec round differently; lossless formats are exact


def tolerance(name: str) -> int:
    return 0 if "lossless" in name or "alpha" in name else TOLERANCE.get(name.partition("_")[0], 0)


def pillow(data: bytes) -> NDArray[np.uint8]:
    with Image.open(BytesIO(data)) as image:
        if image.mode.startswith("I;16"):  # `convert` would clip these values at 255
            upper = (np.asarray(image) >> 8).astype(np.uint8)
            return np.dstack([upper] * 3)
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def test_the_script_makes_exactly_the_golden_files() -> None:
    assert make_files().keys() == FILES.keys()


@pytest.mark.parametrize("name", WHOLE)
def test_pixels_are_the_same_as_pillows(name: str) -> None:
    assert distance(ImageDecoder()(FILES[name]), pillow(FILES[name])) <= tolerance(name)


@pytest.mark.parametrize("name", WHOLE)
def test_all_files_show_the_same_photograph(name: str) -> None:
    """Pillow might be wrong in the same way, so each file is also compared with the pixels that it was made from."""
    expected = pillow(FILES["png_rgb.png"])
    if "gray" in name or "white" in name:
        expected = np.dstack([np.asarray(Image.fromarray(expected).convert("L"))] * 3)
    orientation = int(name[10]) if name.startswith("jpeg_exif") else 1
    if orientation != 1:
        turned = Image.fromarray(expected)
        turned.getexif()[0x0112] = orientation
        expected = np.asarray(ImageOps.exif_transpose(turned))
    pixels = ImageDecoder()(FILES[name])
    assert pixels.shape == expected.shape
    mean = np.abs(pixels.astype(int) - expected).mean()
    assert mean < (100 if name == "png_black_white.png" else 12)


@pytest.mark.parametrize("name", WHOLE)
def test_crops_are_cut_from_the_same_pixels(name: str) -> None:
    whole = ImageDecoder()(FILES[name])
    height, width, _ = whole.shape
    for seed in range(5):
        rng = np.random.default_rng(seed)
        box = random_crop_box(height, width, rng)
        expected = cv2.resize(box.of(whole), (36, 36), interpolation=cv2.INTER_LINEAR)
        expected = expected[:, ::-1] if rng.random() < 0.5 else expected
        assert distance(RandomResizedCrop(36)(FILES[name], np.random.default_rng(seed)), expected) <= 3
    square = ResizeCenterCrop(40)(FILES[name])
    side = round(40 * 256 / 224)
    full = (side * width // height, side) if width > height else (side, side * height // width)
    resized = cv2.resize(whole, full, interpolation=cv2.INTER_LINEAR)
    top, left = round((full[1] - 40) / 2), round((full[0] - 40) / 2)
    assert distance(square, resized[top : top + 40, left : left + 40]) <= 3


@pytest.mark.parametrize("name", sorted(TRUNCATED))
def test_a_truncated_file_is_an_error(name: str) -> None:
    for decoder in (ImageDecoder(), ResizeCenterCrop(20)):
        with pytest.raises(DecodeError, match="truncated"):
            decoder(FILES[name])


def test_a_truncated_jpeg_shows_the_same_pixels_as_in_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = FILES["jpeg_truncated.jpg"]
    pixels = ImageDecoder(limits=Limits(allow_truncated=True))(data)
    assert (pixels[-8:, -8:] == 128).all()
    assert distance(pixels[:16], pillow(data)[:16]) <= 2
    whole = ImageDecoder()(FILES["jpeg_420.jpg"])
    np.testing.assert_array_equal(pixels[:8], whole[:8])


def test_a_colour_profile_is_ignored() -> None:
    for kind, plain in (("jpeg_icc.jpg", "jpeg_420.jpg"), ("png_icc.png", "png_rgb.png")):
        np.testing.assert_array_equal(ImageDecoder()(FILES[kind]), ImageDecoder()(FILES[plain]))


def test_the_content_determines_the_format_not_the_name() -> None:
    np.testing.assert_array_equal(ImageDecoder()(FILES["jpeg_named.png"]), ImageDecoder()(FILES["jpeg_420.jpg"]))


def test_a_damaged_file_gives_an_image_or_a_decode_error() -> None:
    found = fuzz(num=5000, seed=0)
    assert 500 < found.num_images < 4500  # otherwise the damage is too slight or too severe to test anything
    assert found.growth_bytes < 16 * MIB


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_an_alpha_is_dropped_and_does_not_change_the_colours(kind: str) -> None:
    pixels = np.full((16, 16, 4), (200, 120, 40, 255), np.uint8)
    pixels[:, :8, 3], pixels[:8, :, 3] = 64, 0
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind, lossless=True, exact=True)
    for data in (file.getvalue(), bytearray(file.getvalue())):
        np.testing.assert_array_equal(ImageDecoder()(data), pixels[..., :3])


@pytest.mark.parametrize("has_own_picture", [False, True])
def test_of_an_animated_png_the_picture_is_read_that_all_readers_show(has_own_picture: bool) -> None:
    """OpenCV crashes when it reads a damaged animation, and does not notice damage to that picture."""
    frames = [Image.fromarray(photo(40, 56, np.random.default_rng(number))) for number in range(3)]
    file = BytesIO()
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:], default_image=has_own_picture)
    data = file.getvalue()
    assert np.array_equal(ImageDecoder()(data), np.asarray(frames[0]))
    for at in np.random.default_rng(0).integers(8, len(data), 300).tolist():
        damaged = data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]
        with suppress(DecodeError):
            assert np.array_equal(ImageDecoder()(damaged), np.asarray(frames[0]))


LOSSLESS = zlib.decompress(
    b64decode(  # a lossless JPEG (frame 0xC3); neither Pillow nor OpenCV writes them. red: the column, green: the row
        "eNrt0iEKAmEQxfH3sWWDCF/QM6i3cEEWbH7oAZQ1ewSDzbwnEDas19BuVQ9hN8io0ezE/4QpAw8e87OrPdQdV5vVWpW+YyfFXEvtshRVRhVRdlZfIQ"
        "T9TMjtrk6WVKrQ53Z5vqapboaea+Scl+qFc14zOHqXns29Sx9a789MvEunvXfppgdHOMIRjnCEIxzhCEc4whGOcIQjHOEIRzjCEY5whCMc4QhHOMIR"
        "jv+trd3eaClwPQ=="
    )
)


@pytest.mark.parametrize("backend", ["auto", "simplejpeg"])
@pytest.mark.parametrize("size", [6, 12, 24, 48])
def test_a_lossless_jpeg_is_decoded_at_full_size(size: int, backend: Backend) -> None:
    """At a smaller scale, libjpeg-turbo 3 writes out of bounds."""
    try:
        expected = ImageDecoder()(LOSSLESS)
    except DecodeError:
        pytest.skip("libjpeg-turbo is older than 3.0")
    assert np.array_equal(expected[..., :2], np.stack(np.meshgrid(range(131), range(97)), axis=-1))
    for _ in range(20):
        pixels = ResizeCenterCrop(size, backend=backend)(LOSSLESS)
    assert distance(pixels, ResizeCenterCrop(size)(_png(expected))) <= 2


@pytest.mark.parametrize("name", ["jpeg_garbage", "jpeg_clean"])
def test_crops_of_jpegs_that_opencv_decodes_are_in_their_place(name: str) -> None:
    """libjpeg-turbo warns of bytes between two segments, so OpenCV decodes such a file, at full size."""
    columns, rows = np.meshgrid(range(166), range(97))
    ramp = np.dstack([columns + 8, rows + 8, np.full_like(rows, 128)]).astype(np.uint8)
    _, encoded = cv2.imencode(".jpg", ramp[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 98])
    data = encoded.tobytes()
    if name == "jpeg_garbage":
        data = data[:20] + bytes(3) + data[20:]
    assert distance(ResizeCenterCrop(10)(data), ResizeCenterCrop(10)(_png(ramp))) <= 2


def _png(pixels: NDArray[np.uint8]) -> bytes:
    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()
