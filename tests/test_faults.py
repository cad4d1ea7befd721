"""Faults in user code and in the system: a loader still delivers a correct epoch, or raises an error that says why."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mpload import ErrorPolicy, MPDataset, MPLoader, Topology
from mpload.errors import ArgumentError, MploadWarning, SampleError, TooManyBadSamples
from mpload.memory.usage import anonymous_bytes
from mpload.transport.batches import PoolOptions
from mpload.units import MIB
from tests.support.batches import flat, ids, numbers, numbers_index
from tests.support.containers import memory_container
from tests.support.faults import FAULTS, OneByte, OneNumber, every_fourth_is_bad, with_clock_jumps, with_noise
from tests.support.programs import REPOSITORY
from tests.support.threads import in_background
from tests.support.transport_works import leaves_nothing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")

NUM_SAMPLES = 60
BAD = 41
MANY = PoolOptions(max_restarts=100_000)

Transform = Callable[[NDArray[np.int64]], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


def faulty(
    folder: Path, transform: Transform, *, on_error: ErrorPolicy | Literal["raise", "skip", "substitute"] = "raise"
) -> MPDataset:
    return MPDataset(
        numbers_index(folder, NUM_SAMPLES),
        decode=OneNumber(),
        transform=transform,
        batch_size=4,
        shuffle=True,
        seed=7,
        topology=Topology(),
        on_error=on_error,
    )


def at_bad(fault: Callable[[NDArray[np.int64]], Any]) -> Transform:
    """Return a local function that applies `fault` to one sample only."""
    return lambda number: fault(number) if number[0] == BAD else number


FOUND_BY_TIMEOUT = {"hangs", "stops"}


def options_for(name: str) -> PoolOptions:
    return PoolOptions(sample_timeout_seconds=0.5 if name in FOUND_BY_TIMEOUT else 60.0)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_transform_is_an_error_that_names_the_sample(folder: Path, name: str) -> None:
    fault, cause = FAULTS[name]
    dataset = faulty(folder, at_bad(fault))
    with (
        leaves_nothing(),
        MPLoader(dataset, num_workers=2, options=options_for(name)) as loader,
        pytest.raises(SampleError, match=rf"(?s)60.txt:44: sample {BAD} .*: .*{cause}"),
    ):
        list(loader)


@pytest.mark.processes
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (number % 3)) for number, name in enumerate(FAULTS)]
)
def test_a_skipped_fault_loses_only_its_own_sample(folder: Path, tmp_path: Path, name: str) -> None:
    fault, _ = FAULTS[name]
    expected = [[number for number in batch if number != BAD] for batch in ids(numbers(folder, NUM_SAMPLES))]
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl")
    dataset = faulty(folder, at_bad(fault), on_error=policy)
    with (
        pytest.warns(MploadWarning, match="a bad sample"),
        MPLoader(dataset, num_workers=2, options=options_for(name)) as loader,
    ):
        assert ids(loader) == expected
    reported = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [line["sample_id"] for line in reported] == [BAD]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_too_many_bad_samples_are_counted_over_all_workers(folder: Path, tmp_path: Path, num_workers: int) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", max_error_fraction=0.01)
    dataset = numbers(folder, 1000, batch_size=16, transform=every_fourth_is_bad, on_error=policy)
    with (
        MPLoader(dataset, num_workers=num_workers) as loader,
        pytest.warns(MploadWarning, match="a bad sample"),
        pytest.raises(TooManyBadSamples, match=r"11 of \d+ samples failed, more than max_error_fraction=0.01"),
    ):
        list(loader)
    reported = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    alone = flat(ids(numbers(folder, 1000)))
    assert [line["sample_id"] for line in reported] == [number for number in alone if number % 4 == 0][:11]


@pytest.mark.processes
@pytest.mark.parametrize("held", [threading.Lock(), (number for number in range(3))])
def test_a_transform_that_cannot_be_copied_is_refused_at_construction(folder: Path, held: object) -> None:
    dataset = faulty(folder, lambda number: number if held else None)
    with leaves_nothing(), pytest.raises(ArgumentError, match=r"workers cannot get a copy of .*make locks"):
        MPLoader(dataset, num_workers=2)


def noisy(folder: Path) -> MPDataset:
    return numbers(folder, 240, transform=with_noise)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has already ended
        os.kill(pid, number)


def pids_of(loader: MPLoader, part: str = "mpload") -> list[int]:
    return [pid for name, pid in loader.pids.items() if part in name]


def kill_a_worker(loader: MPLoader, chance: random.Random) -> None:
    if workers := pids_of(loader, "worker"):
        kill(chance.choice(workers))


def kill_all_workers(loader: MPLoader, chance: random.Random) -> None:
    for pid in pids_of(loader, "worker"):
        kill(pid)


def kill_the_zygote(loader: MPLoader, chance: random.Random) -> None:
    if pids_of(loader, "worker"):  # a zygote that dies repeatedly before it has workers ends the job
        kill(loader.pids["mpload-zygote"])


def stop_a_worker(loader: MPLoader, chance: random.Random) -> None:
    if workers := pids_of(loader, "worker"):
        kill(chance.choice(workers), signal.SIGSTOP)


@contextlib.contextmanager
def disturbed(loader: MPLoader, disturb: Callable[[MPLoader, random.Random], None], seconds: float) -> Iterator[None]:
    """Call `disturb` at random times, every `seconds` on average, if a batch has arrived since the last call.

    Otherwise, on a busy machine, no worker would live long enough to make a batch, and samples would be blamed.
    """
    chance = random.Random(0)

    def run(end: threading.Event) -> None:
        num_batches = -1
        while not end.wait(chance.uniform(0, 2 * seconds)):
            if loader._pool is not None and loader._pool.stats.num_batches > num_batches:
                num_batches = loader._pool.stats.num_batches
                disturb(loader, chance)

    with in_background(run):
        yield


def same_bits(left: Sequence[Sequence[torch.Tensor]], right: Sequence[Sequence[torch.Tensor]]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("disturb", "seconds"),
    [
        (kill_a_worker, 0.03),
        pytest.param(kill_all_workers, 0.1, marks=pytest.mark.slow),
        pytest.param(kill_the_zygote, 0.25, marks=pytest.mark.slow),
        (stop_a_worker, 0.2),
    ],
)
def test_epochs_are_bit_identical_whichever_process_is_killed_or_stopped(
    folder: Path, disturb: Callable[[MPLoader, random.Random], None], seconds: float
) -> None:
    alone = noisy(folder)
    expected = [list(alone) for _ in range(3)]
    options = PoolOptions(max_restarts=100_000, sample_timeout_seconds=0.3)
    with MPLoader(noisy(folder), num_workers=3, options=options) as loader, disturbed(loader, disturb, seconds):
        num_epochs = 0
        while num_epochs < 3 or not loader.stats().num_deaths:
            loader.set_epoch(num_epochs % 3)
            assert same_bits(list(loader), expected[num_epochs % 3])
            num_epochs += 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hundreds_of_kills_of_any_process_change_no_bit_of_any_epoch(folder: Path) -> None:
    def any_process(loader: MPLoader, chance: random.Random) -> None:
        chance.choices([kill_a_worker, kill_all_workers, kill_the_zygote], [30, 3, 1])[0](loader, chance)

    alone = noisy(folder)
    expected = [list(alone) for _ in range(4)]
    num_epochs = 0
    with MPLoader(noisy(folder), num_workers=4, options=MANY) as loader, disturbed(loader, any_process, 0.02):
        while loader.stats().num_deaths < 400:
            loader.set_epoch(num_epochs % 4)
            assert same_bits(list(loader), expected[num_epochs % 4])
            num_epochs += 1
    assert num_epochs > 4


LARGE = """
import json, resource, sys, warnings
from mpload import MPDataset, MPLoader, MploadWarning, Topology
from tests.support.decoders import large_number
from tests.support.batches import ids
warnings.simplefilter("ignore", MploadWarning)  # the budget cannot foresee batches of 16 MB
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
dataset = MPDataset(sys.argv[1], decode=large_number, batch_size=8, seed=3, shuffle=True, topology=Topology())
with MPLoader(dataset, num_workers=8, memory_budget="600MiB") as loader:
    used_bytes = 0
    def batches():
        global used_bytes
        for batch in loader:
            used_bytes = max(used_bytes, loader._pool.ring.used_bytes)
            yield batch
    epochs = [ids(batches()), ids(batches())]
    deaths = loader.stats().num_deaths
