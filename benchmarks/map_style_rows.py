"""The rows of the table of bench_map_style.py."""

from statistics import median
from typing import Any

from records import latest
from served_rows import with_spread

__all__ = ["MAP_STYLE_HEADER", "map_style_rows"]

MAP_STYLE_HEADER = [
    "samples",
    "batch size",
    "mpload, samples/s",
    "DataLoader",
    "ratio",
    "CPU µs a sample",
    "DataLoader",
]


def map_style_rows() -> list[list[str]]:
    """Return the rate and cost of both loaders for each kind of samples, and the ratio in the same round."""
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for record in latest("map_style"):
        case = record["case"]
        found.setdefault((case["samples"], case["batch_size"]), {})[case["contestant"]] = record["figures"]
    rows = []
    for (samples, batch_size), loaders in found.items():
        ours, theirs = (loaders[name] for name in ("mpload", "DataLoader"))
        rates = [each["samples_per_second"] for each in (ours, theirs)]
        ratio = median(mine / other for mine, other in zip(*rates, strict=True))
        costs = [f"{each['cpu_us']:.1f}" for each in (ours, theirs)]
        rows.append([samples, str(batch_size), *map(with_spread, rates), f"{ratio:.2f}", *costs])
    return rows
