"""The memory of process trees over time, measured on real processes with and without leaks."""

import contextlib
import csv
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mpload.cli.main import app
from mpload.cli.monitor_plot import Role, find_roles
from mpload.errors import ArgumentError
from mpload.memory.machine import MemoryGauge
from mpload.memory.monitor import MemoryMonitor, Reading, find_growth, write_csv, write_parquet
from mpload.memory.process_tree import ProcessTree
from mpload.memory.usage import ProcessMemory, memory_of
from mpload.units import MIB
from tests.support.photos import make_photo_tree
from tests.support.programs import mpload
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
@pytest.mark.parametrize("seconds", [6.0, pytest.param(60.0, marks=pytest.mark.quiet)])
def test_in_a_clean_run_no_leak_is_reported_and_every_process_has_its_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("mpload.memory.monitor._CORE_SHARE", 0.01 * 60 / seconds)
    with train(tmp_path, leak_mb_per_second=0) as run:
        found = watch(
            run, interval_seconds=seconds / 60, until=lambda now, _: now > seconds and num_epochs(tmp_path) > 3
        )
        reading = MemoryMonitor(run.pid).read()
        parents = {process.pid: psutil.Process(process.pid).ppid() for process in reading.processes}
        roles = find_roles([reading], root_pid=run.pid, parents=parents)
    assert found == set()
    assert roles[run.pid] is Role.TRAINING
    assert Counter(roles.values()) == {Role.TRAINING: 1, Role.ZYGOTE: 1, Role.WORKER: 8}


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


def test_the_number_of_readings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.memory.monitor._MAX_READINGS", 16)
    monitor = MemoryMonitor()
    for _ in range(200):
        monitor.read()
        assert len(monitor.readings) < 16
    seconds = [reading.seconds for reading in monitor.readings]
    assert seconds == sorted(seconds)
    assert monitor.peak.pss_bytes >= max(reading.total.pss_bytes for reading in monitor.readings)


