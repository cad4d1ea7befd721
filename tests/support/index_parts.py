"""An index of numbers, cut into parts, beside the single index of the same lines."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tests.support.growing import HEAD, line

__all__ = ["write_part", "write_parts", "write_whole"]


def write_part(path: Path, first: int, end: int, *, head: str = HEAD) -> Path:
    """Write an index of the numbers from `first` to `end` (exclusive), in place of the one at `path`."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(head + "".join(map(line, range(first, end))))
    new.replace(path)
    return path


def write_whole(folder: Path, num_samples: int) -> Path:
    return write_part(folder / "whole.txt", 0, num_samples)


def write_parts(folder: Path, cuts: Sequence[int], *, name: str = "parts.txt") -> Path:
    """Write parts of the numbers between neighbouring cuts, and a list of them without their numbers of samples."""
    names = [f"part-{number}.txt" for number in range(len(cuts) - 1)]
    for part, (first, end) in zip(names, pairwise(cuts), strict=True):
        write_part(folder / part, first, end)
    path = folder / name
    path.write_text("#mpload 1\n#parts\n" + "".join(f"{part}\n" for part in names))
    return path
