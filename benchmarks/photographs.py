"""Photographs with as many bytes as ImageNet's, and lists that repeat them for epochs longer than a measurement."""

import random
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

__all__ = ["NUM_CLASSES", "photographs", "write_listing"]

ROOT = Path(__file__).parents[1]
NUM_SEEDS, CLASSES_EACH = 16, 8
NUM_CLASSES = NUM_SEEDS * CLASSES_EACH


def photographs(data: Path, num: int) -> Path:
    """Make the photographs unless they exist; return their folder."""
    folder = data / f"photos-{num}"
    done = folder / "done"
    if not done.exists():
        if folder.exists():  # not complete
            shutil.rmtree(folder)
        with ProcessPoolExecutor() as pool:
            list(pool.map(make_photographs, [folder] * NUM_SEEDS, [num // NUM_SEEDS] * NUM_SEEDS, range(NUM_SEEDS)))
        done.touch()
    return folder


def make_photographs(folder: Path, num: int, seed: int) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.support.photos import make_photo_tree

    make_photo_tree(folder / str(seed), num_images=num, num_classes=CLASSES_EACH, seed=seed, grain=10)


def write_listing(folder: Path, num_lines: int) -> Path:
    """Write a shuffled list that names each photograph as often as needed."""
    classes = sorted(path for path in folder.glob("*/*") if path.is_dir())
    lines = [
        f"{path.relative_to(folder)} {label}\n" for label, each in enumerate(classes) for path in sorted(each.iterdir())
    ]
    repeated = lines * -(-num_lines // len(lines))
    random.Random(0).shuffle(repeated)
    listing = folder / "listing.txt"
    listing.write_text("".join(repeated), encoding="utf-8")
    return listing
