"""mosaicml-streaming over its own shards in local files."""

import shutil
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from peers.crops import crop_with, finished
from peers.dataloaders import on_loader
from peers.race import Contestant, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS", "prepare", "write_shards"]


def prepare(data: Path) -> None:
    """Write the shards."""
    race = Race(data=data, output=Output.BYTES, batch_size=1, num_workers=0)
    write_shards(data / "mds", paths_and_labels(race))


def write_shards(folder: Path, samples: list[tuple[str, int]], **options: Any) -> None:
    """Write shards of files and labels; `options` are those of the writer."""
    shutil.rmtree(folder, ignore_errors=True)
    with MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}, **options) as writer:
        for path, label in samples:
            writer.write({"image": Path(path).read_bytes(), "label": label})


class Photos(StreamingDataset):  # type: ignore[misc]
    def __init__(self, race: Race, library: str) -> None:
        super().__init__(local=str(race.data / "mds"), shuffle=True, batch_size=race.batch_size)
        self.output = race.output
        self.crop = crop_with(library, race.output)

    def __getitem__(self, number: int) -> Any:
        sample = super().__getitem__(number)
        made = self.crop(sample["image"])
        return (made if self.output is Output.BYTES else finished(made, self.output)), sample["label"]


CONTESTANTS: dict[str, Contestant] = {
    "mosaicml-streaming, simplejpeg": on_loader(DataLoader, Photos, "simplejpeg"),
}
