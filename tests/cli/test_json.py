"""`--json`: a reporting command prints one JSON document, or one line per interval, and nothing else on stdout."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mpload import MPDataset, PartialCache, RawBytes
from mpload.cli.main import app
from mpload.tools.bench.decoders import CROP, DECODE
from tests.support import programs
from tests.support.photos import make_photo_tree
from tests.support.programs import Ran

pytestmark = pytest.mark.processes

NUM_PHOTOS = 24
REPORTING = {
    "bench decode", "bench memory", "cache clear", "cache info", "cache verify", "doctor", "index", "inspect", "merge",
    "monitor", "pack", "plan", "select", "top",
}  # fmt: skip
JOB = """
from mpload import MPLoader, Topology
from tests.support.map_styles import Sleeping
if __name__ == "__main__":
    with MPLoader(Sleeping(100_000), batch_size=8, num_workers=2, topology=Topology()) as loader:
        for number, batch in enumerate(loader):
            if number == 8:
                print("running", flush=True)
"""
PRINTING_DECODER = """
from mpload import RandomResizedCrop
print("imported")
def decode(data, rng):
    print("decoded", flush=True)
    return RandomResizedCrop(32)(data, rng)
"""


def mpload(*arguments: str | Path, **options: Any) -> Ran:
    return programs.mpload(*arguments, "--json", **options)


def told(*arguments: str | Path, code: int = 0, **options: Any) -> dict[str, Any]:
    """Return the document that a command prints, and check that it prints nothing else."""
    ran = mpload(*arguments, **options)
    assert (ran.returncode, ran.stderr) == (code, "")
    document = json.loads(ran.stdout)
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    make_photo_tree(folder / "photos", num_images=NUM_PHOTOS, num_classes=3, seed=0)
    made = told("index", folder / "photos", "-o", folder / "train.txt")
    assert made["indexes"][0]["num_samples"] == NUM_PHOTOS
    assert made["seconds"] > 0
    return folder / "train.txt"


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for command in group.commands.values():
        full = f"{name} {command.name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, full)
        else:
            yield full, command


def test_every_command_except_the_demo_and_the_server_has_the_option() -> None:
    all_commands = dict(commands(typer.main.get_command(app)))
    with_option = {
        name for name, command in all_commands.items() if any("--json" in param.opts for param in command.params)
    }
    assert with_option == REPORTING == all_commands.keys() - {"demo", "serve"}


def test_the_facts_about_an_index_are_one_document(index: Path, tmp_path: Path) -> None:
    facts = told("inspect", index, "--check", "--grid", tmp_path / "sheet.png")
    assert (facts["num_samples"], facts["num_findings"], facts["report"]) == (NUM_PHOTOS, 0, None)
    merged = told("merge", index, index, "-o", tmp_path / "twice.txt")
    assert merged == {"path": str(tmp_path / "twice.txt"), "num_samples": 2 * NUM_PHOTOS, "root": merged["root"]}


def test_selecting_prints_one_document(index: Path, tmp_path: Path) -> None:
    selected = told("select", index, "-o", tmp_path / "some.txt", "--share", "0.5")
    assert selected == {
        "path": str(tmp_path / "some.txt"),
        "num_samples": NUM_PHOTOS // 2,
        "of": NUM_PHOTOS,
        "root": selected["root"],
    }


def test_packing_and_verifying_print_one_document_each(index: Path, tmp_path: Path) -> None:
    made = told("pack", index, "-o", tmp_path / "pack")
    shards = list((tmp_path / "pack").glob("*.tar"))
    assert made == {
        "path": str(tmp_path / "pack" / "index.txt"),
        "num_samples": NUM_PHOTOS,
        "num_shards": len(shards),
        "shards_bytes": sum(shard.stat().st_size for shard in shards),
        "is_verified": False,
    }
    assert told("pack", index, "-o", tmp_path / "pack", "--verify") == made | {"is_verified": True}


def test_caches_are_one_document(index: Path, tmp_path: Path) -> None:
    dataset = MPDataset(index, decode=RawBytes(), batch_size=8, cache=PartialCache(tmp_path / "cache"))
    assert sum(len(batch[1]) for batch in dataset) == NUM_PHOTOS
    for command in ("info", "verify", "clear"):
        (cache,) = told("cache", command, tmp_path / "cache")["caches"]
        assert cache["num_entries"] == cache["num_samples"] == NUM_PHOTOS
        assert Path(cache["folder"]).parent == tmp_path / "cache"
        assert cache["used_bytes"] > 1000
    assert told("cache", "info", tmp_path / "cache") == {"caches": []}


def told_with_a_printing_decoder(command: str, index: Path, *options: str, folder: Path) -> dict[str, Any]:
    """Return the document of a command whose decoder prints, both on import and in workers."""
    (folder / "printing.py").write_text(PRINTING_DECODER)
    ran = mpload(command, index, "--decode", "printing:decode", "--batch-size", "8", *options, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stderr.splitlines()) == {"imported", "decoded"}
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


@pytest.mark.slow
def test_plan_and_doctor_report_stages_in_the_same_form(index: Path, tmp_path: Path) -> None:
    planned = told("plan", "--batch-size", "8", "--step-time", "0.1", "--iops", "40")
    assert planned["stages"][0] == {"name": "reads", "unit": "reads/s", "need": 80, "have": 40, "share": 0.5}
    job = ("--step-time", "0.1", "--workers", "1", "--seconds", "1")
    found = told_with_a_printing_decoder("doctor", index, *job, folder=tmp_path)
    assert found["needs"]["reads_per_second"] == 80
    assert found["findings"]["samples"]["num_samples"] == NUM_PHOTOS
    assert found["verdict"]["bottleneck"]
    for stage in found["verdict"]["stages"]:
        assert stage.keys() == planned["stages"][0].keys()
        assert stage["unit"] in {"reads/s", "samples/s"}
        assert stage["need"] == 80
        assert stage["share"] is None or stage["share"] == min(1, stage["have"] / stage["need"])


def test_the_output_of_a_monitored_command_is_not_in_the_document(tmp_path: Path) -> None:
    program = """
