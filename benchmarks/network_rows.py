"""The rows of the table of bench_network.py."""

from statistics import median

from records import Record, latest

__all__ = ["network_header", "network_rows"]

_MEMORY_COLUMNS = ("50 ms, 2 workers", "50 ms, 8 workers")


def network_header() -> list[str]:
    """Return the columns that were recorded, and those for memory."""
    return ["images/s", *_columns(), *(f"peak memory in MB: {column}" for column in _MEMORY_COLUMNS)]


def network_rows() -> list[list[str]]:
    """Return the median rate of each loader for each behaviour of the server, best first."""
    by_name: dict[str, dict[str, Record]] = {}
    for record in latest("network", "contestant", "column"):
        by_name.setdefault(record["case"]["contestant"], {})[record["case"]["column"]] = record["figures"]
    rows = [
        [
            name,
            *(_rate(found.get(column)) for column in _columns()),
            *(_megabytes(found.get(column)) for column in _MEMORY_COLUMNS),
        ]
        for name, found in by_name.items()
    ]
    return sorted(rows, key=lambda row: -float(row[1].replace(",", "").replace("failed", "0").replace("-", "0")))


def _columns() -> list[str]:
    return sorted({record["case"]["column"] for record in latest("network", "column")})


def _rate(figures: Record | None) -> str:
    if figures is None:
        return "-"
    return "failed" if "failed" in figures else f"{median(figures['images_per_second']):,.0f}"


def _megabytes(figures: Record | None) -> str:
    return f"{figures['peak_pss_bytes'] / 1e6:,.0f}" if figures is not None and "failed" not in figures else "-"
