"""Photographs of all the shapes found in data sets, made from those in the wheels of scikit-image and scikit-learn."""

import importlib.util
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

__all__ = ["Photos", "distance", "encode", "make_photo_tree", "make_special_photos", "photo"]

Photos = dict[str, Path]

_FILES = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/rocket.jpg"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)


@cache
def _photographs() -> tuple[NDArray[np.uint8], ...]:
    """Return the photographs, each uint8 RGB [H, W, 3], from the wheels' files: importing the packages takes long."""
    photographs = []
    for package, file in _FILES:
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"pip install {package}"
        assert spec.submodule_search_locations
        with Image.open(Path(spec.submodule_search_locations[0]) / file) as image:
            photographs.append(np.asarray(image.convert("RGB")))
    return tuple(photographs)


def photo(height: int, width: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a random part of a random photograph, mirrored half of the time: uint8 RGB [height, width, 3]."""
    source = _photographs()[rng.integers(len(_FILES))]
    part = rng.uniform(0.5, 1.0) * min(source.shape[0] / height, source.shape[1] / width)
    crop_height, crop_width = max(1, int(height * part)), max(1, int(width * part))
    top = rng.integers(source.shape[0] - crop_height + 1)
    left = rng.integers(source.shape[1] - crop_width + 1)
    crop = source[top : top + crop_height, left : left + crop_width]
    crop = crop[:, ::-1] if rng.random() < 0.5 else crop
    shrinks = crop_height > height
    pixels = cv2.resize(crop, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC)
    return np.asarray(pixels, np.uint8)


def make_photo_tree(root: Path, *, num_images: int, num_classes: int, seed: int, grain: float = 0.0) -> None:
    """Write `root/<class>/<name>.JPEG` in ImageNet's sizes: about 500 x 375, some small, some large; 4:2:0 and 4:4:4.

    The same arguments write the same bytes. An image takes about 4 ms and has 50 kB on average. With a `grain` of 10
    (standard deviation of simulated sensor noise) it takes 12 ms and has 105 kB on average, as in ImageNet.
    """
    rng = np.random.default_rng(seed)
    folders = [root / f"n{label:08d}" for label in range(num_classes)]
    for folder in folders:
        folder.mkdir(parents=True)
    for number in range(num_images):
        label = number % num_classes
        pixels = photo(*_imagenet_size(rng), rng)
        if grain:
            noisy = pixels + rng.normal(0, grain, pixels.shape)
            pixels = np.clip(noisy, 0, 255).astype(np.uint8)
        jpeg = simplejpeg.encode_jpeg(
            pixels,
            quality=int(rng.integers(85, 96)),
            colorspace="RGB",
            colorsubsampling="444" if rng.random() < 0.25 else "420",
        )
        (folders[label] / f"{folders[label].name}_{number}.JPEG").write_bytes(jpeg)


def _imagenet_size(rng: np.random.Generator) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.6:
        sides = (375 + int(rng.integers(-45, 1)), 500)
    elif kind < 0.85:
        sides = (int(rng.integers(300, 501)), int(rng.integers(300, 501)))
    elif kind < 0.95:
        sides = (int(rng.integers(60, 200)), int(rng.integers(60, 260)))
    else:
        sides = (int(rng.integers(700, 1100)), int(rng.integers(900, 1500)))
    return sides if rng.random() < 0.7 else (sides[1], sides[0])


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    """Return `image` encoded by Pillow."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def make_special_photos(root: Path) -> Photos:
    """Write one file of each kind into the folder `root`; return their paths by kind.

    All files show the same photograph, stored 200 pixels high and 300 wide.
    """
    pixels = photo(200, 300, np.random.default_rng(0))
    rgb = Image.fromarray(pixels)
    gray = rgb.convert("L")
    rgba = rgb.copy()
    rgba.putalpha(gray)
    palette = rgb.quantize(64)
    jpeg = encode(rgb, "JPEG", quality=90)
    bgr16 = pixels[..., ::-1].astype(np.uint16) * 256 + np.arange(300, dtype=np.uint16)[:, None] % 256

    files = {
        "jpeg_420.jpg": encode(rgb, "JPEG", quality=90, subsampling="4:2:0"),
        "jpeg_422.jpg": encode(rgb, "JPEG", quality=90, subsampling="4:2:2"),
        "jpeg_444.jpg": encode(rgb, "JPEG", quality=90, subsampling="4:4:4"),
        "grayscale.jpg": encode(gray, "JPEG", quality=90),
        "cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG", quality=95),
        "progressive.jpg": encode(rgb, "JPEG", quality=90, progressive=True),
        "png_rgb.png": encode(rgb, "PNG"),
        "png_rgba.png": encode(rgba, "PNG"),
        "png_palette.png": encode(palette, "PNG"),
        "png_gray.png": encode(gray, "PNG"),
        "png_16bit.png": cv2.imencode(".png", bgr16)[1].tobytes(),
        "webp.webp": encode(rgb, "WEBP", quality=90),
        "webp_lossless.webp": encode(rgba, "WEBP", lossless=True),
        "bmp.bmp": encode(rgb, "BMP"),
        "tiff.tiff": encode(rgb, "TIFF", compression="tiff_lzw"),
        "gif.gif": encode(palette, "GIF"),
        "gif_animated.gif": encode(palette, "GIF", save_all=True, append_images=[palette.rotate(180)]),
        "truncated.jpg": jpeg[: len(jpeg) // 2],
        "truncated_png.png": encode(rgb, "PNG")[:-5000],
        "jpeg_named.png": jpeg,
        "empty.jpg": b"",
        "text.jpg": b"<html>404 Not Found</html>\n",
    }
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files[f"exif_{orientation}.jpg"] = encode(rgb, "JPEG", quality=90, exif=exif)

    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (root / name).write_bytes(data)
    return {name.partition(".")[0]: root / name for name in files}


def distance(a: NDArray[np.uint8], b: NDArray[Any]) -> int:
    """Return the largest difference between two images of the same shape."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())
