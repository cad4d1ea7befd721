"""Photographs with masks and boxes, as data sets for segmentation and detection have them."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.photos import photo

__all__ = ["HEIGHT", "NUM_CLASSES", "WIDTH", "write_data"]

HEIGHT, WIDTH, NUM_CLASSES = 375, 500, 20
_GRAIN, _QUALITY, _OUTLINE = 12, 92, 255
_MEAN_OBJECTS = 7  # as in COCO


def write_data(folder: Path, num_samples: int) -> None:
    """Write so many photographs, masks and files of boxes, and indexes of them.

    A photograph is a JPEG of about 100 kB. A mask is a PNG with a palette, of the kind that Pascal VOC has: ids of
    classes, and 255 around each object; `gray` holds the same ids in PNGs without a palette, and `small` those of every
    other pixel. Boxes are JSON: a list of objects as COCO has them.
    """
    rng = np.random.default_rng(0)
    for kind in ("photos", "masks", "gray", "small", "boxes"):
        (folder / kind).mkdir()
    lines = []
    for number in range(num_samples):
        noisy = photo(HEIGHT, WIDTH, rng) + rng.normal(0, _GRAIN, (HEIGHT, WIDTH, 3))
        jpeg = simplejpeg.encode_jpeg(np.clip(noisy, 0, 255).astype(np.uint8), quality=_QUALITY, colorsubsampling="420")
        mask, objects = _objects(rng)
        lines.append((f"photos/{number}.jpg", f"masks/{number}.png", f"boxes/{number}.json"))
        image, mask_path, boxes = (folder / path for path in lines[-1])
        image.write_bytes(jpeg)
        _write_palette(mask_path, mask)
        _write_palette(folder / "small" / mask_path.name, np.ascontiguousarray(mask[::2, ::2]))
        cv2.imwrite(str(folder / "gray" / mask_path.name), mask)
        boxes.write_text(json.dumps(objects), encoding="utf-8")
    cells = "".join("\t".join(line) + "\n" for line in lines)
    (folder / "typed.txt").write_text(f"#mpload 1\n#columns image:path mask:path boxes:path\n{cells}", encoding="utf-8")
    small = cells.replace("\tmasks/", "\tsmall/")
    (folder / "small.txt").write_text(f"#mpload 1\n#columns image:path mask:path boxes:path\n{small}", encoding="utf-8")
    images = "".join(f"{image}\n" for image, _, _ in lines)
    (folder / "images.txt").write_text(f"#mpload 1\n#columns image:path\n{images}", encoding="utf-8")


def _objects(rng: np.random.Generator) -> tuple[NDArray[np.uint8], list[dict[str, object]]]:
    """Return a mask of ellipses, and their boxes in pixels: left, top, width, height."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    objects: list[dict[str, object]] = []
    for _ in range(1 + rng.poisson(_MEAN_OBJECTS - 1)):
        height, width = (int(rng.integers(side // 12, side // 2)) for side in (HEIGHT, WIDTH))
        top, left = int(rng.integers(HEIGHT - height)), int(rng.integers(WIDTH - width))
        label = int(rng.integers(1, NUM_CLASSES + 1))
        centre, axes = (left + width // 2, top + height // 2), (width // 2, height // 2)
        cv2.ellipse(mask, centre, axes, 0, 0, 360, label, thickness=-1)
        cv2.ellipse(mask, centre, axes, 0, 0, 360, _OUTLINE, thickness=3)
        box = [left + round(rng.random(), 2), top + round(rng.random(), 2), width, height]
        objects.append({"bbox": box, "category_id": label, "area": height * width, "iscrowd": 0})
    return mask, objects


def _write_palette(path: Path, mask: NDArray[np.uint8]) -> None:
    image = Image.fromarray(mask, "P")
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    image.save(path, optimize=True)
