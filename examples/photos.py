"""Makes a small folder of photographs for the other examples, from photographs in scikit-image and scikit-learn.

python examples/photos.py train/
"""

import sys
from pathlib import Path

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from skimage import data
from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]


def make_photos(folder: Path, num_images: int = 240) -> Path:
    """Write `folder/<class>/<number>.jpg`: random crops of six photographs, one per class, resized to 500x375."""
    photos = {name: getattr(data, name)() for name in ("astronaut", "cat", "coffee", "rocket")}
    photos |= {name: load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
    rng = np.random.default_rng(0)
    for number in range(num_images):
        name = sorted(photos)[number % len(photos)]
        photo = photos[name]
        height, width = rng.integers(np.array(photo.shape[:2]) // 2, photo.shape[:2])
        top, left = rng.integers(0, photo.shape[0] - height + 1), rng.integers(0, photo.shape[1] - width + 1)
        crop = cv2.resize(photo[top : top + height, left : left + width], (500, 375))
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{number:04d}.jpg").write_bytes(simplejpeg.encode_jpeg(crop, quality=90))
    return folder


if __name__ == "__main__":
    make_photos(Path(sys.argv[1] if len(sys.argv) > 1 else "photos"))
