"""An index whose columns hold data of many types, the decoders of its columns, and the ways to read its batches."""

import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from mpload import Json, MPDataset, MPLoader, RandomResizedCrop, Text, Topology
from tests.support.photos import photo
from tests.support.typed_decoders import sound

NUM_SAMPLES = 23
COLUMNS = "image:path small:path caption:path meta:path sound:span label:int weight:float word:str"
WAYS = ["alone", "one by one", "DataLoader", "0", "2"] if sys.platform == "linux" else ["alone", "DataLoader"]


def typed_index(folder: Path, *, num_samples: int = NUM_SAMPLES) -> Path:
    """Write images in two sizes, captions, JSON and bytes, and an index of them."""
    rng = np.random.default_rng(0)
    (folder / "sounds").write_bytes(rng.bytes(64 * num_samples))
    lines = []
    for number in range(num_samples):
        pixels = photo(80 + 2 * (number % 3), 120, rng)
        cv2.imwrite(str(folder / f"{number}.jpg"), pixels)
        cv2.imwrite(str(folder / f"{number}.png"), cv2.resize(pixels, (60, pixels.shape[0] // 2)))
        (folder / f"{number}.txt").write_text(f"caption {number} é" * (number % 3))
        (folder / f"{number}.json").write_text(json.dumps({"n": number, "list": [None, 1, 0.5, "a"] * (number % 4)}))
        files = "\t".join(f"{number}.{kind}" for kind in ("jpg", "png", "txt", "json"))
        lines.append(f"{files}\t{64 * number}+{8 + number % 5}@sounds\t{number}\t{number / 3}\tword {number}\n")
    path = folder / "typed.txt"
    path.write_text(f"#mpload 1\n#columns {COLUMNS}\n{''.join(lines)}")
    return path


DECODERS: dict[str, Any] = {
    "image": RandomResizedCrop(32),
    "small": RandomResizedCrop((16, 16), antialias=True),
    "caption": Text(),
    "meta": Json(),
    "sound": sound,
}


def typed(index: Path, **options: Any) -> MPDataset:
    options = {"decode": DECODERS, "batch_size": 4, "tail": "ragged", "shuffle": True, "seed": 3, **options}
    return MPDataset(index, **{"topology": Topology(), **options})


def read(index: Path, how: str, **options: Any) -> list[Any]:
    """Return the batches of an epoch, or with "one by one" its samples, each as nested lists that can be compared."""
    if how == "one by one":
        return [comparable(sample) for sample in typed(index, **{**options, "batch_size": None})]
    dataset = typed(index, **options)
    if how == "alone":
        return [comparable(batch) for batch in dataset]
    if how == "DataLoader":
        return [comparable(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=2)]
    with MPLoader(dataset, num_workers=int(how)) as loader:
        return [comparable(batch) for batch in loader]


def read_in_two_runs(index: Path, *, num_before: int, num_workers: int, decode: Any) -> list[Any]:
    """Return the batches of an epoch that is saved after `num_before` of them with 2 workers, and then resumed."""
    with MPLoader(typed(index, decode=decode), num_workers=2) as loader:
        batches = iter(loader)
        found = [comparable(next(batches)) for _ in range(num_before)]
        state = loader.state_dict()
    with MPLoader(typed(index, decode=decode), num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        return found + [comparable(batch) for batch in loader]


def comparable(value: Any) -> Any:
    """Return a value in which every tensor is its dtype, shape, strides and bytes, and every tuple a list.

    NumPy's empty arrays have various strides, which mean nothing.
    """
    if isinstance(value, torch.Tensor):
        data = value.contiguous().view(torch.uint8) if value.numel() and value.ndim else value
        strides = list(value.stride()) if value.numel() else []
        return [str(value.dtype), list(value.shape), strides, data.numpy().tobytes()]
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):  # a DataLoader turns tuples into lists
        return [comparable(inner) for inner in value]
    assert value is None or isinstance(value, str | bytes | int | float), value
    return value


def same_region(large: NDArray[Any], small: NDArray[Any]) -> float:
    """Return how much two images differ, after the larger one is shrunk to the smaller one's size."""
    height, width = small.shape[:2]
    shrunk = cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA)
    return float(np.abs(shrunk.astype(float) - small).mean())
