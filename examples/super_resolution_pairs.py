"""Super-resolution: each sample has a small and a large image, and both are cropped to the same region.

python examples/super_resolution_pairs.py
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from photos import make_photos

import mpload

SCALE = 4
PART = 4  # the crop's height and width are a quarter of the image's


class SameCrop:
    """Crop a random region at multiples of 1/24 of each side, which are whole pixels in both images of a pair."""

    makes_images = True  # results are images, so batches have channels first

    def __init__(self) -> None:
        self._decode = mpload.ImageDecoder()

    def __call__(self, data: bytes, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return uint8 RGB [height / 4, width / 4, 3]; draws two numbers for every image."""
        image = self._decode(data)
        places = rng.integers(0, 24 - 24 // PART, size=2, endpoint=True)
        (top, left), (height, width) = places * image.shape[:2] // 24, np.array(image.shape[:2]) // PART
        return image[top : top + height, left : left + width]


def make_pairs(folder: Path, num_images: int) -> Path:
    """Write pairs of images of 480x384 and 120x96 pixels, and an index with two path columns."""
    lines = []
    for photo in sorted(make_photos(folder / "photos", num_images).rglob("*.jpg")):
        large = cv2.resize(np.asarray(cv2.imread(str(photo))), (480, 384), interpolation=cv2.INTER_AREA)
        small = cv2.resize(large, (120, 96), interpolation=cv2.INTER_AREA)
        for size, pixels in (("large", large), ("small", small)):
            (folder / size).mkdir(exist_ok=True)
            cv2.imwrite(str(folder / size / f"{photo.stem}.png"), pixels)
        lines.append(f"small/{photo.stem}.png\tlarge/{photo.stem}.png\n")
    index = folder / "train.txt"
    index.write_text("#mpload 1\n#columns small:path large:path\n" + "".join(lines))
    return index


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        index = make_pairs(Path(name), 96)
        dataset = mpload.MPDataset(index, decode=SameCrop(), batch_size=16, shuffle=True)
        worst = 0.0
        with mpload.MPLoader(dataset, num_workers=2) as loader:
            for small, large in loader:  # uint8 [16, 3, 24, 30] and [16, 3, 96, 120]
                shrunk = torch.nn.functional.avg_pool2d(large.float(), SCALE)
                worst = max(worst, float((shrunk - small.float()).abs().max()))
        if worst > 1:  # rounding explains a difference of 1
            raise SystemExit(f"the crops of a pair differ by {worst}")
        print(f"6 batches of {list(small.shape)} and {list(large.shape)}: the same region in both images of each pair")


if __name__ == "__main__":
    main()
