"""The rows of the table of bench_limited_memory.py."""

from records import latest

__all__ = ["LIMITED_HEADER", "limited_rows"]

LIMITED_HEADER = ["loader", "blocks in a window", "bytes read / bytes of samples", "share of bandwidth", "samples/s"]


def limited_rows() -> list[list[str]]:
    """Return the figures of each loader that reads from a disk with limits, in a job with little memory."""
    return [
        [
            record["case"]["contestant"],
            str(record["case"]["window_blocks"] or "-"),
            f"{record['figures']['read_factor']:.2f}",
            f"{record['figures']['bandwidth_fraction']:.3f}",
            f"{record['figures']['samples_per_second']:,.0f}",
        ]
        for record in latest("limited_memory")
    ]
