"""WebDataset over tar shards that its own writer has written."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import webdataset
from torch.utils.data import default_collate

from peers.crops import as_columns, channels_first, crop_with, finished
from peers.race import Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS", "prepare", "wds"]


def prepare(data: Path) -> None:
    """Write the shards."""
    samples = paths_and_labels(Race(data=data, output=Output.BYTES, batch_size=1, num_workers=0))
    random.Random(0).shuffle(samples)
    (data / "wds").mkdir(exist_ok=True)
    with webdataset.ShardWriter(str(data / "wds" / "photos-%06d.tar"), maxsize=8 << 20, verbose=0) as writer:
        for number, (path, label) in enumerate(samples):
            writer.write({"__key__": f"{number:08d}", "jpg": Path(path).read_bytes(), "cls": label})


def local_shards(race: Race) -> list[str]:
    return sorted(str(path) for path in (race.data / "wds").glob("*.tar"))


def wds(library: str, *, find_shards: Callable[[Race], list[str]] = local_shards) -> Contestant:
    def start(race: Race) -> Epoch:
        crop = crop_with(library, race.output)
        is_bytes = race.output is Output.BYTES

        def make(sample: tuple[bytes, bytes]) -> Any:
            data, label = sample
            made = crop(data)
            return (made if is_bytes else finished(made, race.output)), int(label)

        shards = find_shards(race)
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None, empty_check=False)
            .shuffle(1000)
            .to_tuple("jpg", "cls")
            .map(make)
            .batched(race.batch_size, collation_fn=as_columns if is_bytes else default_collate)
        )
        loader = webdataset.WebLoader(
            dataset, batch_size=None, num_workers=race.num_workers, persistent_workers=race.num_workers > 0
        )

        def epoch(number: int) -> Iterator[Batch]:
            del number
            for images, labels in loader:
                yield (images if is_bytes else channels_first(images)), labels

        return epoch

    return Contestant(start=start, library=library)


CONTESTANTS: dict[str, Contestant] = {
    "WebDataset, simplejpeg": wds("simplejpeg"),
}
