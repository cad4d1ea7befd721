"""Train on classes of very different sizes: draw each class equally often, from a selection of the samples.

python examples/balance_classes.py                              # makes photos, few of them of one class
python examples/balance_classes.py train.txt "nbytes > 5000"    # an index of your own
"""

import sys
import tempfile
from pathlib import Path

import torch
from photos import make_photos

import mpload


def class_shares(index: mpload.Index, shuffle: mpload.Balanced | mpload.Shuffle) -> list[float]:
    """Return the share of each class in an epoch."""
    dataset = mpload.MPDataset(
        index, decode=mpload.RandomResizedCrop(64), batch_size=16, shuffle=shuffle, seed=1, tail="ragged"
    )
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        labels = torch.cat([labels for _, labels in loader])
    counts = torch.bincount(labels, minlength=len(index.classes))
    return [round(share, 2) for share in (counts / counts.sum()).tolist()]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if len(sys.argv) > 1:
            index, condition = mpload.open_index(sys.argv[1]), sys.argv[2]
        else:
            built = mpload.build_index(make_photos(folder / "train", 120), folder / "train.txt", with_sizes=True)
            index = mpload.open_index(built)
            rare = index.classes[-1]
            condition = f"nbytes > 1000 and (label != {rare!r} or '1' in image)"
        selected = index.select(folder / "selected.txt", where=condition)
        print(f"{len(selected)} of {len(index)} samples fulfil {condition}")
        print("shares of the classes, shuffled:", class_shares(selected, mpload.Shuffle()))
        print("shares of the classes, balanced:", class_shares(selected, mpload.Balanced("label")))

        tune = selected.select(folder / "tune.txt", part=mpload.Share(0.5, stratify="label"))
        print(f"half of each class, to find settings quickly: {len(tune)} samples")


if __name__ == "__main__":
    main()
