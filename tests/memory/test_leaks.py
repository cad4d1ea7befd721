"""Leaks in process trees: found within a minute with their rate, and none reported in runs without leaks."""

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.cli.monitor_plot import Role, find_roles, starter_of
from mpload.memory.monitor import MemoryMonitor, Reading, find_growth
from mpload.memory.usage import ProcessMemory, process_memory
from mpload.units import MIB
from tests.support.photos import make_photo_tree
from tests.support.transport_works import wait_until

TREE = """
import os, sys, time
from multiprocessing import get_context

def work(number, leaks):
    kept, started = [], time.monotonic()
    for step in range(10_000):
        held = os.urandom(1 << 16) * (16 + 16 * (step % 3))  # like batches that come and go
        while leaks and len(kept) < 30 * (time.monotonic() - started):
            kept.append(os.urandom(1 << 16))
        time.sleep(0.02)

if __name__ == "__main__":
    context = get_context("fork")
    workers = [context.Process(target=work, args=(n, n == int(sys.argv[1])), daemon=True) for n in range(8)]
    for worker in workers:
        worker.start()
    print(workers[3].pid, flush=True)
    time.sleep(float(sys.argv[2]))
"""

TRAINING = """
import os, sys, time
from pathlib import Path
import mpload

class Busy:  # takes 10 ms per image; in the fourth worker it leaks `rate` MB a second
    def __init__(self, folder, rate):
        self.folder, self.rate, self.kept, self.number, self.started = folder, rate, [], None, 0.0

    def __call__(self, image):
        if self.number is None:
            self.number, self.started = self.count(), time.monotonic()
            if self.rate and self.number == 3:
                Path(self.folder, "leaker").write_text(str(os.getpid()))
        time.sleep(0.01)
        if self.rate and self.number == 3:
            while len(self.kept) < 10 * self.rate * (time.monotonic() - self.started):
                self.kept.append(os.urandom(100_000))
        return image

    def count(self):
        for number in range(1000):
            try:
                os.close(os.open(Path(self.folder, f"worker-{number}"), os.O_CREAT | os.O_EXCL))
                return number
            except FileExistsError:
                pass

if __name__ == "__main__":
    index, folder, rate = sys.argv[1], sys.argv[2], int(sys.argv[3])
    dataset = mpload.MPDataset(
        index, decode=mpload.RandomResizedCrop(64), transform=Busy(folder, rate), batch_size=32, shuffle=True
    )
    with mpload.MPLoader(dataset, num_workers=8) as loader:
        while True:
            for images, labels in loader:
                pass
            print("epoch", flush=True)
"""


