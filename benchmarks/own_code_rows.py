"""The rows of the table of bench_own_code.py."""

from statistics import median
from typing import Any

from records import latest
from served_rows import with_spread

__all__ = ["OWN_CODE_HEADER", "own_code_rows"]

OWN_CODE_HEADER = [
    "",
    "sizes",
    "loader",
    "samples/s",
    "ratio",
    "CPU µs a sample",
    "page faults a sample",
    "training process, ms a batch",
]


def own_code_rows() -> list[list[str]]:
    """Return the rate, cost and page faults of each loader, and the ratio to mpload in the same round."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for record in latest("own_code"):
        case = record["case"]
        found.setdefault((case["code"], case["sizes"]), {})[case["contestant"]] = record["figures"]
    rows = []
    for (code, sizes), of_loaders in found.items():
        ours = of_loaders["mpload"]["samples_per_second"]
        for loader, figures in of_loaders.items():
            rates = figures["samples_per_second"]
            ratio = median(rate / mine for rate, mine in zip(rates, ours, strict=True))
            costs = [f"{figures['cpu_us']:,}", f"{figures['page_faults_per_sample']:.0f}"]
            own = f"{figures['training_process_ms_per_batch']:.1f}"
            rows.append([code, sizes, loader, with_spread(rates), f"{ratio:.2f}", *costs, own])
    return rows
