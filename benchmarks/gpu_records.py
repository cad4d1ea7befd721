"""What the tables and sentences about a GPU share: which records they quote, and how a sentence is set."""

import textwrap

from records import RECORDS, Record, latest

__all__ = ["device_records", "latest_if_any", "newest_device", "on_newest_device", "paragraph"]


def latest_if_any(name: str, *keys: str) -> list[Record]:
    """Return what `latest` returns, or no record if `records/NAME.jsonl` does not exist yet."""
    return latest(name, *keys) if (RECORDS / f"{name}.jsonl").exists() else []


def on_newest_device(records: list[Record]) -> list[Record]:
    """Return the records of the GPU that made the newest one: only those can be compared."""
    device = newest_device(records)
    return [record for record in records if record["case"]["device"] == device]


def newest_device(records: list[Record]) -> str | None:
    """Return the name of the GPU of the newest record; of records of the same day, the last one is the newest."""
    of_gpus = [record for record in records if record["case"]["device"] != "cpu"]
    return max(reversed(of_gpus), key=lambda record: str(record["date"]))["case"]["device"] if of_gpus else None


def device_records(measure: str) -> list[Record]:
    """Return the records of a measure of bench_device.py that one GPU made, the newest."""
    records = on_newest_device(latest_if_any("device", "device", "measure", "network", "batch_samples", "feed"))
    return [record for record in records if record["case"]["measure"] == measure]


def paragraph(text: str) -> str:
    """Return a text in lines as wide as those of the pages."""
    lines = textwrap.wrap(text, 125, break_long_words=False, break_on_hyphens=False)
    return "".join(f"{line}\n" for line in lines)
