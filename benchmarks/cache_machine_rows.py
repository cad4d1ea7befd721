"""The table of caches that several machines share, from the records of bench_cache_machines.py."""

from statistics import median

from records import latest
from served_rows import rates_and_costs

__all__ = ["CACHE_MACHINES_HEADER", "cache_machine_rows"]

CACHE_MACHINES_HEADER = [
    "a quarter of the photographs fits on a machine",
    "images/s",
    "loader: CPU µs an image",
    "requests to the source for an image",
    "other machines: CPU µs to send one",
]


def cache_machine_rows() -> list[list[str]]:
    """Return rate, costs and requests of each number of machines."""
    found = [(record["case"], record["figures"]) for record in latest("cache_machines", "contestant")]
    rows = rates_and_costs(found)
    for row, (_, figures) in zip(rows, found, strict=True):
        sent_us = figures["server_cpu_us_per_sample"]
        row += [f"{median(figures['source_requests_per_sample']):.2f}", f"{median(sent_us):.0f}" if sent_us else ""]
    return rows
