"""Records: one JSON line per measured case in `benchmarks/records/NAME.jsonl`, with the machine and the versions."""

import hashlib
import json
import os
import platform
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

__all__ = ["RECORDS", "Record", "code_digest", "latest", "read_records", "write_record"]

RECORDS = Path(__file__).parent / "records"

Record = dict[str, Any]


def write_record(name: str, case: dict[str, Any], figures: dict[str, Any]) -> None:
    """Append a record.

    Args:
        name: name of the file, without its ending.
        case: what was measured, and how.
        figures: the results; each name ends with its unit.
    """
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "case": case,
        "figures": figures,
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "versions": _versions(),
    }
    RECORDS.mkdir(exist_ok=True)
    with (RECORDS / f"{name}.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")


def read_records(name: str) -> list[Record]:
    """Return all records of `records/NAME.jsonl`."""
    return [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def latest(name: str, *keys: str) -> list[Record]:
    """Return the last record of each case in `records/NAME.jsonl`, in the order in which the cases first appear.

    With `keys`, cases with the same values under these keys count as one case.
    """
    records: dict[str, Record] = {}
    for record in read_records(name):
        case = record["case"]
        records[json.dumps([case.get(key) for key in keys] if keys else case, sort_keys=True)] = record
    return list(records.values())


def code_digest() -> str:
    """Return a digest of all code that takes part in the races: mpload's and the contestants'."""
    root = Path(__file__).parents[1]
    files = (path for folder in ("mpload", "benchmarks/peers") for path in (root / folder).rglob("*"))
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in files if path.suffix in {".py", ".c", ".h", ".txt"}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = {"python": platform.python_version(), "mpload": str(project["version"])}
    for name in ("numpy", "torch"):
        if name in sys.modules:
            versions[name] = str(sys.modules[name].__version__)
    return versions
