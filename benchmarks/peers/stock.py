"""A map-style dataset over a list of paths in torch's own DataLoader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, default_collate

from peers.crops import as_columns, channels_first, crop_with, finished
from peers.race import Batch, Contestant, Epoch, Output, Race, paths_and_labels

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


def stock(library: str) -> Contestant:
    def start(race: Race) -> Epoch:
        loader = DataLoader(
            Photos(race, library),
            batch_size=race.batch_size,
            shuffle=True,
            num_workers=race.num_workers,
            persistent_workers=race.num_workers > 0,
            collate_fn=as_columns if race.output is Output.BYTES else default_collate,
        )

        def epoch(number: int) -> Iterator[Batch]:
            del number
            for images, labels in loader:
                yield (images if race.output is Output.BYTES else channels_first(images)), labels

        return epoch

    return Contestant(start=start, library=library)


CONTESTANTS: dict[str, Contestant] = {
    "DataLoader, PIL": stock("pil"),
    "DataLoader, OpenCV + albumentations": stock("albumentations"),
    "DataLoader, simplejpeg": stock("simplejpeg"),
}
