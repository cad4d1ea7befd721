"""Evaluate on several ranks: each sample counts exactly once, so the metric is the same as on a single process.

python examples/evaluate_ragged.py                                  # starts torchrun itself, with two ranks
torchrun --nproc-per-node 2 examples/evaluate_ragged.py val.txt     # evaluates an index of your own on two ranks
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from photos import make_photos

import mpload


def brightness_by_class(index: Path) -> torch.Tensor:
    """Return the mean brightness of each class, float64 [classes], over all ranks."""
    # 101 samples, batches of 8, two ranks: "pad" would count some samples twice, "drop" would leave some out.
    dataset = mpload.MPDataset(index, decode=mpload.ResizeCenterCrop(64), batch_size=8, tail="ragged")
    sums = torch.zeros(len(dataset.index.classes), 2, dtype=torch.float64)
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2):
        values = images.double().mean(dim=(1, 2, 3)) if len(labels) else torch.zeros(0, dtype=torch.float64)
        sums.index_add_(0, labels, torch.stack([values, torch.ones_like(values)], dim=1))
    if dist.is_initialized():
        dist.all_reduce(sums)
    if int(sums[:, 1].sum()) != len(dataset.index):
        raise SystemExit(f"{int(sums[:, 1].sum())} samples were evaluated, not {len(dataset.index)}")
    return sums[:, 0] / sums[:, 1]


def main() -> None:
    if len(sys.argv) > 1:
        dist.init_process_group("gloo")
        means = brightness_by_class(Path(sys.argv[1]))
        if dist.get_rank() == 0:
            torch.save(means, Path(sys.argv[1]).with_suffix(".pt"))
        dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as name:
        index = mpload.build_index(make_photos(Path(name, "val"), 101), Path(name, "val.txt"))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run([*torchrun, __file__, str(index)], check=True)
        by_two_ranks = torch.load(index.with_suffix(".pt"))
        alone = brightness_by_class(index)
        torch.testing.assert_close(by_two_ranks, alone, rtol=1e-12, atol=0)
        print(
            "mean brightness:",
            {c: round(v, 1) for c, v in zip(mpload.open_index(index).classes, alone.tolist(), strict=True)},
        )
        print("two ranks and one process agree: every sample was evaluated exactly once")


if __name__ == "__main__":
    main()
