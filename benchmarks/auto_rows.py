"""The rows of the table of bench_auto.py."""

from records import latest

__all__ = ["auto_header", "auto_rows"]

SHOWN = ("2", "8", "32", "64")


def auto_header() -> list[str]:
    """Return the heads of the columns."""
    return ["samples", *(f"{number} workers" for number in SHOWN), '"auto", at the end', "workers then", "80% after"]


def auto_rows() -> list[list[str]]:
    """Return the rates with fixed numbers of workers and with "auto", and how long it took to be nearly as fast."""
    rows = []
    for record in latest("auto", "situation"):
        figures = record["figures"]
        arrival = figures["auto_arrival_seconds"]
        rows.append(
            [
                record["case"]["situation"],
                *(f"{figures['samples_per_second'][number]:,.0f}" for number in SHOWN),
                f"{figures['auto_samples_per_second']:,.0f}",
                str(figures["auto_workers"]),
                "never" if arrival is None else f"{arrival:.1f} s",
            ]
        )
    return rows
