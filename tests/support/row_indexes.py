"""Datasets with a row index, and processes that fill one together and are killed at random.

    python -m tests.support.row_indexes FOLDER NUM_KILLS

Forks from a process without threads. Prints its findings as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mpload.images.decoders import RandomResizedCrop
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.samples.column_batches import batch_of_columns
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.samples.row_index import RowIndex, make_row_index
from tests.support.photos import encode, photo

__all__ = ["NUM_PHOTOS", "crops", "pipeline", "write_photos"]

NUM_PHOTOS = 30


def write_photos(folder: Path) -> Path:
    """Write photos of about 10 kB into `folder`, which is made; return their index."""
    (folder / "data").mkdir(parents=True)
    for number in range(NUM_PHOTOS):
        image = Image.fromarray(photo(150, 200, np.random.default_rng(number)))
        (folder / "data" / f"{number}.jpg").write_bytes(encode(image, "JPEG", quality=90))
    path = folder / "all.txt"
    path.write_text("".join(f"data/{number}.jpg {number}\n" for number in range(NUM_PHOTOS)))
    return path


def pipeline(index: Index, row_index: RowIndex | None, **options: Any) -> Pipeline:
    return Pipeline(index=index, decode=RandomResizedCrop(24), policy=ErrorPolicy(), row_index=row_index, **options)


def crops(made_by: Pipeline, *, epoch: int) -> NDArray[np.uint8]:
    """Return the crops of all photos, uint8 [n, 24, 24, 3]."""
    sample_ids = np.arange(len(made_by.index))
    return np.asarray(batch_of_columns(made_by, sample_ids, seed=0, epoch=epoch).columns[0])


def fill(index: Index, seed: int) -> None:
    """Make crops in random order until killed. Photos change now and then, so that they are noted again."""
    chance = random.Random(seed)
    rows = make_row_index(index)
    assert rows is not None
    with_rows, without = pipeline(index, rows), pipeline(index, None)
    while True:
        sample_id = chance.randrange(NUM_PHOTOS)
        if chance.random() < 0.02:
            rows.write(sample_id, chance.randbytes(chance.randrange(300)))
        wanted, epoch = np.array([sample_id]), chance.randrange(100)
        expected = batch_of_columns(without, wanted, seed=0, epoch=epoch).columns[0]
        if not np.array_equal(batch_of_columns(with_rows, wanted, seed=0, epoch=epoch).columns[0], expected):
            os._exit(1)


def main() -> None:
    index = open_index(write_photos(Path(sys.argv[1])))
    num_kills = int(sys.argv[2])
    chance = random.Random(0)
    children: list[int] = []
    num_exited = 0
    for _ in range(num_kills):
        while len(children) < 3:
            if not (pid := os.fork()):
                fill(index, seed=chance.randrange(1 << 30) + os.getpid())
            children.append(pid)
        time.sleep(chance.uniform(0.0, 0.05))  # kill at a random time
        killed = children.pop(chance.randrange(3))
        os.kill(killed, signal.SIGKILL)
        num_exited += not os.WIFSIGNALED(os.waitpid(killed, 0)[1])
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    rows = make_row_index(index)
    assert rows is not None
    same = np.array_equal(crops(pipeline(index, rows), epoch=0), crops(pipeline(index, None), epoch=0))
    print(json.dumps({"exited": num_exited, "same": same, "num_entries": rows.num_entries()}))


if __name__ == "__main__":
    main()
