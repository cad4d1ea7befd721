"""Run lengths of COCO: COCO's compressed form of them, and the box of their pixels.

The runs of a mask go down its columns. They are pixels outside and inside of the object in turn, first those outside.
"""

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["box_of_runs", "compressed", "decompressed"]

_MAX_BITS = 40  # of a number


def compressed(counts: Sequence[int]) -> str:
    """Return run lengths as a string, as pycocotools does in `rleToString`."""
    letters = []
    for place, count in enumerate(counts):
        rest = count - counts[place - 2] if place > 2 else count
        more = True
        while more:
            bits = rest & 0x1F
            rest >>= 5
            more = rest != -1 if bits & 0x10 else rest != 0
            letters.append(chr(48 + (bits | 0x20 if more else bits)))
    return "".join(letters)


def decompressed(text: str) -> list[int]:
    """Return the run lengths in a string, as pycocotools does in `rleFrString`.

    Raises:
        ValueError: It is not such a string.
    """
    counts: list[int] = []
    count = place = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"has the letter {letter!r}")
        if place >= _MAX_BITS:
            raise ValueError(f"has a number of more than {_MAX_BITS} bits")
        count |= (bits & 0x1F) << place
        place += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            count -= 1 << place
        counts.append(count + counts[-2] if len(counts) > 2 else count)
        count = place = 0
    if place or min(counts, default=0) < 0:
        raise ValueError("breaks off, or has negative lengths")
    return counts


def box_of_runs(height: int, counts: Sequence[int]) -> list[int] | None:
    """Return left, top, width and height of the pixels inside, as pycocotools' `toBbox`; None if there are none.

    Args:
        height: The mask's height in pixels.
        counts: The run lengths.
    """
    ends = list(accumulate(counts))
    runs = [(start, end - 1) for start, end in zip(ends[::2], ends[1::2], strict=False) if start < end]
    if not runs:
        return None
    left, right = runs[0][0] // height, runs[-1][1] // height
    # A run that reaches the next column has the last row of its first column, and the first row of the next.
    rows = [
        (first % height, last % height) if first // height == last // height else (0, height - 1)
        for first, last in runs
    ]
    top, bottom = min(first for first, _ in rows), max(last for _, last in rows)
    return [left, top, right - left + 1, bottom - top + 1]
