"""Train from easy to hard: measure the loss of each sample, then sort the samples by it.

python examples/train_curriculum.py                  # makes photos
python examples/train_curriculum.py train.txt        # an index of your own, with a column of integers called label
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from photos import make_photos
from torch.nn import functional

import mpload

BATCH_SIZE = 16


def dataset_of(
    index: mpload.Index, shuffle: bool | mpload.Curriculum
) -> mpload.MPDataset[tuple[torch.Tensor, torch.Tensor]]:
    return mpload.MPDataset(
        index, decode=mpload.ResizeCenterCrop(32), batch_size=BATCH_SIZE, shuffle=shuffle, tail="ragged"
    )


def main(index: mpload.Index, losses_path: Path) -> None:
    num_classes = int(index.labels[:].max()) + 1
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, num_classes))

    def losses_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images.contiguous().float() / 255), labels, reduction="none")

    with mpload.MPLoader(dataset_of(index, shuffle=False), num_workers=2) as loader, torch.no_grad():
        losses = torch.cat([losses_of(*batch) for batch in loader])  # in the order of the index
    np.save(losses_path, losses.numpy())

    order = mpload.Curriculum(losses_path, window_samples=2 * BATCH_SIZE)
    with mpload.MPLoader(dataset_of(index, order), num_workers=2) as loader, torch.no_grad():
        means = [losses_of(*batch).mean().item() for batch in loader]  # train here
    print("mean loss by batch, from easy to hard:", [round(mean, 2) for mean in means])
    if means[0] >= means[-1]:
        raise SystemExit("the first batch is harder than the last one")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            text = Path(sys.argv[1])
        else:
            text = mpload.build_index(make_photos(Path(folder, "train"), 120), Path(folder, "train.txt"))
        main(mpload.open_index(text), Path(folder, "losses.npy"))
