"""Assigns samples to the parts of a split by a hash of their source cell, so that adding data moves no sample."""

import hashlib
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpload.errors import ArgumentError

__all__ = ["Split", "part_of"]

_KEY = b"mpload split 1"
_NAME = re.compile(r"[\w-][\w.-]*")
_NUM_HASHES = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Named parts and their fractions, which sum to 1."""

    names: tuple[str, ...]
    fractions: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise ArgumentError(f"part {name!r} of the split cannot be used in a file name. Use letters and digits")
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise ArgumentError(f"fractions of a split must be in (0, 1], got {self.fractions}")
        total = math.fsum(self.fractions)
        if not math.isclose(total, 1, abs_tol=1e-6):
            remedy = "Lower them" if total > 1 else "Name the rest too"
            raise ArgumentError(
                f"fractions of a split must sum to 1, got {self.fractions}, which sum to {total:g}. "
                f"{remedy}: {{'train': 0.9, 'val': 0.1}}"
            )

    @classmethod
    def of(cls, split: Mapping[str, float] | Sequence[float]) -> "Split":
        """Return the split for `{"train": 0.9, "val": 0.1}`, or for `[0.9, 0.1]` with parts named 0 and 1."""
        parts = split if isinstance(split, Mapping) else {str(number): part for number, part in enumerate(split)}
        return cls(names=tuple(parts), fractions=tuple(map(float, parts.values())))

    @property
    def bounds(self) -> tuple[int, ...]:
        """The exclusive upper bound of each part in the range of hashes, [0, 2**64)."""
        sums = [math.fsum(self.fractions[: number + 1]) for number in range(len(self.fractions) - 1)]
        return (*(round(total * _NUM_HASHES) for total in sums), _NUM_HASHES)

    def paths(self, out: Path) -> tuple[Path, ...]:
        """Return the path of each part: `data.txt` becomes `data.train.txt` and `data.val.txt`."""
        return tuple(out.with_name(f"{out.stem}.{name}{out.suffix}") for name in self.names)


def part_of(cell: str, bounds: Sequence[int]) -> int:
    """Return the number of the part that a sample with the source cell `cell` belongs to."""
    digest = hashlib.blake2b(cell.encode("utf-8", "surrogateescape"), digest_size=8, key=_KEY).digest()
    return bisect_right(bounds, int.from_bytes(digest, "big"))
