"""mpload over the rows of a `.npy` file, listed as `mpload pack --format arrays` lists them."""

from collections.abc import Iterator
from pathlib import Path

import mpload
from peers.race import Batch, Contestant, Epoch, Race
from peers.rows import SHAPE, mapped_rows

__all__ = ["CONTESTANTS", "prepare"]

DECODE = mpload.RawArray(SHAPE, makes_images=True)


def prepare(data: Path) -> None:
    """Write the index."""
    rows, labels = mapped_rows(data)
    with (data / "rows.txt").open("w", encoding="ascii") as index:
        index.write("#mpload 1\n#columns image:span label:int\n")
        for place, label in enumerate(labels.tolist()):
            index.write(f"{rows.offset + place * rows[0].nbytes}+{rows[0].nbytes}@rows.npy\t{label}\n")
    mpload.open_index(data / "rows.txt")


def start(race: Race) -> Epoch:
    dataset = mpload.MPDataset(
        race.data / "rows.txt", decode=DECODE, batch_size=race.batch_size, shuffle=True, tail="ragged"
    )
    loader = mpload.MPLoader(dataset, num_workers=race.num_workers)

    def epoch(number: int) -> Iterator[Batch]:
        loader.set_epoch(number)
        yield from loader

    return epoch


CONTESTANTS: dict[str, Contestant] = {"mpload": Contestant(start=start, library=None)}
