"""`mpload doctor` examines the user's own dataset, and a job that runs."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from mpload import MPDataset, MPLoader, RandomResizedCrop, Topology
from mpload.judgement.facts import Alternative, Change, Cost, Job
from mpload.judgement.remedies import remedies
from mpload.judgement.verdict import judge
from mpload.tools.doctor import examine
from mpload.tools.doctor.subject import IndexSubject
from mpload.tools.trials import run_trial
from tests.support import own_datasets
from tests.support.judged import plain
from tests.support.photos import make_photo_tree
from tests.support.programs import Ran, mpload, told
from tests.support.staged_more import MORE

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")]

_MODULE = "tests.support.own_datasets"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of photos, one of four of which is broken."""
    make_photo_tree(tmp_path / "photos", num_images=24, num_classes=2, seed=0)
    files = sorted((tmp_path / "photos").glob("*/*"))
    for path in files[::4]:
        path.write_bytes(b"\xff\xd8\xff broken")
    out = tmp_path / "all.txt"
    out.write_text("".join(f"{path.relative_to(tmp_path)} 0\n" for path in files * 20))
    monkeypatch.setenv("MPLOAD_TEST_INDEX", str(out))
    return out


def doctor(*options: str) -> Ran:
    return mpload("doctor", "--seconds", "1.5", "--workers", "2", *options)


@pytest.mark.slow
def test_a_map_style_dataset_that_waits_needs_more_workers() -> None:
    found = told(
        doctor(f"{_MODULE}:mapped", "--batch-size", "4", "--step-time", "0.01", "--tune", "--seconds", "5", "--json")
    )
    assert found["verdict"]["bottleneck"] == "too few workers"
    assert any(trial["num_workers"] > 2 for trial in found["findings"]["trials"]), "no remedy was tried"
    assert found["findings"]["samples"]["output_bytes"] >= 8 * 8 * 8


def test_the_samples_of_a_batch_that_is_a_list_of_arrays_are_counted() -> None:
    job = Job(batch_size=8, num_workers=1)
    tried = run_trial(
        lambda: MPLoader(own_datasets.mapped, batch_size=8, num_workers=1, topology=Topology()), job=job, seconds=0.5
    )
    assert tried.busy_share is not None
    assert tried.samples_per_second * tried.decode_seconds == pytest.approx(tried.busy_share, rel=0.5)


@pytest.mark.slow
def test_tune_applies_remedies_to_a_sample_and_writes_nothing_beside_the_data(tmp_path: Path) -> None:
    with ExitStack() as stack:
        index = MORE["all progressive"].prepare(tmp_path, stack)
    before = sorted(tmp_path.rglob("*"))
    options = (str(index), "--batch-size", "2", "--step-time", "0.0001", "--decode", "tests.support.staged:plain_crop")
    found = told(doctor(*options, "--tune", "--seconds", "6", "--json"))
    chosen = [remedy for remedy in found["remedies"] if remedy["change"] or remedy["num_workers"]][:3]
    tried = [remedy for remedy in chosen if remedy["predicted_gain"] is not None]
    assert tried, found["remedies"]
    assert {"resized", "cached_resized", "baseline", "row_index"} >= {remedy["change"] for remedy in tried}
    assert {trial["change"] for trial in found["findings"]["trials"]} >= {remedy["change"] for remedy in tried}
    assert all("no time was left" in remedy["not_tried"] for remedy in chosen if remedy not in tried), chosen
    assert set(tmp_path.rglob("*")) - set(before) <= {index.with_name(f"{index.name}.mpx")}