print(json.dumps({"epochs": epochs, "used_bytes": used_bytes, "deaths": deaths}))
"""


def run_large(path: Path, *, before: Sequence[str] = (), max_fds: int = 0) -> Any:
    done = subprocess.run(
        [*before, sys.executable, "-c", LARGE, str(path), str(max_fds)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected_epochs(folder: Path) -> list[Any]:
    alone = numbers(folder, 160, batch_size=8, seed=3)
    return [ids(alone), ids(alone)]


@pytest.mark.processes
@pytest.mark.parametrize(
    "mount",
    [
        pytest.param("mount -t tmpfs -o size=64m mpload /dev/shm", id="64 MB", marks=pytest.mark.slow),
        pytest.param("mount -t tmpfs -o ro mpload /dev/shm", id="none"),
    ],
)
def test_slots_do_not_need_dev_shm(folder: Path, expected_epochs: list[Any], mount: str) -> None:
    before = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here (needs Linux and root)")
    found = run_large(numbers_index(folder, 160), before=before)
    assert found["epochs"] == expected_epochs
    assert found["used_bytes"] > 64 * MIB
    assert not found["deaths"]


@pytest.mark.slow
def test_256_file_descriptors_are_enough(folder: Path, expected_epochs: list[Any]) -> None:
    found = run_large(numbers_index(folder, 160), max_fds=256)
    assert found["epochs"] == expected_epochs
    assert not found["deaths"]


LEAKING = """
import json, sys
import numpy as np
from mpload import MPDataset, MPLoader, Topology
from mpload.memory.usage import process_memory
from tests.support.decoders import number_in
from tests.support.batches import ids
leaked = []

