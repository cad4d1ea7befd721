"""The rows of the table of bench_faults.py."""

import re

from records import Record, latest

__all__ = ["FAULT_HEADER", "fault_rows"]

FAULT_HEADER = ["fault", "outcome", "message", "seconds"]


def fault_rows() -> list[list[str]]:
    """Return what each fault of a web server leads to, the message, and in how many seconds."""
    cases: dict[str, list[Record]] = {}
    for record in latest("faults", "fault", "on_error", "num_workers"):
        cases.setdefault(record["case"]["fault"], []).append(record["figures"])
    rows = []
    for name, found in cases.items():
        texts = [figures["message"] for figures in found if figures["message"]]
        message = re.sub(r".*?\(\w+\.jpg\): (https?://\S+: )?", "", texts[0], count=1) if texts else ""
        message = re.split(r" \(\d+ attempt|\. ", message, maxsplit=1)[0]
        if not texts:
            outcome = "all samples are read"
        else:
            outcome = "an error ends the epoch" if len(texts) == len(found) else "error, or one sample is skipped"
        rows.append([name, outcome, message, f"{max(figures['seconds'] for figures in found):.1f}"])
    return rows
