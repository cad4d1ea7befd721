"""litData over its own chunks in local files."""

import shutil
from pathlib import Path
from typing import Any

import litdata

from peers.crops import crop_with, finished
from peers.dataloaders import on_loader
from peers.race import Contestant, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS", "prepare"]


def read(sample: tuple[str, int]) -> dict[str, Any]:
    path, label = sample
    return {"image": Path(path).read_bytes(), "label": label}


def prepare(data: Path) -> None:
    """Write the chunks."""
    shutil.rmtree(data / "lit", ignore_errors=True)
    samples = paths_and_labels(Race(data=data, output=Output.BYTES, batch_size=1, num_workers=0))
    litdata.optimize(fn=read, inputs=samples, output_dir=str(data / "lit"), chunk_bytes="64MB", num_workers=1)


class Photos(litdata.StreamingDataset):  # type: ignore[misc]
    def __init__(self, race: Race, library: str) -> None:
        super().__init__(str(race.data / "lit"), shuffle=True)
        self.output = race.output
        self.crop_image = crop_with(library, race.output)

    def __getitem__(self, number: Any) -> Any:
        sample = super().__getitem__(number)
        made = self.crop_image(sample["image"])
        return (made if self.output is Output.BYTES else finished(made, self.output)), sample["label"]


CONTESTANTS: dict[str, Contestant] = {
    "litData, simplejpeg": on_loader(litdata.StreamingDataLoader, Photos, "simplejpeg"),
}
