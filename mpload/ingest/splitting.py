"""Which part of a split a sample belongs to: a hash of its source cell says, so growing the data moves no sample."""

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
_WHOLE = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Named parts and their fractions, which sum to one."""

    names: tuple[str, ...]
    fractions: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise ArgumentError(f"part {name!r} of the split cannot be part of a file name. Use letters and digits")
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise ArgumentError(f"fractions of a split must be in (0, 1], got {self.fractions}")
        if not math.isclose(math.fsum(self.fractions), 1, abs_tol=1e-6):
            raise ArgumentError(
                f"fractions of a split must sum to 1, got {self.fractions}, which sum to "
                f"{math.fsum(self.fractions):g}. Name the rest too: {{'train': 0.9, 'val': 0.1}}"
            )

    @classmethod
    def of(cls, split: Mapping[str, float] | Sequence[float]) -> "Split":
        """Read `{"train": 0.9, "val": 0.1}`, or `[0.9, 0.1]` for parts named 0 and 1."""
        parts = split if isinstance(split, Mapping) else {str(number): part for number, part in enumerate(split)}
        return cls(names=tuple(parts), fractions=tuple(map(float, parts.values())))

    @property
    def bounds(self) -> tuple[int, ...]:
        """Where each part ends among the 2**64 hashes."""
        sums = [math.fsum(self.fractions[: number + 1]) for number in range(len(self.fractions) - 1)]
        return (*(round(total * _WHOLE) for total in sums), _WHOLE)

    def paths(self, out: Path) -> tuple[Path, ...]:
        """Return the file of each part: `data.txt` becomes `data.train.txt` and `data.val.txt`."""
        return tuple(out.with_name(f"{out.stem}.{name}{out.suffix}") for name in self.names)


def part_of(cell: str, bounds: Sequence[int]) -> int:
    """Return the number of the part that the sample with source cell `cell` belongs to."""
    digest = hashlib.blake2b(cell.encode("utf-8", "surrogateescape"), digest_size=8, key=_KEY).digest()
    return bisect_right(bounds, int.from_bytes(digest, "big"))
