"""litData over its own chunks, from local files."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata
from torch.utils.data import default_collate

from peers.crops import as_tensor, crop_with
from peers.race import Contestant, Epoch, Output, Race, paths_and_labels

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
        return (made if self.output is Output.BYTES else as_tensor(made, self.output)), sample["label"]


def lit(library: str) -> Contestant:
    def start(race: Race) -> Epoch:
        loader = litdata.StreamingDataLoader(
            Photos(race, library),
            batch_size=race.batch_size,
            num_workers=race.num_workers,
            persistent_workers=race.num_workers > 0,
            collate_fn=list if race.output is Output.BYTES else default_collate,
        )

        def epoch(number: int) -> Iterator[int]:
            del number
            for batch in loader:
                yield len(batch) if race.output is Output.BYTES else len(batch[1])

        return epoch

    return start


CONTESTANTS: dict[str, Contestant] = {
    "litData, PIL": lit("pil"),
    "litData, simplejpeg": lit("simplejpeg"),
}
