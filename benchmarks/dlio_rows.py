"""The rows of the table of bench_dlio.py."""

from statistics import median

from records import Record, latest

__all__ = ["DLIO_HEADER", "dlio_rows"]

DLIO_HEADER = ["workload", "loader", "accelerator utilisation", "samples/s", "workers", "prefetch_size"]


def dlio_rows() -> list[list[str]]:
    """Return how busy each loader keeps an accelerator, by workload, the busiest first."""
    found = [(record["case"], record["figures"]) for record in latest("dlio", "workload", "contestant")]
    workloads = list(dict.fromkeys(case["workload"] for case, _ in found))
    found.sort(key=lambda each: (workloads.index(each[0]["workload"]), -_utilisation(each[1])))
    return [[case["workload"], case["contestant"], *_cells(case, figures)] for case, figures in found]


def _utilisation(figures: Record) -> float:
    return float(median(figures.get("utilisation_percent", [0.0])))


def _cells(case: Record, figures: Record) -> list[str]:
    if "failed" in figures:
        return [figures["failed"], "-", "-", "-"]
    shares, rates = figures["utilisation_percent"], figures["samples_per_second"]
    return [
        f"{median(shares):.1f} % ({min(shares):.1f}-{max(shares):.1f})",
        f"{median(rates):,.1f} ({min(rates):,.1f}-{max(rates):,.1f})",
        str(case["num_workers"]),
        "-" if case["contestant"] == "mpload" else str(case["prefetch_size"]),
    ]
