"""FFCV over its own file of raw images, as in its recipe for CIFAR."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter

from peers.race import Batch, Contestant, Epoch, Race
from peers.rows import mapped_rows

__all__ = ["CONTESTANTS", "prepare"]


class Rows:
    def __init__(self, data: Path) -> None:
        self.rows, self.labels = mapped_rows(data)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return self.rows[number], int(self.labels[number])


def prepare(data: Path) -> None:
    """Write the file."""
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    DatasetWriter(str(data / "rows.beton"), fields, num_workers=2).from_indexed_dataset(Rows(data))


def start(race: Race) -> Epoch:
    loader = Loader(
        str(race.data / "rows.beton"),
        batch_size=race.batch_size,
        num_workers=min(max(1, race.num_workers), os.cpu_count() or 1),  # it accepts no more than one per core
        order=OrderOption.RANDOM,
        os_cache=True,
        pipelines={"image": [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor()]},
        drop_last=False,
    )

    def epoch(number: int) -> Iterator[Batch]:
        del number
        yield from loader

    return epoch


CONTESTANTS: dict[str, Contestant] = {"FFCV": Contestant(start=start, library=None)}
