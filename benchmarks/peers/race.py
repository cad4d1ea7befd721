"""What a contestant is asked to do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

__all__ = [
    "CROP",
    "MEAN",
    "STD",
    "Batch",
    "Contestant",
    "Epoch",
    "Output",
    "Race",
    "each_path_and_label",
    "paths_and_labels",
]

CROP = 224
"""Height and width of the images, in pixels."""
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Output(StrEnum):
    """What batches hold."""

    UINT8 = auto()
    """RandomResizedCrop(224) and a flip, uint8, channels last in memory."""
    FLOAT32 = auto()
    """The same, normalised float32."""
    BYTES = auto()
    """The files' bytes as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """One way of running an epoch."""

    data: Path
    """The folder that `prepare` made."""
    output: Output
    batch_size: int
    num_workers: int
    listing: Path | None = None
    """A plain list of paths below its folder, with labels, to be read instead of the photographs in `data`."""


Batch = tuple[Any, Any]
"""Images or bytes as the loader hands them out, and as many labels."""
Epoch = Callable[[int], Iterator[Batch | None]]
"""Runs an epoch, by its number.

One that had batches ready before its turn throws them away first, and yields None where the clock is to begin.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A loader and what it decodes with."""

    start: Callable[[Race], Epoch]
    library: str | None
    """A name in `peers.codecs`; None where nothing is decoded."""


def each_path_and_label(race: Race) -> Iterator[tuple[str, int]]:
    """Yield what is to be read, one after the other."""
    if race.listing is not None:
        labels: dict[str, int] = {}  # one object a class, as with folders
        with race.listing.open(encoding="utf-8") as lines:
            for line in lines:
                path, _, label = line.rpartition(" ")
                yield f"{race.listing.parent}/{path}", labels.setdefault(label, int(label))
        return
    for number, folder in enumerate(sorted((race.data / "photos").iterdir())):
        yield from ((str(path), number) for path in sorted(folder.iterdir()))


def paths_and_labels(race: Race) -> list[tuple[str, int]]:
    """Return the list that most data sets keep."""
    return list(each_path_and_label(race))
