"""An index of numbers that grows, and the samples of its batches."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpload import Index, Mixture, MPDataset, Topology

HEAD = "#mpload 1\n#columns id:int text:str label:int\n"


def line(number: int) -> str:
    return f"{number}\tsample {number}\t{number % 3}\n"


def write_numbers(path: Path, num_samples: int, *, head: str = HEAD) -> Path:
    """Write an index of the numbers below `num_samples`, in place of the one at `path`."""
    text = head + "".join(map(line, range(num_samples)))
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)
    return path


def growing(path: Path | Mixture | Index, **options: Any) -> MPDataset[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 7, "tail": "ragged", "topology": Topology(), **options}
    return MPDataset(path, **options)


def numbers_in(batches: Iterable[Any]) -> list[list[int]]:
    """Return the numbers of each batch, after checking that the other columns are those of their lines."""
    found = []
    for ids, texts, labels in batches:
        found.append(ids.tolist())
        assert list(texts) == [f"sample {number}" for number in found[-1]]
        assert labels.tolist() == [number % 3 for number in found[-1]]
    return found
