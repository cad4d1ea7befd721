"""`mpload tune` finds the fastest settings on this machine, and stays within its memory budget."""

import ast
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError
from mpload.index.opening import open_index
from mpload.memory.budget import WORKER_BYTES
from mpload.memory.machine import num_usable_cores
from mpload.tools.tune import Outcome, Point, pick, tune, worker_counts
from mpload.units import MIB
from tests.support import staged
from tests.support.programs import mpload
from tests.support.staged import STAGED
from tests.support.transport_works import wait_until

outcomes = st.lists(
    st.builds(
        Outcome,
        point=st.builds(Point, num_workers=st.integers(1, 64), batch_size=st.integers(1, 256)),
        samples_per_second=st.one_of(st.just(0.0), st.floats(1, 1e6)),
    ),
    min_size=1,
)


@pytest.fixture(scope="module")
def index_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with ExitStack() as stack:
        return STAGED["too few workers"].prepare(tmp_path_factory.mktemp("data"), stack)


@given(outcomes)
def test_the_choice_is_nearly_the_fastest_and_no_choice_with_fewer_workers_is(found: list[Outcome]) -> None:
    fastest = max(outcome.samples_per_second for outcome in found)
    if not fastest:
        with pytest.raises(ArgumentError, match="no loader could start"):
            pick(found)
        return
    best = pick(found)
    assert best.samples_per_second * 1.05 >= fastest
    for outcome in found:
        if outcome.point.num_workers < best.point.num_workers:
            assert outcome.samples_per_second * 1.05 < fastest


@given(st.integers(1, 200), st.integers(1, 200))
def test_numbers_of_workers_grow_and_include_the_number_of_cores(cores: int, max_workers: int) -> None:
    numbers = list(worker_counts(cores, max_workers))
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1] <= max_workers) == (1, True)
    assert (cores in numbers) == (cores <= max_workers)
    assert all(after <= 2 * before for before, after in pairwise(numbers))


@pytest.mark.processes
def test_a_decoder_that_waits_gets_more_workers_than_cores(index_path: Path) -> None:
    found = tune(
        open_index(index_path),
        decode=staged.waiting_decode,
        transform=None,
        batch_sizes=[8],
        seconds=0.3,
        max_workers=16,
    )
    assert found.best.point.num_workers > num_usable_cores()
    tried = {outcome.point: outcome for outcome in found.outcomes}
    assert tried[Point(num_workers=1, batch_size=8)].waiting_share > 0.5


@pytest.mark.slow
def test_a_decoder_that_computes_gets_at_most_one_worker_more_than_cores(index_path: Path) -> None:
    found = tune(
        open_index(index_path), decode=staged.plain_crop, transform=staged.slow_transform, batch_sizes=[8], seconds=0.5
    )
    assert found.best.point.num_workers <= num_usable_cores() + 1
    assert max(outcome.point.num_workers for outcome in found.outcomes) <= 2 * num_usable_cores()


@pytest.mark.processes
def test_points_beyond_the_budget_are_not_tried(index_path: Path) -> None:
    budget_bytes = 4 * WORKER_BYTES + 8 * MIB
    found = tune(
        open_index(index_path),
        decode=staged.waiting_decode,
        transform=None,
        batch_sizes=[8, 100_000],
        memory_budget=budget_bytes,
        seconds=0.3,
    )
    ran = [outcome for outcome in found.outcomes if outcome.samples_per_second]
    assert {outcome.point.num_workers for outcome in ran} == {1, 2, 4}
    assert all(outcome.memory_bytes <= budget_bytes for outcome in ran)
    assert found.reason == "the memory budget has no room for 8 workers"
    refused = next(outcome for outcome in found.outcomes if outcome.point.batch_size == 100_000)
    assert (refused.samples_per_second, "too small" in refused.error) == (0, True)
    with pytest.raises(ArgumentError, match="too small"):
        tune(
            open_index(index_path),
            decode=staged.waiting_decode,
            transform=None,
            batch_sizes=[8],
            memory_budget=WORKER_BYTES,
        )


@pytest.mark.slow
def test_the_command_prints_a_table_and_a_call_and_writes_a_plot(index_path: Path, tmp_path: Path) -> None:
    job = (
        "--decode",
        "tests.support.staged:waiting_decode",
        "--batch-size",
        "8",
        "--max-workers",
        "2",
        "--seconds",
        "0.3",
    )
    ran = mpload("tune", index_path, *job, "--plot", tmp_path / "tune.png")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert lines[0].split()[:4] == ["workers", "batch", "budget", "samples/s"]
    assert sum("<- best" in line for line in lines) == 1
    call = next(line for line in lines if line.startswith("mpload.MPLoader("))
    ast.parse(call)
    assert "decode=tests.support.staged.waiting_decode" in call
    assert cv2.imread(str(tmp_path / "tune.png")) is not None
    told: dict[str, Any] = json.loads(mpload("tune", index_path, *job, "--json").stdout)
    assert told["best"] in told["outcomes"]
    assert f"num_workers={told['best']['point']['num_workers']}" in told["call"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--batch-size", "many"),
            "--batch-size 'many': not a list of whole numbers. Separate several sizes by commas",
        ),
        (("--batch-size", "0"), "--batch-size '0': batch sizes must be positive"),
        (("--memory-budget", "lots"), "'lots' is not a size in bytes"),
        (("--memory-budget", "1MiB"), "is too small"),
        (("--plot", "plot.pdf"), "pictures are written as .png. Name it plot.png"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(options: tuple[str, ...], message: str, index_path: Path) -> None:
    ran = mpload("tune", index_path, *options)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1, ran.stderr


@pytest.mark.processes
def test_an_index_of_broken_images_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing else")
    (tmp_path / "train.txt").write_text("broken.jpg 0\n" * 20)
    ran = mpload("tune", tmp_path / "train.txt", "--batch-size", "4", "--seconds", "0.3")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "broken.jpg" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1, ran.stderr


@pytest.mark.processes
def test_ctrl_c_prints_one_line_and_leaves_no_process(index_path: Path) -> None:
    command = [sys.executable, "-m", "mpload", "tune", str(index_path), "--seconds", "20", "--batch-size", "8"]
    started: set[psutil.Process] = set()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        family = psutil.Process(process.pid)

        def has_zygote_and_worker() -> bool:
            started.update(family.children(recursive=True))
            return process.poll() is not None or len(started) >= 2

        assert wait_until(has_zygote_and_worker), "no loader was tried"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "mpload: interrupted\n")
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive, "processes are still running"
