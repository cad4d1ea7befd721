"""Write one small file of each image format and variety into tests/golden/formats.

python -m tests.golden.make_formats

All files show the same photograph, stored 40 pixels high and 56 wide. They are committed, so that they stay the same
whatever later versions of the encoders write. This script only adds files that are missing.
"""

import zlib
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from tests.support.photos import encode, photo

FOLDER = Path(__file__).with_name("formats")
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""The passes of an interlaced PNG: first row, first column, step of rows, step of columns."""


def make_files() -> dict[str, bytes]:
    """Return the contents of each file, by name."""
    pixels = photo(40, 56, np.random.default_rng(20))
    rgb = Image.fromarray(pixels)
    gray, cmyk, palette = rgb.convert("L"), rgb.convert("CMYK"), rgb.quantize(16)
    rgba, gray_alpha = rgb.copy(), gray.copy()
    rgba.putalpha(gray)
    gray_alpha.putalpha(gray)
    deep = pixels.astype(np.uint16) * 256 + np.arange(56, dtype=np.uint16)[:, None]
    jpeg = encode(rgb, "JPEG", quality=90)
    profile = _red_for_blue()
    files = {
        "jpeg_420.jpg": jpeg,
        "jpeg_422.jpg": encode(rgb, "JPEG", quality=90, subsampling="4:2:2"),
        "jpeg_444.jpg": encode(rgb, "JPEG", quality=90, subsampling="4:4:4"),
        "jpeg_progressive.jpg": encode(rgb, "JPEG", quality=90, progressive=True),
        "jpeg_gray.jpg": encode(gray, "JPEG", quality=90),
        "jpeg_restarts.jpg": encode(rgb, "JPEG", quality=90, restart_marker_blocks=3),
        "jpeg_adobe_rgb.jpg": encode(rgb, "JPEG", quality=90, keep_rgb=True),
        "jpeg_cmyk.jpg": encode(cmyk, "JPEG", quality=95),
        "jpeg_ycck.jpg": _ycck(cmyk),
        "jpeg_icc.jpg": encode(rgb, "JPEG", quality=90, icc_profile=profile),
        "jpeg_truncated.jpg": jpeg[: len(jpeg) * 3 // 5],
        "jpeg_named.png": jpeg,
        "png_rgb.png": encode(rgb, "PNG"),
        "png_rgba.png": encode(rgba, "PNG"),
        "png_palette.png": encode(palette, "PNG"),
        "png_palette_transparent.png": encode(palette, "PNG", transparency=3),
        "png_gray.png": encode(gray, "PNG"),
        "png_gray_alpha.png": encode(gray_alpha, "PNG"),
        "png_black_white.png": encode(rgb.convert("1"), "PNG"),
        "png_16bit.png": _opencv(".png", deep[..., ::-1]),
        "png_16bit_gray.png": _opencv(".png", np.asarray(gray).astype(np.uint16) * 256 + 77),
        "png_interlaced.png": _interlaced(pixels),
        "png_icc.png": encode(rgb, "PNG", icc_profile=profile),
        "png_truncated.png": encode(rgb, "PNG")[:-700],
        "webp_lossy.webp": encode(rgb, "WEBP", quality=90),
        "webp_lossless.webp": encode(rgb, "WEBP", lossless=True),
        "webp_alpha.webp": encode(rgba, "WEBP", lossless=True, exact=True),
        "bmp_rgb.bmp": encode(rgb, "BMP"),
        "bmp_palette.bmp": encode(palette, "BMP"),
        "bmp_gray.bmp": encode(gray, "BMP"),
        "tiff_plain.tiff": encode(rgb, "TIFF"),
        "tiff_lzw.tiff": encode(rgb, "TIFF", compression="tiff_lzw"),
        "tiff_gray.tiff": encode(gray, "TIFF", compression="tiff_adobe_deflate"),
        "pgm_gray.pgm": encode(gray, "PPM"),
        "ppm.ppm": encode(rgb, "PPM"),
        "ppm_comments.ppm": b"P6 # a comment\n#another\r\n56\t\v40 #\n255\f" + pixels.tobytes(),
        "ppm_maximum_100.ppm": b"P6\n56 40\n100\n" + (pixels.astype(int) * 100 // 255).astype(np.uint8).tobytes(),
        "ppm_16bit.ppm": b"P6\n56 40\n65535\n" + deep.astype(">u2").tobytes(),
        "ppm_truncated.ppm": encode(rgb, "PPM")[:-1],
        "gif.gif": encode(palette, "GIF"),
        "gif_animated.gif": encode(palette, "GIF", save_all=True, append_images=[palette.rotate(180)]),
    }
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files[f"jpeg_exif_{orientation}.jpg"] = encode(rgb, "JPEG", quality=90, exif=exif)
    return files


def _red_for_blue() -> bytes:
    """Return a colour profile that swaps red and blue, so that it shows at a glance if a decoder applies it."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"?XYZ").replace(b"bXYZ", b"rXYZ").replace(b"?XYZ", b"bXYZ")


def _opencv(suffix: str, pixels: NDArray[np.uint16]) -> bytes:
    return cv2.imencode(suffix, np.ascontiguousarray(pixels))[1].tobytes()


def _ycck(cmyk: Image.Image) -> bytes:
    """Return `cmyk` stored as YCCK. Pillow can only write CMYK, so it is given the converted channels as CMYK."""
    planes = np.asarray(cmyk)
    inks = Image.fromarray(np.ascontiguousarray(planes[..., :3])).convert("YCbCr")
    channels = np.dstack([np.asarray(inks), planes[..., 3]])
    jpeg = encode(Image.frombytes("CMYK", cmyk.size, _as_pillow_inverts(channels).tobytes()), "JPEG", quality=95)
    marker = jpeg.index(b"Adobe") + len(b"Adobe") + 6
    assert jpeg[marker] == 0  # no colour transform
    return jpeg[:marker] + b"\x02" + jpeg[marker + 1 :]


def _as_pillow_inverts(channels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Invert all channels but black, since Pillow writes 255 - x and readers expect only black to be inverted."""
    return np.dstack([255 - channels[..., :3], channels[..., 3]])


def _interlaced(pixels: NDArray[np.uint8]) -> bytes:
    height, width, _ = pixels.shape
    rows = b"".join(
        b"\0" + row.tobytes()
        for top, left, down, right in _ADAM7
        for row in np.ascontiguousarray(pixels[top::down, left::right])
    )
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 1])
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big") for name, body in chunks
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, data in make_files().items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(data)
