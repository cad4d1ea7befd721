"""mpload over the original photographs, over a cache of resized ones, and over packed ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import mpload
from peers.race import CROP, MEAN, STD, Batch, Contestant, Epoch, Output, Race

__all__ = ["CONTESTANTS", "prepare"]

RAW = mpload.RawBytes(as_array=True)


def prepare(data: Path) -> None:
    """Write the index."""
    mpload.build_index(data / "photos", data / "train.txt")


def ours(index: str = "train.txt", *, has_cache: bool = False, **decoder_options: Any) -> Contestant:
    def start(race: Race) -> Epoch:
        dataset = mpload.MPDataset(
            race.listing or race.data / index,
            decode=RAW if race.output is Output.BYTES else mpload.RandomResizedCrop(CROP, **decoder_options),
            batch_size=race.batch_size,
            shuffle=True,
            tail="ragged",
            cache=mpload.PartialCache(race.data / "cache", fraction=1.0, what="resized") if has_cache else None,
        )
        loader: Any = mpload.MPLoader(dataset, num_workers=race.num_workers)
        if race.output is Output.FLOAT32:
            loader = mpload.DevicePrefetcher(loader, device="cpu", dtype=torch.float32, mean=MEAN, std=STD)

        def epoch(number: int) -> Iterator[Batch]:
            loader.set_epoch(number)
            yield from loader

        return epoch

    return Contestant(start=start, library=decoder_options.get("backend", "mpload"))


CONTESTANTS: dict[str, Contestant] = {
    "mpload": ours(),
    "mpload, without its native decoder": ours(backend="simplejpeg"),
    "mpload, cache of resized photographs": ours(has_cache=True),
    "mpload, packed": ours("pack/index.txt"),
}
