"""Tests of the tables and sentences about a GPU in benchmarks/report.py, from made-up records."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpload

BENCHMARKS = Path(mpload.__file__).parents[1] / "benchmarks"
NAMES = ("copies", "steps", "hidden", "race", "short", "ahead", "machine", "summary")
GPU = "NVIDIA H300"


def record(case: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "Intel(R) Xeon(R)", "cores": 12, "memory_bytes": 1 << 36}
    return {"date": "2030-01-01", "case": case, "figures": figures, "machine": machine, "versions": {"torch": "3.0"}}


def raced(contestant: str, measure: str, rate: float, device: str = GPU, **figures: Any) -> dict[str, Any]:
    case = {"device": device, "contestant": contestant, "measure": measure, "batch_samples": 64, "num_workers": 12}
    return record(case, {"images_per_second": rate, "cpu_us_per_image": 100.0, **figures})


def timed(measure: str, figures: dict[str, Any], **case: Any) -> dict[str, Any]:
    return record({"device": GPU, "measure": measure, "batch_samples": 64, **case}, figures)


def reported(folder: Path, records: dict[str, list[dict[str, Any]]]) -> str:
    """Return a page with all tables about a GPU, made from `records` alone."""
    shutil.copytree(BENCHMARKS, folder / "benchmarks", ignore=shutil.ignore_patterns("peers"))
    for name in ("device", "device_peers", "cores"):
        path = folder / f"benchmarks/records/{name}.jsonl"
        path.unlink(missing_ok=True)
        if name in records:
            path.write_text("".join(f"{json.dumps(each)}\n" for each in records[name]))
    tables = [*(f"gpu-{name}" for name in NAMES), "cores", "ahead"]
    page = folder / "README.md"
    page.write_text("".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in tables))
    command = [sys.executable, str(folder / "benchmarks/report.py")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return page.read_text()


@pytest.mark.slow
@pytest.mark.processes
def test_pages_can_be_written_before_a_gpu_has_made_records(tmp_path: Path) -> None:
    page = reported(tmp_path, {})
    assert "| batch size | copy from pinned memory, GB/s |" in page
    assert "onto the GPU, " not in page


@pytest.mark.slow
@pytest.mark.processes
def test_a_race_without_training_steps_and_steps_without_copies_leave_gaps(tmp_path: Path) -> None:
    steps = {f"{feed}_step_ms": 2.0 for feed in ("resident", "prefetcher", "data_prefetcher", "plain")}
    page = reported(
        tmp_path,
        {"device": [timed("steps", steps, network="ViT-B")], "device_peers": [raced("mpload", "alone", 900.0)]},
    )
    assert "| mpload | 12 | 900 | 100 | - | - | - | - | - |" in page
    assert "| ViT-B | step alone, ms | 2.00 |" in page
    assert "|  | DevicePrefetcher | - (+0.0%) |" in page
    assert "|  | DevicePrefetcher, depth=3 | - |" in page


@pytest.mark.slow
@pytest.mark.processes
def test_every_lead_of_a_peer_is_named_and_only_the_newest_gpu_counts(tmp_path: Path) -> None:
    peers = [
        raced("DALI, mixed", "alone", 9000.0, "an older GPU"),
        raced("mpload", "alone", 1000.0, first_batch_seconds=1.0),
        raced("mpload, decoded on the GPU", "alone", 800.0, first_batch_seconds=0.1),
        raced("DALI, mixed", "alone", 2000.0, first_batch_seconds=3.0),
        raced("mpload", "train", 500.0, idle_fraction=0.02),
        raced("DALI, mixed", "train", 500.4, idle_fraction=0.01),
        raced("no loader", "train", 550.0, idle_fraction=0.0),
    ]
    hidden = timed("hidden", {"work_ms": 0.5, "hidden_fraction": 0.9}, network="ViT-B", feed="prefetcher")
    cores = [
        record({"contestant": name, "num_workers": num_workers}, {"images_per_second": rate})
        for name, rates in {"mpload": {1: 100.0, 4: 300.0}, "SPDL": {1: 90.0, 4: 310.0}}.items()
        for num_workers, rate in rates.items()
    ]
    page = reported(tmp_path, {"device": [hidden], "device_peers": peers, "cores": cores})
    assert "9,000" not in page
    assert (
        "- DALI, mixed: images/s (2,000 against 1,000), idle time of the GPU (1.0% against 2.0%).\n" in page
    )  # 500.4 images/s beside a step are shown as 500, and are no lead
    assert "- photographs onto the GPU, images/s (mpload 1,000): DALI, mixed (2,000).\n" in page
    assert "- images/s with 4 workers (mpload 300): SPDL (310).\n" in page
    assert "| mpload | 100 | 300 (0.75) | - |" in page
    assert "DALI, mixed (2,000); mpload (1,000)." in page
    assert "mpload reaches 90.9%" in " ".join(page.split())
    assert "hides 90% beside a step of ViT-B." in " ".join(page.split())
