"""The tables of samples from servers, from the records of bench_servers.py and bench_receiving.py."""

from statistics import median

from records import Record, latest

__all__ = ["RECEIVING_HEADER", "SERVERS_HEADER", "rates_and_costs", "receiving_rows", "server_rows", "with_spread"]

SERVERS_HEADER = ["images of 224 x 224", "images/s", "loader: CPU µs an image", "server: CPU µs to send it"]
RECEIVING_HEADER = ["received by one core", "images/s", "receiver: CPU µs an image"]


def server_rows() -> list[list[str]]:
    """Return the rate and the CPU time of a loader whose samples servers make."""
    found = [(record["case"], record["figures"]) for record in latest("servers", "contestant")]
    rows = rates_and_costs(found)
    for row, (_, figures) in zip(rows, found, strict=True):
        sent_us = figures.get("server_cpu_us_per_sample")
        row.append(f"{median(sent_us):.0f}" if sent_us else "")
    return rows


def receiving_rows() -> list[list[str]]:
    """Return how fast one core receives images, and what that takes."""
    return rates_and_costs([(record["case"], record["figures"]) for record in latest("receiving", "contestant")])


def rates_and_costs(found: list[tuple[Record, Record]]) -> list[list[str]]:
    """Return a row for each contestant: its name, samples per second, and CPU time of a sample."""
    return [
        [case["contestant"], with_spread(figures["samples_per_second"]), f"{median(figures['cpu_us_per_sample']):,.0f}"]
        for case, figures in found
    ]


def with_spread(rates: list[float]) -> str:
    """Return the median of rates, with the lowest and the highest one."""
    return f"{median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
