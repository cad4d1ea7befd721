"""Augment with albumentations: the same (seed, epoch, sample) gives the same pixels in every process.

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
        in_process = [images for images, _ in dataset(index)]  # float32 [16, 3, 96, 96] each
        with mpload.MPLoader(dataset(index), num_workers=2) as loader:
            in_workers = [images.clone() for images, _ in loader]
        by_torch = [images for images, _ in DataLoader(dataset(index), batch_size=None, num_workers=2)]
        for one, two, three in zip(in_process, in_workers, by_torch, strict=True):
            if not (torch.equal(one, two) and torch.equal(one, three)):
                raise SystemExit("augmentation depends on the process it runs in")
        first = in_process[0]
        print(f"{len(in_process)} batches of {tuple(first.shape)}, {first.dtype}: the same with and without workers")


if __name__ == "__main__":
    main()
