"""Hugging Face datasets: a memory-mapped Arrow table of paths, with a transform that makes a whole batch at once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader

from peers.crops import crop_with, finished
from peers.dataloaders import epochs
from peers.race import Batch, Contestant, Epoch, Output, Race, each_path_and_label

__all__ = ["CONTESTANTS"]


def rows(race: Race) -> Iterator[dict[str, Any]]:
    for path, label in each_path_and_label(race):
        yield {"path": path, "label": label}


def start(race: Race, library: str) -> Epoch:
    datasets.disable_progress_bars()
    crop = crop_with(library, race.output)

    def make(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        files = (crop(Path(path).read_bytes()) for path in columns["path"])
        images = list(files) if race.output is Output.BYTES else [finished(each, race.output) for each in files]
        return {"image": images, "label": columns["label"]}

    def collate(samples: list[dict[str, Any]]) -> Batch:
        images: Any = [sample["image"] for sample in samples]
        if race.output is not Output.BYTES:
            images = torch.from_numpy(np.stack(images))
        return images, torch.tensor([sample["label"] for sample in samples])

    place = race.listing or race.data / "photos"
    cache = str(place.with_name(f"{place.name}.arrow"))
    listed = replace(race, output=Output.BYTES, batch_size=1, num_workers=0)  # one table for every race over this list
    table: Any = datasets.Dataset.from_generator(rows, gen_kwargs={"race": listed}, cache_dir=cache)
    loader: DataLoader[Any] = DataLoader(
        table.with_transform(make),
        batch_size=race.batch_size,
        shuffle=True,
        num_workers=race.num_workers,
        persistent_workers=race.num_workers > 0,
        collate_fn=collate,
    )

    return epochs(loader, race.output)


def hf(library: str) -> Contestant:
    return Contestant(start=lambda race: start(race, library), library=library)


CONTESTANTS: dict[str, Contestant] = {"HF datasets, simplejpeg": hf("simplejpeg")}
