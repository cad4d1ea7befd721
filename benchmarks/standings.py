"""What a race has found: of every contestant all turns that were run with the latest code, not the best ones."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from records import read_records

__all__ = ["Standing", "standings"]


@dataclass(slots=True, kw_only=True)
class Standing:
    """A contestant's turns, with batches of one kind."""

    note: str = ""
    codec: str = ""
    failed: str = ""
    """Why it did not run, if it never did."""
    is_loader: bool = True
    rates: list[float] = field(default_factory=list)
    """Images a second of each turn."""
    ratios: list[float] = field(default_factory=list)
    """Beside mpload in the same round."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Of its latest record."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def standings(name: str) -> dict[str, dict[str, Standing]]:
    """Return the standings of `records/NAME.jsonl` by contestant and output.

    A record counts where mpload and the contestants were what they were at the last record.
    """
    records = read_records(name)
    found: dict[str, dict[str, Standing]] = {}
    for record in records:
        case, figures = record["case"], record["figures"]
        if case["code"] != records[-1]["case"]["code"]:
            continue
        standing = found.setdefault(case["contestant"], {}).setdefault(case["output"], Standing())
        if "failed" in figures:
            standing.failed = figures["failed"] if not standing.rates else ""
            continue
        standing.note, standing.codec = case["note"], case["decodes_with"]
        standing.is_loader, standing.failed = case["is_loader"], ""
        standing.rates += figures["images_per_second"]
        standing.ratios += figures["ratio_to_mpload"] or []
        standing.figures = figures
    return found
