"""Benchmarks of other loaders: the contestants' batches are checked, and the README quotes all of their turns."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def crops(seed: int, num: int = 8) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (num, 224, 224, 3), np.uint8)


def test_a_check_of_batches_finds_shape_mean_and_repeated_crops() -> None:
    from peers.look import Look
    from peers.race import Output

    look = Look(Output.UINT8)
    look.first_epoch((crops(0), np.arange(8)))
    look.first_epoch((crops(1).transpose(0, 3, 1, 2), np.arange(8)))
    facts = look.facts()
    assert (facts["shapes"], facts["dtypes"], facts["num_distinct"]) == ([(224, 224, 3)], ["uint8"], 16)
    assert facts["mean"] == pytest.approx(127.5, abs=1)
    assert facts["mean_label"] == 3.5
    assert look.later_epoch((crops(2), np.arange(8))) == 0
    assert look.later_epoch((np.concatenate([crops(0)[:3], crops(2)[:5]]), np.arange(8))) == 3


def test_a_contestant_whose_batches_differ_from_the_others_is_refused() -> None:
    from bench_peers import check
    from contestants import ENTRIES, CannotRunError, Running

    def running(**looked: Any) -> Running:
        facts = {"shapes": [[224, 224, 3]], "dtypes": ["uint8"], "mean": 92.0, "num_distinct": 640, "mean_label": 4.5}
        contestant = Running(ENTRIES[0], 2, None, Path())  # type: ignore[arg-type]
        contestant.first = {"num_samples": 640, "looked": facts | looked}
        return contestant

    check(running(), "uint8", 640, 92.5)
    for looked in (
        {"shapes": [[256, 256, 3]]},
        {"dtypes": ["float32"]},
        {"mean": 60.0},
        {"num_distinct": 320},
        {"mean_label": 2.0},
    ):
        with pytest.raises(CannotRunError, match="not the same work as the others"):
            check(running(**looked), "uint8", 640, 92.5)


def test_the_decoder_of_a_library_is_read_from_its_file() -> None:
    from peers.codecs import codec

    assert codec("simplejpeg").startswith("libjpeg-turbo ")
    assert codec("datago") == "datago: no file datago/datago*.so"


def record(contestant: str, code: str, rates: list[float], ratios: list[float]) -> dict[str, Any]:
    case = {
        "output": "uint8",
        "contestant": contestant,
        "note": "",
        "is_loader": True,
        "decodes_with": "",
        "code": code,
    }
    figures = {
        "images_per_second": rates,
        "ratio_to_mpload": ratios,
        "peak_pss_bytes": 1,
        "first_batch_seconds": 1.0,
    }
    return {"case": case, "figures": figures}


@pytest.mark.slow
@pytest.mark.processes
def test_the_readme_quotes_all_turns_of_the_latest_code_and_names_faster_loaders(tmp_path: Path) -> None:
    shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("peers"))
    (tmp_path / "README.md").write_text(
        "<!-- table: throughput -->\n<!-- end -->\n<!-- table: ahead -->\n<!-- end -->\n"
    )
    records = [
        record("swift", "old", [9000.0], [9.0]),
        record("mpload", "new", [1000.0, 1100.0], [1.0, 1.0]),
        record("swift", "new", [1200.0, 1300.0], [1.2, 1.3]),
        record("mpload", "new", [900.0], [1.0]),
        record("swift", "new", [500.0], [0.5]),
        record("slow", "new", [10.0], [0.1]),
    ]
    lines = "".join(f"{json.dumps(each)}\n" for each in records)
    (tmp_path / "benchmarks/records/peers.jsonl").write_text(lines)
    command = [sys.executable, str(tmp_path / "benchmarks/report.py")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    readme = (tmp_path / "README.md").read_text()
    assert "| swift | 1,200 (500-1,300) 1.20 |" in readme
    assert "| mpload | 1,000 (900-1,100) 1.00 |" in readme
    assert "- images/s, uint8 crops: swift (1.20 times mpload)." in readme
    assert "slow (" not in readme
