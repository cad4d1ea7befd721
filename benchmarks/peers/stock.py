"""torch's own DataLoader, with a map-style dataset over a list of paths."""

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from peers.crops import crop_with, finished
from peers.dataloaders import on_loader
from peers.race import Contestant, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


class Photos(Dataset[Any]):
    def __init__(self, race: Race, library: str) -> None:
        self.samples = paths_and_labels(race)
        self.output = race.output
        self.crop = crop_with(library, race.output)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        path, label = self.samples[number]
        made = self.crop(Path(path).read_bytes())
        return (made if self.output is Output.BYTES else finished(made, self.output)), label


CONTESTANTS: dict[str, Contestant] = {
    "DataLoader, PIL": on_loader(DataLoader, Photos, "pil", shuffle=True),
    "DataLoader, OpenCV + albumentations": on_loader(DataLoader, Photos, "albumentations", shuffle=True),
    "DataLoader, simplejpeg": on_loader(DataLoader, Photos, "simplejpeg", shuffle=True),
}
