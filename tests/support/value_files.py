"""Files of masks and depth maps in all formats, each with the numbers that it stores."""

import struct
import zlib
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

__all__ = ["palette_png", "png", "value_files"]


def value_files(height: int, width: int, seed: int = 0) -> dict[str, tuple[bytes, NDArray[Any]]]:
    """Return files of random values by name, each with the values that it holds, [height, width]."""
    rng = np.random.default_rng(seed)
    files: dict[str, tuple[bytes, NDArray[Any]]] = {}
    for bits in (1, 2, 4, 8, 16):
        values = rng.integers(0, 1 << bits, (height, width)).astype(np.uint16 if bits == 16 else np.uint8)
        files[f"png_gray_{bits}"] = png(values, bits, color=0), values
        if bits <= 8:
            files[f"png_palette_{bits}"] = palette_png(values, bits), values
            files[f"tiff_palette_{bits}"] = _tiff(values, photometric="palette", colormap=_colors(rng)), values
    for bits, mode in ((1, "1"), (8, "P"), (8, "L")):
        values = rng.integers(0, 1 << bits, (height, width)).astype(np.uint8)
        image = Image.fromarray(values, "P" if mode == "P" else "L") if bits == 8 else Image.fromarray(values == 1)
        if mode == "P":
            image.putpalette(rng.integers(0, 256, 768).astype(np.uint8).tobytes())
        for kind in ("BMP", "TIFF"):
            file = BytesIO()
            image.save(file, kind)
            files[f"{kind.lower()}_{mode}"] = file.getvalue(), values
    numbers: tuple[Any, ...] = (np.uint8, np.uint16, np.int16, np.int32, np.uint32)
    for dtype in numbers:
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, (height, width), endpoint=True, dtype=dtype)
        files[f"tiff_{values.dtype}"] = _tiff(values), values
        files[f"tiff_{values.dtype}_big"] = _tiff(values, byteorder=">", compression="zlib"), values
        files[f"npy_{values.dtype}"] = npy(values), values
    for max_value in (9, 255, 1000, 65_535):
        values = rng.integers(0, max_value, (height, width), endpoint=True, dtype=np.uint16)
        stored = values.astype("u1" if max_value < 256 else ">u2").tobytes()
        files[f"pgm_{max_value}"] = f"P5\n# ids\n{width} {height}\n{max_value}\n".encode() + stored, values
    for name, values in {
        "bool": rng.integers(0, 2, (height, width)) == 1,
        "f4": rng.random((height, width), "f4"),
    }.items():
        files[f"npy_{name}"] = npy(values), values
    depths = rng.random((height, width), "f4")
    files["tiff_float32"] = _tiff(depths), depths
    return files


def npy(values: NDArray[Any]) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


def palette_png(values: NDArray[Any], bits: int = 8, *more: bytes) -> bytes:
    """Return a PNG whose ids have random colours, some of them transparent."""
    rng = np.random.default_rng(int(values.sum()))
    colors = rng.integers(0, 256, 3 << bits).astype(np.uint8).tobytes()
    return png(values, bits, 3, _chunk(b"PLTE", colors), _chunk(b"tRNS", colors[: 1 << bits]), *more)


def png(values: NDArray[Any], bits: int, color: int, *chunks: bytes, filters: Sequence[int] = (0,)) -> bytes:
    """Return a PNG with one channel, written bit by bit as its specification says; rows take turns with the filters."""
    height, width = values.shape
    shifts = np.arange(bits)[::-1]
    rows = np.packbits((values[..., None] >> shifts & 1).astype(np.uint8).reshape(height, -1), axis=1)
    scanlines = b"".join(
        _filtered(rows, number, filters[number % len(filters)], 1 + bits // 16) for number in range(height)
    )
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))
    body = _chunk(b"IDAT", zlib.compress(scanlines)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + body


def _filtered(rows: NDArray[np.uint8], number: int, kind: int, step: int) -> bytes:
    """Return a row with a filter of PNG before it: 0 to 4 for none, left, up, average and Paeth."""
    row = rows[number].astype(int)
    up = rows[number - 1].astype(int) if number else np.zeros_like(row)
    left, corner = (np.concatenate([np.zeros(step, int), each])[: len(row)] for each in (row, up))
    near = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
    paeth = np.where((near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], up, corner))
    guess: NDArray[np.int64] = [np.zeros_like(row), left, up, (left + up) // 2, paeth][kind]
    filtered: bytes = (row - guess).astype(np.uint8).tobytes()
    return bytes([kind]) + filtered


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _tiff(values: NDArray[Any], **options: Any) -> bytes:
    file = BytesIO()
    tifffile.imwrite(file, values, **options)
    return file.getvalue()


def _colors(rng: np.random.Generator) -> NDArray[np.uint16]:
    return rng.integers(0, 1 << 16, (3, 256)).astype(np.uint16)
