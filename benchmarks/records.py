"""Append what a benchmark found to `benchmarks/records/NAME.jsonl`, with the machine and the versions it ran on."""

import json
import os
import platform
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

__all__ = ["RECORDS", "write_record"]

RECORDS = Path(__file__).parent / "records"


def write_record(name: str, case: dict[str, Any], figures: dict[str, Any]) -> None:
    """Append one line: the `case`, the `figures` (a unit in every name), and where and when they were measured."""
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