def leak(number):
    leaked.append(np.ones(4 << 20, np.uint8))
    return number

dataset = MPDataset(
    sys.argv[1], decode=number_in, transform=leak, batch_size=8, seed=3, shuffle=True, topology=Topology()
)
with MPLoader(dataset, num_workers=1, memory_budget="100MiB") as loader:
    model = np.ones(max(0, int(sys.argv[2]) - process_memory().rss_bytes), np.uint8)
    batches = ids(loader)
    deaths = loader.stats().num_deaths
    history = list(loader._pool._crew._history)
print(json.dumps({"ids": batches, "deaths": deaths, "history": [line for _, line in history]}))
"""


@pytest.mark.processes
@pytest.mark.parametrize("parent_bytes", [400 * MIB, pytest.param(850 * MIB, marks=pytest.mark.slow)])
def test_a_transform_that_leaks_in_a_small_container_loses_workers_but_no_sample(
    folder: Path, parent_bytes: int
) -> None:
    expected = ids(numbers(folder, 400, batch_size=8, seed=3))
    with memory_container(1000 * MIB) as container:
        if container is None:
            pytest.skip("no control group with a memory limit can be made here (needs Linux and root)")
        join = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(container.procs)]
        done = subprocess.run(
            [*join, sys.executable, "-W", "ignore", "-c", LEAKING, str(numbers_index(folder, 400)), str(parent_bytes)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert container.num_oom_kills == found["deaths"] >= 1
    assert found["ids"] == expected
    assert "SIGKILL, out of memory" in found["history"][0]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("days", [-1, 1])
def test_clock_jumps_kill_no_worker_and_hide_no_dead_or_stopped_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    clock, jumps = time.time, itertools.count()
    options = PoolOptions(sample_timeout_seconds=2.0)
    with MPLoader(numbers(folder, 400, transform=with_clock_jumps), num_workers=2, options=options) as loader:
        iterator = iter(loader)
        found = ids([next(iterator)])
        monkeypatch.setattr(time, "time", lambda: clock() + days * 86400 * next(jumps))
        monkeypatch.setattr(time, "time_ns", lambda: round(time.time() * 1e9))
        found += ids([next(iterator) for _ in range(20)])
        assert loader.stats().num_deaths == 0
        for number, num_batches in ((signal.SIGKILL, 20), (signal.SIGSTOP, 40)):
            before = loader.stats().num_deaths
            for pid in pids_of(loader, "worker"):
                kill(pid, number)
            found += ids([next(iterator) for _ in range(num_batches)])
            assert loader.stats().num_deaths > before
        found += ids(iterator)
    assert found == ids(numbers(folder, 400))


@pytest.mark.slow
@pytest.mark.parametrize("num_cycles", [30, pytest.param(1000, marks=pytest.mark.timeout(900))])
def test_cycles_of_making_iterating_and_closing_leave_nothing_behind(folder: Path, num_cycles: int) -> None:
    def cycle() -> None:
        dataset.set_epoch(0)
        with MPLoader(dataset, num_workers=2) as loader:
            assert ids(loader) == expected

    dataset = MPDataset(numbers_index(folder, 8), decode=OneByte(), batch_size=4, shuffle=True, topology=Topology())
    expected = ids(dataset)
    for _ in range(5):
        cycle()
    before = anonymous_bytes(os.getpid())
    with leaves_nothing():
        for _ in range(num_cycles):
            cycle()
    assert anonymous_bytes(os.getpid()) - before < 4 * MIB + num_cycles * 2048
