"""The memory of a process tree over time: real processes that leak and that do not."""

import csv
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError
from mpload.memory import ProcessMemory
from mpload.monitor import MemoryMonitor, Reading, find_growth, write_csv
from mpload.units import MIB

TREE = """
import os, sys, time
from multiprocessing import get_context

def work(number, leaks):
    kept = []
    for step in range(10_000):
        held = bytearray(os.urandom(1 << 16) * (16 + 64 * (step % 3)))  # as batches come and go
        if leaks:
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


def series(uss_bytes: list[float], *, pid: int = 1) -> list[Reading]:
    return [
        Reading(
            seconds=float(second),
            processes=(
                ProcessMemory(pid=pid, name="worker", rss_bytes=0, pss_bytes=0, uss_bytes=int(size), swap_bytes=0),
            ),
        )
        for second, size in enumerate(uss_bytes)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("leaking", [3, -1])
def test_a_leak_in_one_of_eight_workers_is_found_and_none_where_there_is_none(tmp_path: Path, leaking: int) -> None:
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    with subprocess.Popen([sys.executable, script, str(leaking), "60"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        leaker = int(process.stdout.readline())
        with MemoryMonitor(process.pid, interval_seconds=0.25) as monitor:
            time.sleep(16)
        for worker in psutil.Process(process.pid).children():
            worker.kill()
        process.kill()
    assert [growth.pid for growth in monitor.growth()] == ([leaker] if leaking >= 0 else [])
    for growth in monitor.growth():
        assert growth.low_bytes_per_second < growth.bytes_per_second < growth.high_bytes_per_second
        assert 1e6 < growth.bytes_per_second < 4e6  # 64 KiB a step of 20 ms and a little
    assert len(monitor.readings[-1].processes) == 9


@given(
    st.integers(0, 2**32),
    st.integers(24, 300),
    st.floats(0, 64),
)
def test_what_comes_and_goes_is_no_growth(seed: int, num_readings: int, swing_mib: float) -> None:
    swing = np.random.default_rng(seed).random(num_readings) * swing_mib * MIB
    assert find_growth(series((64 * MIB + swing - swing[-1]).tolist())) == []


@given(st.floats(0.1, 100), st.floats(0, 0.5), st.integers(60, 600))
def test_steady_growth_is_found_with_its_rate(mib_per_second: float, noise: float, num_readings: int) -> None:
    jitter = np.random.default_rng(0).random(num_readings) * noise * mib_per_second * MIB
    sizes = 1e9 + np.arange(num_readings) * mib_per_second * MIB + jitter
    (growth,) = find_growth(series(sizes.tolist()))
    assert growth.bytes_per_second == pytest.approx(mib_per_second * MIB, rel=0.1)


def test_a_process_that_grows_while_it_starts_up_and_then_stays_is_no_leak() -> None:
    assert find_growth(series([MIB * min(second, 30) * 10.0 for second in range(100)])) == []


def test_readings_stay_few_however_long_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.monitor._MAX_READINGS", 16)
    monitor = MemoryMonitor()
    for _ in range(200):
        monitor.read()
        assert len(monitor.readings) < 16
    seconds = [reading.seconds for reading in monitor.readings]
    assert seconds == sorted(seconds)
    assert monitor.peak.pss_bytes >= max(reading.total.pss_bytes for reading in monitor.readings)


def test_every_reading_is_a_line_per_process_of_the_csv(tmp_path: Path) -> None:
    readings = [MemoryMonitor().read() for _ in range(3)]
    write_csv(readings, tmp_path / "memory.csv")
    with (tmp_path / "memory.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(reading.processes) for reading in readings)
    assert int(rows[0]["pss_bytes"]) == readings[0].processes[0].pss_bytes


def test_an_interval_that_is_none_is_named() -> None:
    with pytest.raises(ArgumentError, match="interval_seconds must be positive, got 0"):
        MemoryMonitor(interval_seconds=0)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mpload", "monitor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_under_the_monitor_keeps_its_output_and_exit_code(tmp_path: Path) -> None:
    program = "import time; kept = bytearray(200 << 20); time.sleep(0.5); print('done'); raise SystemExit(7)"
    files: list[str | Path] = ["--csv", tmp_path / "memory.csv", "--plot", tmp_path / "memory.png"]
    ran = run("--interval", "0.05", *files, "--", sys.executable, "-c", program)
    assert (ran.returncode, ran.stdout) == (7, "done\n")
    peak = float(ran.stderr.split("PSS ")[1].split(" MiB")[0])
    assert 200 < peak < 260
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "memory.csv").read_text().startswith("seconds,pid,name,rss_bytes")


def test_a_command_that_a_signal_ends_gives_the_code_a_shell_would(tmp_path: Path) -> None:
    assert run("--", "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize(
    ("arguments", "code", "saying"),
    [
        ((), 2, "not both"),
        (("--pid", "1", "--", "true"), 2, "not both"),
        (("--pid", "4194305"), 1, "no such process"),
        (("--", "no-such-program-here"), 1, "no-such-program-here: No such file"),
        (("--plot", "x.jpg", "--", "true"), 2, "a plot is a PNG"),
    ],
)
def test_wrong_use_of_the_monitor_is_one_clear_line(arguments: tuple[str, ...], code: int, saying: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == code
    assert saying in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
