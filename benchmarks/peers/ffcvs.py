"""FFCV over its own file, in which it has encoded the JPEGs again."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from peers.race import CROP, MEAN, STD, Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS", "prepare"]


class Photos:
    def __init__(self, data: Path) -> None:
        self.samples = paths_and_labels(Race(data=data, output=Output.UINT8, batch_size=1, num_workers=0))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        path, label = self.samples[number]
        return Image.open(path).convert("RGB"), label


def prepare(data: Path) -> None:
    """Write the file."""
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(data / "train.beton"), fields, num_workers=2).from_indexed_dataset(Photos(data))


def start(race: Race) -> Epoch:
    if race.output is Output.BYTES:
        raise SystemExit("FFCV cannot deliver bytes")
    image: list[Any] = [RandomResizedCropRGBImageDecoder((CROP, CROP)), RandomHorizontalFlip()]
    if race.output is Output.FLOAT32:
        image.append(NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32))
    loader = Loader(
        str(race.data / "train.beton"),
        batch_size=race.batch_size,
        num_workers=min(max(1, race.num_workers), os.cpu_count() or 1),  # it accepts no more than one per core
        order=OrderOption.RANDOM,
        pipelines={"image": [*image, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor()]},
        drop_last=False,
    )

    def epoch(number: int) -> Iterator[Batch]:
        del number
        yield from loader

    return epoch


CONTESTANTS: dict[str, Contestant] = {"FFCV": Contestant(start=start, library="ffcv")}
