"""Augment with albumentations: the same pixels for the same (seed, epoch, sample), in whichever worker.

python examples/augment_albumentations.py
"""

import tempfile
from pathlib import Path

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812
import torch
from photos import make_photos
from torch.utils.data import DataLoader

import mpload

AUGMENT = A.Compose([A.ColorJitter(p=0.8), A.GaussianBlur(p=0.2), A.CoarseDropout(p=0.3), A.Normalize()])


def dataset(index: Path) -> mpload.MPDataset:
    return mpload.MPDataset(
        index, decode=mpload.RandomResizedCrop(96), transform=AUGMENT, batch_size=16, shuffle=True, seed=7
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        index = mpload.build_index(make_photos(Path(name, "train"), 96), Path(name, "train.txt"))
        here = [images for images, _ in dataset(index)]  # float32 [16, 3, 96, 96] each
        with mpload.MPLoader(dataset(index), num_workers=2) as loader:
            there = [images.clone() for images, _ in loader]
        stock = [images for images, _ in DataLoader(dataset(index), batch_size=None, num_workers=2)]
        for one, two, three in zip(here, there, stock, strict=True):
            if not (torch.equal(one, two) and torch.equal(one, three)):
                raise SystemExit("augmentation depends on the process it runs in")
        print(f"{len(here)} batches of {tuple(here[0].shape)}, {here[0].dtype}: the same in one process and in workers")


if __name__ == "__main__":
    main()