@pytest.mark.parametrize(("patience", "why"), [(-1.0, "no time was left"), (3.0, "No space left on device")])
def test_a_remedy_that_could_not_be_tried_says_why(
    patience: float, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def changed(self, *_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(examine, "_PATIENCE", patience)
    smaller = Alternative(change=Change.RESIZED, decode=Cost(cpu_seconds=1e-4), detail="256")
    facts = plain(decode=Cost(cpu_seconds=0.01), alternatives=(smaller,))
    chosen = [remedy for remedy in remedies(facts, judge(facts)) if remedy.change]
    tries = examine.Tries(subject=cast("Any", FullDisk()), seconds=1.0, folder=tmp_path, announce=lambda _: None)
    after = tries.run_remedies(facts, chosen)
    (remedy,) = [remedy for remedy in remedies(after, judge(after)) if remedy.not_tried]
    assert remedy.change is Change.RESIZED, remedy
    assert re.search(f"x as fast, predicted; not tried: {why}", remedy.gain_text)


@pytest.mark.slow
def test_broken_samples_are_the_verdict_unless_the_policy_of_the_dataset_allows_them(index: Path) -> None:
    found = told(doctor(str(index), "--batch-size", "4", "--step-time", "10", "--json"))
    assert found["verdict"]["bottleneck"] == "broken samples"
    assert "mpload inspect" in found["remedies"][0]["text"]
    found = told(doctor(f"{_MODULE}:tolerant", "--step-time", "10", "--json"))
    assert found["verdict"]["bottleneck"] == "consumer"
    assert not index.with_name("bad.jsonl").exists(), "the doctor wrote into the user's report"


@pytest.mark.slow
def test_a_map_style_dataset_with_gaps_is_broken_and_no_index_is_asked_for() -> None:
    found = told(doctor(f"{_MODULE}:gaps", "--batch-size", "4", "--json"))
    assert found["verdict"]["bottleneck"] == "broken samples"
    number = found["findings"]["samples"]["first_failure"].removeprefix("sample ").partition(":")[0]
    assert found["findings"]["samples"]["first_failure"] == f"sample {number}: KeyError: {number}"
    assert [remedy["text"].partition(":")[0] for remedy in found["remedies"]] == [
        "List the broken samples, and repair them",
        "Replace them by others",
    ]


@pytest.mark.slow
def test_a_dataset_is_examined_with_its_cache_and_nothing_is_added_to_that(index: Path) -> None:
    found = told(doctor(f"{_MODULE}:cached", "--step-time", "10", "--json"))
    assert found["findings"]["kept_share"] == pytest.approx(0.5)
    assert found["findings"]["job"]["batch_size"] == 4
    kept = list(index.with_name("cache").rglob("segment-*"))
    assert not kept


@pytest.mark.slow
def test_wrong_arguments_are_reported_in_one_line(index: Path) -> None:
    for options, message in (
        ((), "give either a dataset or --pid"),
        ((str(index), "--pid", "1"), "give either a dataset or --pid"),
        ((f"{_MODULE}:cached", "--batch-size", "5"), "has batch_size=4"),
        ((f"{_MODULE}:cached", "--decode", "a:b"), "Leave out --decode"),
        ((f"{_MODULE}:nothing",), "has no attribute 'nothing'"),
        ((f"{_MODULE}:empty",), "Alike holds no samples"),
        (
            ("--pid", "1", "--tune"),
            "--pid looks at a job as it runs. Leave out --workers, --tune",
        ),
        (("math:pi",), "neither an MPDataset nor a map-style dataset"),
    ):
        ran = doctor(*options)
        assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
        assert message in ran.stderr


@contextmanager
def job(code: str) -> Iterator[int]:
    """Run a training script until the end of the block. Yield its process ID."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield process.pid
        finally:
            process.kill()


_JOB = """
import time
from mpload import MPLoader, Topology
from tests.support.map_styles import Sleeping
with MPLoader(Sleeping(100_000), batch_size=4, num_workers=2, topology=Topology()) as loader:
    for number, batch in enumerate(loader):
        if number == 2:
            print("started", flush=True)
        time.sleep(STEP)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("step_seconds", "bottleneck"), [("0.0", "too few workers"), ("0.2", "consumer")])
def test_a_running_job_is_judged_by_its_statistics_and_the_kernels_counters(step_seconds: str, bottleneck: str) -> None:
    with job(_JOB.replace("STEP", step_seconds)) as pid:
        found = told(mpload("doctor", "--pid", str(pid), "--seconds", "2", "--json"))
        shown = mpload("doctor", "--pid", str(pid), "--seconds", "1").stdout
    (loader,) = found["loaders"]
    assert loader["verdict"]["bottleneck"] == bottleneck
    if bottleneck == "consumer":
        assert "torch.profiler" in shown
    else:
        assert "num_workers=" in loader["remedies"][0]["text"]
        assert "they wait, not compute" in shown


@pytest.mark.slow
def test_a_job_that_takes_no_batch_or_was_stopped_is_not_judged() -> None:
    with job(_JOB.replace("STEP", "1000 if number == 2 else 0")) as pid:
        time.sleep(1.0)
        ran = mpload("doctor", "--pid", str(pid), "--seconds", "0.5")
        os.kill(pid, signal.SIGSTOP)
        stopped = mpload("doctor", "--pid", str(pid), "--seconds", "0.5")
        top = mpload("top", str(pid), "--once", "--interval", "0.1", COLUMNS="200")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1), ran.stderr
    assert f"process {pid} took no batch in 0.5 s" in ran.stderr
    assert stopped.stderr == f"mpload: process {pid} was stopped by a signal. Continue it: kill -CONT {pid}\n"
    assert f"stopped by a signal; `kill -CONT {pid}` continues it" in top.stdout


def test_samples_that_no_batch_can_hold_are_reported_in_one_line() -> None:
    ran = doctor(f"{_MODULE}:of_none")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1), ran.stderr
    assert re.search(r"Alike: none of 10 samples could be made: sample \d: sample is a NoneType", ran.stderr)


def test_a_process_without_a_loader_is_reported_in_one_line() -> None:
    ran = mpload("doctor", "--pid", str(os.getpid()), "--seconds", "1")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1)
    assert "no MPLoader with workers runs" in ran.stderr


def test_the_transport_is_tried_with_the_form_that_the_transform_makes(index: Path) -> None:
    dataset: MPDataset[Any] = MPDataset(index, decode=RandomResizedCrop(32), transform=own_datasets.as_doubles)
    facts = IndexSubject(dataset).measure(
        Job(batch_size=4, num_workers=1), seconds=0.5, seed=0, announce=lambda _: None
    )
    assert (facts.samples.output_shape, facts.samples.output_dtype) == ((32, 32, 3), "float64")
    assert facts.samples.output_bytes == 32 * 32 * 3 * 8
