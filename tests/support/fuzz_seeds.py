"""Small JPEGs of all kinds that the native decoder tells apart, for `fuzz_native.c` to damage.

python -m tests.support.fuzz_seeds FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image

from tests.golden.make_formats import FOLDER
from tests.support.headers import exif, with_segments
from tests.support.jpegs import in_three_scans
from tests.support.photos import encode, make_photo_tree, photo

__all__ = ["write_images_of_all_kinds", "write_seeds"]


def write_seeds(folder: Path) -> list[Path]:
    """Write the files into `folder`, which is made; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("jpeg*"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name, data in _made().items():
        (folder / f"{name}.jpg").write_bytes(data)
    return sorted(folder.iterdir())


def write_images_of_all_kinds(folder: Path) -> None:
    """Write photos of all kinds into `folder`, some of them damaged, files of other formats, and 8 good photos."""
    write_seeds(folder)
    for path in FOLDER.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    make_photo_tree(folder / "plain", num_images=8, num_classes=1, seed=0)


def _made() -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    rng = np.random.default_rng(0)
    for subsampling in ("444", "422", "420", "440", "411"):
        for quality in (30, 90, 100):
            pixels = photo(61, 83, rng)
            made[f"{subsampling}_{quality}"] = simplejpeg.encode_jpeg(
                pixels, quality=quality, colorsubsampling=subsampling
            )
    image = Image.fromarray(photo(70, 90, rng))
    gray, inks = image.convert("L"), image.convert("CMYK")
    noise = Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8))
    made["gray"] = encode(gray, "JPEG", quality=85)
    made["gray_restarts"] = encode(gray, "JPEG", quality=85, restart_marker_blocks=5)
    made["restarts"] = encode(image, "JPEG", quality=85, restart_marker_blocks=3)
    made["restart_rows"] = encode(image, "JPEG", quality=95, restart_marker_rows=1)
    made["three_scans"] = in_three_scans(made["gray"])
    made["three_scans_no_table"] = in_three_scans(made["gray"], table=3)
    made["optimised"] = encode(image, "JPEG", quality=80, optimize=True)
    made["optimised_noise"] = encode(noise, "JPEG", quality=100, optimize=True)
    made["noise"] = encode(noise, "JPEG", quality=100)
    made["rgb"] = encode(image, "JPEG", quality=90, keep_rgb=True)
    made["progressive"] = encode(image, "JPEG", quality=85, progressive=True)
    made["cmyk"] = encode(inks, "JPEG", quality=85)
    made["one_pixel"] = encode(image.crop((0, 0, 1, 1)), "JPEG")
    plain = made["420_90"]
    frame, tables, scan = (plain.index(bytes([0xFF, marker])) for marker in (0xC0, 0xC4, 0xDA))
    made["twelve_bits"] = plain[: frame + 4] + b"\x0c" + plain[frame + 5 :]
    made["extended"] = plain[: frame + 1] + b"\xc1" + plain[frame + 2 :]
    made["no_codes"] = plain[: tables + 5] + bytes(16) + plain[tables + 21 :]  # then its symbols are damage, too
    made["no_tables"] = plain[:tables] + plain[scan:]
    made["empty_table"] = plain[:scan] + b"\xff\xc4\x00\x13\x10" + bytes(16) + plain[scan:]
    for orientation in (1, 3, 6, 8):
        made[f"turned_{orientation}"] = with_segments(plain, exif(orientation, little_endian=orientation % 2 == 1))
    made["no_end"] = plain[:-2]
    made["end_inside"] = plain[: scan + 400] + b"\xff\xd9" + plain[scan + 400 :]
    made["fill_bytes"] = plain[:-2] + b"\xff\xff\xff\xd9"
    return made


if __name__ == "__main__":
    write_seeds(Path(sys.argv[1]))
