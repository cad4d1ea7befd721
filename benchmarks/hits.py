"""The figure of cache hit rates, which report.py draws from the records of bench_cache.py."""

from pathlib import Path
from typing import Any

from mpload.cli.figures import BLUE, ORANGE, add_titles, new_figure

__all__ = ["draw_hits"]


def draw_hits(figures: dict[str, Any], path: Path) -> None:
    """Draw the hit rates of PartialCache and of an LRU cache against the fraction of the dataset that fits."""
    fractions, partial, lru = (figures[name] for name in ("fractions", "partial", "lru"))
    half = fractions.index(0.5)
    ticks = [0.25 * step for step in range(5)]
    labels = [f"{tick:.0%}" for tick in ticks]
    with new_figure(path, width=7.5, height=4.6) as figure:
        axes = figure.add_subplot()
        axes.plot(fractions, lru, marker="o", color=ORANGE, clip_on=False)
        axes.plot(fractions, partial, marker="o", color=BLUE, clip_on=False)
        axes.annotate("PartialCache", (0.5, partial[half]), xytext=(-10, 4), textcoords="offset points", ha="right")
        axes.annotate("LRU of the same size", (0.5, lru[half]), xytext=(10, -12), textcoords="offset points")
        axes.set_xticks(ticks, labels)
        axes.set_yticks(ticks, labels)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="fraction of the dataset that fits into the cache")
        finding = f"With room for half the data: PartialCache hits {partial[half]:.0%}, LRU {lru[half]:.0%}"
        add_titles(axes, finding, "Hit rate from the second epoch on; every epoch is reshuffled")
