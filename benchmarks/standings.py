"""The results of races: for every contestant all turns that ran with the latest code, not only the best ones."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from records import read_records

__all__ = ["Standing", "standings"]


@dataclass(slots=True, kw_only=True)
class Standing:
    """All turns of a contestant with one kind of batch."""

    codec: str = ""
    failed: str = ""
    """The reason, if the contestant never ran."""
    is_loader: bool = True
    rates: list[float] = field(default_factory=list)
    """Images per second in each turn."""
    ratios: list[float] = field(default_factory=list)
    """Ratio of each rate to mpload's in the same round."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The figures of the latest record."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def standings(name: str) -> dict[str, dict[str, Standing]]:
    """Return the standings of `records/NAME.jsonl` by contestant and output.

    Each output is a race of its own. Only records made with the same code as its last record count, for mpload and the
    contestants alike.
    """
    records = read_records(name)
    latest_code = {record["case"]["output"]: record["case"]["code"] for record in records}
    found: dict[str, dict[str, Standing]] = {}
    for record in records:
        case, figures = record["case"], record["figures"]
        if case["code"] != latest_code[case["output"]]:
            continue
        standing = found.setdefault(case["contestant"], {}).setdefault(case["output"], Standing())
        if "failed" in figures:
            standing.failed = figures["failed"] if not standing.rates else ""
            continue
        standing.codec, standing.is_loader, standing.failed = case["decodes_with"], case["is_loader"], ""
        standing.rates += figures["images_per_second"]
        standing.ratios += figures["ratio_to_mpload"] or []
        standing.figures = figures
    return found