@contextlib.contextmanager
def train(tmp_path: Path, *, leak_mb_per_second: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a training run with eight workers on real photographs, and wait until its first epoch is finished."""
    make_photo_tree(tmp_path / "photos", num_images=64, num_classes=2, seed=0)
    files = sorted((tmp_path / "photos").rglob("*.JPEG"))
    index = tmp_path / "train.txt"
    lines = "".join(f"{files[number % 64]}\t0\n" for number in range(256))
    index.write_text(f"#mpload 1\n#root {tmp_path}/photos\n#columns image:path label:int\n{lines}")
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-W", "ignore", *map(str, (tmp_path / "train.py", index, tmp_path, leak_mb_per_second))]
    with (tmp_path / "epochs").open("w") as epochs, subprocess.Popen(command, stdout=epochs) as run:
        try:
            assert wait_until(lambda: num_epochs(tmp_path) > 0 or run.poll() is not None)
            yield run
        finally:
            run.kill()


def num_epochs(tmp_path: Path) -> int:
    """Return how many epochs the training run has finished."""
    return len((tmp_path / "epochs").read_text().splitlines())


def watch(
    run: "subprocess.Popen[bytes]", *, interval_seconds: float, until: Callable[[float, set[int]], bool]
) -> set[int]:
    """Watch a run until `until(seconds, processes)`, and return the processes that were reported to grow."""
    monitor = MemoryMonitor(run.pid, interval_seconds=interval_seconds)
    found: set[int] = set()
    while not until((reading := monitor.read()).seconds, found):
        found |= {growth.pid for growth in monitor.growth()}
        time.sleep(interval_seconds)
    assert len(reading.processes) == 10  # eight workers, the zygote and the script
    return found


@pytest.mark.slow
@pytest.mark.processes
def test_a_leak_of_a_few_megabytes_a_second_in_one_of_eight_workers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpload.memory.monitor._CORE_SHARE", 0.2)  # the test needs many readings in little time
    with train(tmp_path, leak_mb_per_second=4) as run:
        found = watch(run, interval_seconds=0.1, until=lambda seconds, found: bool(found) or seconds > 60)
    assert found == {int((tmp_path / "leaker").read_text())}


@pytest.mark.quiet
def test_a_leak_of_one_megabyte_a_second_is_found_within_a_minute_at_one_percent_of_a_core(tmp_path: Path) -> None:
    with train(tmp_path, leak_mb_per_second=1) as run:
        found = watch(run, interval_seconds=1.0, until=lambda seconds, _: seconds > 60)
    assert found == {int((tmp_path / "leaker").read_text())}


@pytest.mark.processes
@pytest.mark.parametrize(
    "seconds", [pytest.param(6.0, marks=pytest.mark.slow), pytest.param(60.0, marks=pytest.mark.quiet)]
)
def test_in_a_clean_run_no_leak_is_reported_and_every_process_has_its_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("mpload.memory.monitor._CORE_SHARE", 0.01 * 60 / seconds)
    with train(tmp_path, leak_mb_per_second=0) as run:
        found = watch(
            run, interval_seconds=seconds / 60, until=lambda now, _: now > seconds and num_epochs(tmp_path) > 3
        )
        reading = MemoryMonitor(run.pid).read()
        parents = {process.pid: starter_of(process.pid) for process in reading.processes}
        roles = find_roles([reading], root_pid=run.pid, parents=parents)
    assert found == set()
    assert roles[run.pid] is Role.TRAINING
    assert Counter(roles.values()) == {Role.TRAINING: 1, Role.ZYGOTE: 1, Role.WORKER: 8}


@pytest.mark.quiet
@pytest.mark.parametrize("leaking", [3, -1])
def test_a_leak_in_one_of_eight_processes_is_found_and_none_in_a_clean_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaking: int
) -> None:
    monkeypatch.setattr(
        "mpload.memory.monitor._CORE_SHARE", 0.5
    )  # enough readings that some see the smallest amount held
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    with subprocess.Popen([sys.executable, script, str(leaking), "60"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        leaker = int(process.stdout.readline())
        with MemoryMonitor(process.pid, interval_seconds=0.1) as monitor:
            time.sleep(16)
        for worker in psutil.Process(process.pid).children():
            worker.kill()
        process.kill()
    assert [growth.pid for growth in monitor.growth()] == ([leaker] if leaking >= 0 else [])
    for growth in monitor.growth():
        assert growth.low_bytes_per_second < growth.bytes_per_second < growth.high_bytes_per_second
        assert 1e6 < growth.bytes_per_second < 4e6  # 30 times 64 KiB
    assert len(monitor.readings[-1].processes) == 9


def series(uss_bytes: list[float], *, pid: int = 1, clean_part: float = 0.0) -> list[Reading]:
    return [
        Reading(
            seconds=float(second),
            processes=(
                ProcessMemory(
                    pid=pid,
                    name="worker",
                    rss_bytes=0,
                    pss_bytes=0,
                    uss_bytes=int(size),
                    swap_bytes=0,
                    clean_bytes=int(size * clean_part),
                ),
            ),
        )
        for second, size in enumerate(uss_bytes)
    ]


@given(
    st.integers(0, 2**32),
    st.integers(24, 300),
    st.floats(0, 64),
)
def test_memory_that_goes_up_and_down_is_not_growth(seed: int, num_readings: int, swing_mib: float) -> None:
    swing = np.random.default_rng(seed).random(num_readings) * swing_mib * MIB
    assert find_growth(series((64 * MIB + swing - swing[-1]).tolist())) == []


@given(st.floats(0.1, 100), st.floats(0, 0.5), st.integers(60, 600))
def test_steady_growth_is_found_with_its_rate(mib_per_second: float, noise: float, num_readings: int) -> None:
    jitter = np.random.default_rng(0).random(num_readings) * noise * mib_per_second * MIB
    sizes = 1e9 + np.arange(num_readings) * mib_per_second * MIB + jitter
    (growth,) = find_growth(series(sizes.tolist()))
    assert growth.bytes_per_second == pytest.approx(mib_per_second * MIB, rel=0.1)


def test_growth_during_startup_is_not_a_leak() -> None:
    assert find_growth(series([MIB * min(second, 30) * 10.0 for second in range(100)])) == []


def test_pages_of_mapped_files_are_not_a_leak() -> None:
    sizes = [MIB * second * 1.0 for second in range(100)]
    assert find_growth(series(sizes))
    assert find_growth(series(sizes, clean_part=1.0)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads smaps_rollup")
def test_pages_of_a_mapped_file_are_clean_and_private_memory_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with path.open("wb") as file:
        file.write(bytes(16 * MIB))
        os.fsync(file.fileno())
    before = process_memory()
    mapped = np.memmap(path, np.uint8, "r")
    assert mapped[::4096].sum() == 0
    after = process_memory()
    assert abs(after.clean_bytes - before.clean_bytes - 16 * MIB) < MIB
    taken = np.ones(16 * MIB, np.uint8)
    assert abs(process_memory().clean_bytes - after.clean_bytes) < MIB
    del taken