def test_the_csv_has_a_line_for_each_reading_and_process(tmp_path: Path) -> None:
    readings = [MemoryMonitor().read() for _ in range(3)]
    write_csv(readings, tmp_path / "memory.csv")
    with (tmp_path / "memory.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(reading.processes) for reading in readings)
    assert int(rows[0]["pss_bytes"]) == readings[0].processes[0].pss_bytes


def test_the_parquet_file_has_the_same_contents_as_the_csv(tmp_path: Path) -> None:
    readings = [MemoryMonitor().read() for _ in range(3)]
    write_csv(readings, tmp_path / "memory.csv")
    write_parquet([*readings, Reading(seconds=9.0, processes=readings[0].processes)], tmp_path / "memory.parquet")
    rows = parquet.read_table(tmp_path / "memory.parquet").to_pylist()
    with (tmp_path / "memory.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [{name: str(value) for name, value in row.items()} for row in rows[: len(lines)]] == lines
    assert rows[-1]["seconds"] == 9.0
    assert rows[-1]["system_limit_bytes"] is None


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (
            ("anon", "file", "shmem"),
            {"members": "0::/job", "job/memory.max": f"{900 * MIB}", "job/memory.stat": ""},
        ),
        (
            ("total_rss", "total_cache", "total_shmem"),
            {
                "members": "4:memory:/job",
                "memory/job/memory.limit_in_bytes": f"{900 * MIB}",
                "memory/job/memory.stat": "",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_memory_of_a_container_is_split_by_kind(
    tmp_path: Path, words: tuple[str, ...], files: dict[str, str]
) -> None:
    statistics = "".join(f"{word} {size * MIB}\n" for word, size in zip(words, (100, 300, 50), strict=True))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text or f"cache 1\nrss 1\n{statistics}")
    usage = MemoryGauge(cgroup_folder=tmp_path, cgroup_members=tmp_path / "members").usage()
    assert usage.limit_bytes == 900 * MIB
    sizes = usage.anonymous_bytes, usage.shmem_bytes, usage.file_bytes  # the kernel counts shared memory as page cache
    assert sizes == (100 * MIB, 50 * MIB, 250 * MIB)


def test_without_a_container_usage_is_that_of_the_machine(tmp_path: Path) -> None:
    gauge = MemoryGauge(cgroup_folder=tmp_path, cgroup_members=tmp_path / "none")
    usage = gauge.usage()
    assert usage.limit_bytes == pytest.approx(psutil.virtual_memory().total, rel=0.01)
    assert usage.file_bytes == usage.page_cache_bytes > 0
    assert 0 < usage.anonymous_bytes + usage.shmem_bytes + usage.file_bytes < usage.limit_bytes


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="has no /dev/shm")
def test_files_in_dev_shm_are_counted() -> None:
    before = MemoryGauge().usage().dev_shm_bytes
    path = Path(f"/dev/shm/mpload-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(32 * MIB))
        assert MemoryGauge().usage().dev_shm_bytes > before + 16 * MIB  # other processes may delete files meanwhile
    finally:
        path.unlink()


FAMILY = """
import os, signal, sys
children = []
for line in sys.stdin:
    if line == "fork\\n":
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
    else:
        pid = children.pop()
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    print(pid, flush=True)
"""


@contextlib.contextmanager
def family(num_children: int) -> Iterator[Callable[[str], int]]:
    """Start a process with children. Yields a function: "fork" and "kill" return a child's pid, "" the parent's."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def order(command: str) -> int:
            if not command:
                return process.pid
            stdin.write(f"{command}\n")
            stdin.flush()
            return int(stdout.readline())

        for _ in range(num_children):
            order("fork")
        try:
            yield order
        finally:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()


@pytest.mark.processes
def test_new_and_dead_processes_are_noticed() -> None:
    with family(3) as order:
        tree = ProcessTree(order(""))

        def pids() -> set[int]:
            return {process.pid for process in tree.read(max_seconds=10.0)}

        before = pids()
        assert len(before) == 4
        assert pids() == before
        child = order("fork")
        assert pids() == before | {child}
        assert order("kill") == child
        assert pids() == before
    assert tree.read(max_seconds=10.0) == ()


@pytest.mark.processes
def test_a_process_that_is_skipped_keeps_its_figures_and_is_read_soon() -> None:
    with family(20) as order:
        tree = ProcessTree(order(""))
        first = tree.read(max_seconds=1e-9)
        assert len(first) == 21  # new processes are always read
        assert all(one is other for one, other in zip(first, tree.read(max_seconds=1e-9), strict=True))
        latest = first
        for _ in range(200):
            latest = tree.read(max_seconds=1e-3)
        assert not {id(process) for process in first} & {id(process) for process in latest}


@pytest.mark.processes
def test_reading_large_processes_takes_no_more_cpu_time_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory_of_large(process: psutil.Process) -> ProcessMemory:
        memory = memory_of(process)
        until = time.thread_time() + 5e-3
        while time.thread_time() < until:
            pass
        return memory

    monkeypatch.setattr("mpload.memory.process_tree.memory_of", memory_of_large)
    with family(10) as order:
        tree = ProcessTree(order(""))
        tree.read(max_seconds=1.0)
        started = time.thread_time()
        for _ in range(200):
            tree.read(max_seconds=1e-3)
        assert 0.5 * 200e-3 < time.thread_time() - started < 1.5 * 200e-3


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="interval_seconds must be positive, got 0"):
        MemoryMonitor(interval_seconds=0)


def drawn_colours(path: Path) -> set[tuple[float, ...]]:
    pixels = cv2.imread(str(path))
    assert pixels is not None
    return {tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()}


@pytest.mark.processes
def test_a_monitored_command_keeps_its_output_and_exit_code_and_its_memory_is_recorded(tmp_path: Path) -> None:
    program = "import time; kept = bytearray(200 << 20); time.sleep(3); print('done'); raise SystemExit(7)"
    files: list[str | Path] = ["--csv", tmp_path / "memory.csv", "--plot", tmp_path / "memory.png"]
    files += ["--parquet", tmp_path / "memory.parquet"]
    ran = mpload("monitor", "--interval", "0.05", *files, "--", sys.executable, "-c", program)
    assert (ran.returncode, ran.stdout) == (7, "done\n")
    peak = float(ran.stderr.split("PSS ")[1].split(" MiB")[0])
    assert 200 < peak < 260
    assert (178, 114, 0) in drawn_colours(tmp_path / "memory.png")  # blue, green, red
    assert (tmp_path / "memory.csv").read_text().startswith("seconds,pid,name,rss_bytes")
    assert parquet.read_table(tmp_path / "memory.parquet").num_rows > 3


@pytest.mark.processes
def test_a_command_that_ends_immediately_can_be_plotted(tmp_path: Path) -> None:
    ran = mpload("monitor", "--plot", tmp_path / "memory.png", "--", "true")
    assert (ran.returncode, ran.stderr.count("\n")) == (0, 1), ran.stderr
    assert cv2.imread(str(tmp_path / "memory.png")) is not None


@pytest.mark.processes
def test_a_terminal_shows_pss_rss_and_what_uses_the_memory() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mpload", "monitor", "--interval", "0.1", "--", "sleep", "0.5"]
    environment = {**os.environ, "COLUMNS": "200", "LINES": "50", "TERM": "xterm"}
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # reading fails once the command has closed the terminal
            while block := os.read(ours, 1 << 16):
                shown += block
    os.close(ours)
    text = shown.decode()
    for word in ("PSS", "USS", "RSS", "swap", "sleep", "anonymous", "page cache", "/dev/shm"):
        assert word in text, word


@pytest.mark.processes
def test_a_command_killed_by_a_signal_gives_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    assert mpload("monitor", "--", "sh", "-c", "kill -9 $$").returncode == 137


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has installed a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.processes
def test_a_command_receives_sigterm_and_may_handle_it(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 3' TERM; echo ready; while true; do sleep 0.1; done"
    command = [sys.executable, "-m", "mpload", "monitor", "--csv", f"{tmp_path}/memory.csv", "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "ready\n"
        assert wait_until(lambda: catches(watching.pid, signal.SIGTERM))
        watching.terminate()
        output, errors = watching.communicate(timeout=60)
    assert (watching.returncode, output) == (3, "saved\n"), errors
    assert (tmp_path / "memory.csv").read_text().startswith("seconds,pid,name,rss_bytes")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "not both"),
        (("--pid", "1", "--", "true"), 2, "not both"),
        (("--pid", "4194305"), 1, "no such process"),
        (("--", "no-such-program-here"), 1, "no-such-program-here: No such file"),
        (("--plot", "x.jpg", "--", "echo", "run"), 2, "pictures are written as .png. Name it x.png"),
        (("--csv", "no/x.csv", "--", "echo", "run"), 2, "the folder no does not exist"),
        (("--parquet", "/tmp", "--", "echo", "run"), 2, "/tmp is a folder"),
        (("--interval", "0", "--", "echo", "run"), 2, "--interval must be positive, got 0"),
        (("--interval", "nan", "--", "echo", "run"), 2, "--interval must be positive, got nan"),
    ],
)
def test_wrong_use_of_the_monitor_prints_one_line(
    arguments: tuple[str, ...], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:  # in this process, because starting one takes longer than all cases
        app(["monitor", *arguments], prog_name="mpload")
    printed = capfd.readouterr()
    assert (ended.value.code, printed.out) == (code, "")
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
