"""The task of a contestant: what it reads, what its batches contain, and how an epoch is run."""

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
    """The content of a batch."""

    UINT8 = auto()
    """RandomResizedCrop(224) and a flip, uint8, channels last in memory."""
    FLOAT32 = auto()
    """The same, normalised float32."""
    BYTES = auto()
    """The bytes of the files, unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The settings of a race."""

    data: Path
    """The folder that `prepare` made."""
    output: Output
    batch_size: int
    num_workers: int
    listing: Path | None = None
    """A plain list of paths and labels, relative to its own folder; it replaces the photographs in `data`."""


Batch = tuple[Any, Any]
"""Images or bytes, as the loader delivers them, and as many labels."""
Epoch = Callable[[int], Iterator[Batch | None]]
"""Runs the epoch with the given number.

A loader that has made batches before its turn discards them first. It then yields None, and the clock starts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A loader, and the library with which it decodes."""

    start: Callable[[Race], Epoch]
    library: str | None
    """A name in `peers.codecs`; None if nothing is decoded."""


def each_path_and_label(race: Race) -> Iterator[tuple[str, int]]:
    """Yield the path and the label of each sample."""
    if race.listing is not None:
        labels: dict[str, int] = {}  # one integer object per class, as with folders
        with race.listing.open(encoding="utf-8") as lines:
            for line in lines:
                path, _, label = line.rpartition(" ")
                yield f"{race.listing.parent}/{path}", labels.setdefault(label, int(label))
        return
    for number, folder in enumerate(sorted((race.data / "photos").iterdir())):
        yield from ((str(path), number) for path in sorted(folder.iterdir()))


def paths_and_labels(race: Race) -> list[tuple[str, int]]:
    """Return the list of samples that most datasets keep."""
    return list(each_path_and_label(race))
