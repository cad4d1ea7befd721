"""Photos with masks, depth maps, boxes and points, some of them turned by EXIF, and the files that break a sample."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from mpload import Boxes, Keypoints, Letterbox, Mask, RandomCrop, RandomResizedCrop
from tests.support.photos import photo
from tests.support.typed_decoders import Shown
from tests.support.value_files import palette_png

NUM_ANNOTATED = 23
_COLUMNS = "image:path mask:path places:path boxes:path yolo:path points:str label:int word:str"
CROPS: dict[str, Any] = {
    "RandomResizedCrop": RandomResizedCrop(32),
    "Letterbox": Letterbox((40, 32), flip=0.5),
    "RandomCrop": RandomCrop(48, padding=8, upside_down=0.5),
}
IGNORE = 255


def annotated_index(folder: Path) -> Path:
    """Write photos and what belongs to them, and an index of all. Pixel (x, y) of `places` holds 256 * y + x."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(NUM_ANNOTATED):
        height, width = 70 + number % 5, 90
        exif = Image.Exif()
        exif[0x0112] = orientation = (1, 6, 3, 8, 5)[number % 5]
        turned = (width, height) if orientation >= 5 else (height, width)
        Image.fromarray(photo(*turned, rng)).save(folder / f"{number}.jpg", exif=exif)
        ids = rng.choice(np.array(ids_of(number), np.uint8), (height // 2, width // 2))
        (folder / f"{number}.mask.png").write_bytes(palette_png(ids))
        rows, columns = np.mgrid[:height, :width]
        cv2.imwrite(str(folder / f"{number}.places.png"), (256 * rows + columns).astype(np.uint16))
        centers, sides = rng.random((2, number % 4, 2))  # some boxes stick out of the image
        corners = np.concatenate([centers - sides / 2, centers + sides / 2], axis=1) * (2 * [width, height])
        objects = [{"bbox": [*box[:2], *(box[2:] - box[:2])], "category_id": n} for n, box in enumerate(corners)]
        (folder / f"{number}.json").write_text(json.dumps(objects, default=list))
        text = "".join(
            f"{n} {c[0]!r} {c[1]!r} {s[0]!r} {s[1]!r}\n"
            for n, (c, s) in enumerate(zip(centers.tolist(), sides.tolist(), strict=True))
        )
        (folder / f"{number}.txt").write_text(text)
        points = corners[:, :2].tolist()
        files = "\t".join(f"{number}.{kind}" for kind in ("jpg", "mask.png", "places.png", "json", "txt"))
        lines.append(f"{files}\t{json.dumps(points)}\t{number}\tword {number}\n")
    path = folder / "annotated.txt"
    path.write_text(f"#mpload 1\n#columns {_COLUMNS}\n{''.join(lines)}")
    return path


def ids_of(number: int) -> list[int]:
    """Return the ids in the mask of a sample."""
    return [number, number + 30, number + 60]


def annotated_decode(crop: str) -> dict[str, Any]:
    """Return a decoder for each column; the geometry is that of `CROPS[crop]`."""
    return {
        "boxes": Boxes("xywh", min_side=0),
        "yolo": Boxes("yolo", min_side=0),
        "image": CROPS[crop],
        "mask": Mask(ignore=IGNORE),
        "places": Mask(ignore=-1),
        "points": Keypoints(),
        "shown": Shown(),
    }


BROKEN: dict[str, list[Callable[[Path], object]]] = {
    "image": [lambda folder: (folder / "5.jpg").write_bytes((folder / "5.jpg").read_bytes()[:400])],
    "mask": [
        lambda folder: (folder / "5.mask.png").unlink(),
        lambda folder: (folder / "5.mask.png").write_bytes(b""),
        lambda folder: (folder / "5.mask.png").write_bytes((folder / "5.mask.png").read_bytes()[:-30]),
        lambda folder: (folder / "5.mask.png").write_bytes((folder / "5.jpg").read_bytes()),
    ],
    "places": [lambda folder: cv2.imwrite(str(folder / "5.places.png"), np.zeros((90, 70), np.uint8))],
    "boxes": [
        lambda folder: (folder / "5.json").unlink(),
        lambda folder: (folder / "5.json").write_text("[" * 100_000),
        lambda folder: (folder / "5.json").write_text('[{"bbox": [1, 2, -3, 4], "category_id": 1}]'),
        lambda folder: (folder / "5.json").write_text('[{"bbox": [1, 2, 3, 4]}]'),
    ],
    "yolo": [lambda folder: (folder / "5.txt").write_text("0 0.5 0.5 nan 0.1")],
}
"""By column: ways to break sample 5, whose photo has the size 90 x 70."""
