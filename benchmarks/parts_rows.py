"""The table of indexes of parts, from the records of bench_parts.py."""

from records import latest

__all__ = ["PARTS_HEADER", "parts_rows"]

PARTS_HEADER = ["", "opened in", "random line", "line in a block", "USS of a worker", "sent to a worker"]


def parts_rows() -> list[list[str]]:
    """Return a row for each case, in the order in which they were measured."""
    rows = []
    for record in latest("parts"):
        case, figures = record["case"], record["figures"]
        name = case["case"] if case["case"] == "one file" else f"{case['parts']:,} parts"
        rows.append(
            [
                f"{name}, {case['descriptors']:,} descriptors",
                f"{figures['opening_ms']:.1f} ms",
                f"{figures['random_ns_per_id'] / 1e3:.1f} µs",
                f"{figures['block_ns_per_id'] / 1e3:.2f} µs",
                f"{figures['uss_mb']:.1f} MB",
                f"{figures['pickled_bytes'] / 1e3:.1f} kB",
            ]
        )
    return rows
