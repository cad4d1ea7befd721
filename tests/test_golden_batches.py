"""The batches of a fixed index, seed and epoch, frozen: which samples, in which order, with which random crops.

A difference breaks every running experiment. If it is intended, raise the version in `mpload/plan/order.py` or
`mpload/plan/sample_rng.py`, run `MPLOAD_REGENERATE=1 python -m pytest tests/test_golden_batches.py`, and announce it in
CHANGELOG.md.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from mpload import BlockShuffle, MPDataset, Topology
from mpload.images.crops import random_crop_box

GOLDEN = Path(__file__).parent / "golden" / "batches.json"
NUM_SAMPLES = 37
CASES: dict[str, dict[str, Any]] = {
    "sequential": {"shuffle": False, "batch_size": 10, "tail": "ragged"},
    "shuffle": {"shuffle": True, "batch_size": 8, "tail": "pad", "seed": 3},
    "rank 1 of 2": {
        "shuffle": True,
        "batch_size": 4,
        "tail": "pad",
        "seed": 3,
        "topology": Topology(rank=1, world_size=2),
    },
    "blocks": {
        "shuffle": BlockShuffle(block_samples=4, window_blocks=3),
        "batch_size": 9,
        "tail": "drop",
        "seed": 2**62,
    },
}


def box_and_draw(data: bytes, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a sample's number, the crop that it would get of a photo, and the next random number."""
    box = random_crop_box(375, 500, rng, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    return np.array([int(data), box.top, box.left, box.height, box.width, int(rng.random() * 2**40)])


def make(folder: Path) -> dict[str, list[list[list[int]]]]:
    (folder / "numbers").write_bytes(b"".join(b"%04d" % i for i in range(NUM_SAMPLES)))
    lines = "".join(f"{4 * i}+4@numbers\n" for i in range(NUM_SAMPLES))
    (folder / "train.txt").write_text("#mpload 1\n#columns number:span\n" + lines)
    made = {}
    for name, options in CASES.items():
        dataset = MPDataset(folder / "train.txt", decode=box_and_draw, **{"topology": Topology(), **options})
        dataset.set_epoch(5)
        made[name] = [batch.tolist() for batch in dataset]
    return made


def test_the_batches_of_an_epoch_never_change(tmp_path: Path) -> None:
    made = make(tmp_path)
    if os.environ.get("MPLOAD_REGENERATE") == "1":
        GOLDEN.write_text(json.dumps(made, indent=None).replace("]], ", "]],\n") + "\n")
    assert made == json.loads(GOLDEN.read_text())


def test_ranks_split_one_global_batch() -> None:
    golden = json.loads(GOLDEN.read_text())
    for whole, part in zip(golden["shuffle"], golden["rank 1 of 2"], strict=True):
        assert whole[4:] == part