import sys, time
print("out", bytes(50 << 20)[0])
print("err", file=sys.stderr)
time.sleep(1)  # so long that the monitor takes several readings
sys.exit(3)
"""
    command = [sys.executable, "-m", "mpload", "monitor", "--json", "--interval", "0.05"]
    command += ["--csv", str(tmp_path / "readings.csv"), "--", sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 3
    assert sorted(ran.stderr.splitlines()) == ["err", "out 0"]
    facts = json.loads(ran.stdout)
    assert (facts["exit_code"], facts["num_processes"], facts["growth"]) == (3, 1, [])
    assert facts["peak"]["rss_bytes"] >= facts["peak"]["pss_bytes"] >= facts["peak"]["uss_bytes"] > 1 << 20
    assert facts["seconds"] < 60
    assert facts["limit_bytes"] > 1 << 27


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_top_prints_one_line_per_interval() -> None:
    with subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        try:
            assert job.stdout.readline() == "running\n"
            command = [sys.executable, "-m", "mpload", "top", str(job.pid), "--interval", "0.3", "--json"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as top:
                assert top.stdout is not None
                assert top.stderr is not None
                lines = [json.loads(top.stdout.readline()) for _ in range(2)]
                while not all(
                    loader["samples_per_second"] for loader in lines[-1]["loaders"]
                ):  # published now and then
                    lines.append(json.loads(top.stdout.readline()))
                job.kill()
                assert all(json.loads(line) for line in top.stdout)  # ends with the job
                assert (top.wait(timeout=30), top.stderr.read()) == (0, "")
        finally:
            job.kill()
    assert lines[0]["unix_seconds"] < lines[1]["unix_seconds"]
    (loader,) = lines[-1]["loaders"]
    assert loader["pid"] == job.pid
    assert loader["samples_per_second"] > 1
    assert len(loader["workers"]) == 2
    for worker in loader["workers"]:
        assert 0 < worker["decode_share"] <= worker["busy_share"]
        assert worker["memory_bytes"] > 1 << 20


@pytest.mark.slow
def test_benchmarks_are_one_document(index: Path) -> None:
    speeds = told("bench", "decode", index, "--rounds", "1", "--images", "4")
    assert speeds["num_images"] == 4
    assert {speed["task"] for speed in speeds["speeds"]} == {DECODE, CROP}
    measured = told("bench", "memory", "--samples", "1000", "--workers", "0", "--loaders", "mploader", "--epochs", "1")
    (case,) = measured["cases"]
    assert case["case"]["num_samples"] == 1000
    assert case["outcome"] == "done"
    assert case["peak_pss_bytes"] > 1 << 20


def test_a_failure_prints_one_line_on_stderr_and_no_document(tmp_path: Path) -> None:
    for command in (("inspect", "nowhere"), ("doctor", "nowhere"), ("top", "1")):
        ran = mpload(*command, cwd=tmp_path)
        assert ran.returncode in {1, 2}
        assert ran.stdout == ""
        assert len(ran.stderr.splitlines()) == 1


def test_findings_are_counted_and_the_exit_code_is_1(index: Path, tmp_path: Path) -> None:
    shutil.copytree(index.parent / "photos", tmp_path / "photos")
    next((tmp_path / "photos").rglob("*.*")).write_bytes(b"no photo")
    told("index", tmp_path / "photos", "-o", tmp_path / "all.txt")
    facts = told("inspect", tmp_path / "all.txt", "--check", code=1)
    assert (facts["num_findings"], facts["report"]) == (1, str(tmp_path / "all.txt.findings.jsonl"))
