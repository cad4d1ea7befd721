"""The statistics that a running loader publishes: its page, `mpload top` and the progress bar."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mpload import LoaderStats, MPLoader, SourceStats, Topology
from mpload.cli.top import _shares
from mpload.telemetry.page import StatsPage, page_facts, read_pages, stats_of_page
from mpload.telemetry.showing import show_progress
from mpload.telemetry.stats import Timings
from tests.support.map_styles import Sleeping
from tests.support.mixtures import source
from tests.support.programs import mpload
from tests.support.server_figures import server_stats

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages need Linux")

JOB = """
from mpload import MPLoader, Topology
from tests.support.map_styles import Sleeping
if __name__ == "__main__":
    with MPLoader(Sleeping(100_000), batch_size=8, num_workers=2, topology=Topology()) as loader:
        for number, batch in enumerate(loader):
            if number == 8:
                print("running", flush=True)
"""


@pytest.fixture
def job() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.processes
def test_top_shows_each_worker_of_a_running_job_and_a_killed_job_leaves_nothing(job: subprocess.Popen[str]) -> None:
    done = mpload("top", str(job.pid), "--once", "--interval", "2", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert f"process {job.pid}: " in done.stdout
    assert "limited by decode" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "mpload-worker-" in line]
    assert len(rows) == 2
    for row in rows:  # these workers only sleep in __getitem__, which counts as decoding
        busy, read, decode, transform, _ = [int(cell.rstrip("%")) for cell in row if cell.endswith("%")]
        assert busy >= decode > 50
        assert (read, transform) == (0, 0)
    job.kill()
    job.wait()
    done = mpload("top", str(job.pid), "--once", COLUMNS="200")
    assert done.returncode != 0
    assert f"there is no process {job.pid}. Give the PID of the training process" in done.stderr


@given(
    read=st.integers(0, 10**10),
    decode=st.integers(0, 10**10),
    other=st.integers(0, 10**10),
    seconds=st.floats(0.1, 5.0),
)
def test_a_worker_is_never_busy_for_more_than_the_interval(read: int, decode: int, other: int, seconds: float) -> None:
    shares = _shares(Timings(read_ns=read, decode_ns=decode, total_ns=read + decode + other), seconds=seconds)
    busy = shares.pop("busy_share")
    assert busy <= 1.0 + 1e-9
    assert sum(shares.values()) == pytest.approx(busy)


MIXED_JOB = """
import sys
from mpload import Mixture, MPLoader
from tests.support.mixtures import mixed
if __name__ == "__main__":
    with MPLoader(mixed(Mixture(dict.fromkeys(sys.argv[1:], 1.0), epoch_samples=10**9)), num_workers=1) as loader:
        for number, batch in enumerate(loader):
            if number == 8:
                print("running", flush=True)
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("num_sources", "more"), [(2, ""), (10, "and 2 sources more")])
def test_top_shows_the_largest_sources_of_a_mixture(tmp_path: Path, num_sources: int, more: str) -> None:
    paths = [str(source(tmp_path, f"s{number}", 4)) for number in range(num_sources)]
    command = [sys.executable, "-c", MIXED_JOB, *paths]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "running\n"
            done = mpload("top", str(job.pid), "--once", "--interval", "1.5", COLUMNS="200")
        finally:
            job.kill()
    rows = [line.split() for line in done.stdout.splitlines() if ".txt" in line]
    assert {path for row in rows for path in row if ".txt" in path} <= set(paths)
    assert len(rows) == min(num_sources, 8)
    shares = [float(cell.rstrip("%")) for row in rows for cell in row if cell.endswith("%")]
    assert shares == pytest.approx([100 / num_sources] * len(rows), abs=2)
    assert (more or "source") in done.stdout
    assert bool(more) == ("more" in done.stdout)


def test_the_page_has_room_for_the_largest_sources_of_any_mixture() -> None:
    sources = {f"{number}{'x' * 4000}.txt": SourceStats(num_samples=number) for number in range(1000)}
    page = StatsPage()
    page.write(page_facts(LoaderStats(sources=sources)))
    (facts,) = (each for each in read_pages(os.getpid()) if each.get("num_sources"))
    page.close()
    assert facts["num_sources"] == 1000
    found = stats_of_page(facts).sources
    assert next(iter(found.values())) == SourceStats(num_samples=999)
    assert list(found) == list(sources)[: -len(found) - 1 : -1]


WRITER = """
import itertools, sys
from mpload.telemetry.page import StatsPage
length, num_writes = int(sys.argv[1]), int(sys.argv[2])
print("writing", flush=True)
while True:
    page = StatsPage()
    for number in itertools.islice(itertools.cycle(range(10, 100)), num_writes):
        page.write({"text": str(number) * length})
    page.close()
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("length", "num_writes"), [(30_000, 10**9), (1, 10**9), (1, 1)])
def test_a_reader_never_sees_a_half_written_page(length: int, num_writes: int) -> None:
    command = [sys.executable, "-c", WRITER, str(length), str(num_writes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            seen = set()
            for _ in range(3000):
                for facts in read_pages(process.pid):
                    text = facts.get("text", "10" * length)  # a new page has no text
                    assert text == text[:2] * length
                    seen.add(text[:2])
            assert len(seen) > 5 or num_writes == 1
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.processes
def test_progress_yields_the_same_batches_and_draws_on_terminals_only(capfd: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO()
    with MPLoader(Sleeping(160), batch_size=5, num_workers=1, topology=Topology()) as loader:
        plain = [batch.tolist() for batch in loader]
        assert [batch.tolist() for batch in loader.progress()] == plain
        assert capfd.readouterr().err == ""
        console = Console(file=terminal, force_terminal=True, width=160)
        assert [batch.tolist() for batch in show_progress(loader, loader.stats, console=console)] == plain
    assert "32/32 batches" in terminal.getvalue()
    assert terminal.getvalue().index("0/32 batches, waiting for the first batch") < terminal.getvalue().index("32/32")
    assert "None" not in terminal.getvalue()
    assert "samples/s, waiting" in terminal.getvalue()
    assert "MiB" in terminal.getvalue()


@pytest.mark.processes
def test_a_loader_that_is_closed_has_no_page() -> None:
    before = len(read_pages(os.getpid()))
    with MPLoader(Sleeping(120), batch_size=5, num_workers=1, topology=Topology()) as loader:
        list(loader)
        (page,) = read_pages(os.getpid())[before:]
        assert page["pid"] == os.getpid()
        assert [worker["name"] for worker in page["stats"]["workers"]] == ["mpload-worker-0"]
        assert time.monotonic() >= page["monotonic_seconds"]
    assert len(read_pages(os.getpid())) == before


SERVED_JOB = """
import sys
from pathlib import Path
from mpload import MPLoader
from tests.support.batches import numbers
from tests.support.sample_servers import sample_server
if __name__ == "__main__":
    def dataset():
        return numbers(Path(sys.argv[1]), 400, batch_size=16)
    with sample_server(dataset()) as one, sample_server(dataset()) as two:
        with MPLoader(dataset(), servers=[one.url, two.url], num_workers=1) as loader:
            print(one.url, two.url, flush=True)
            while True:
                for batch in loader:
                    pass
"""


@pytest.mark.slow
@pytest.mark.processes
def test_top_shows_each_server_of_samples(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVED_JOB, str(tmp_path)], stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            urls = job.stdout.readline().split()
            done = _when_some_were_made(job.pid)
        finally:
            job.kill()
    rows = {url: line.split("│") for url in urls for line in done.splitlines() if url in line}
    assert list(rows) == urls
    for cells in rows.values():
        num_requests, num_samples = (int(cell.replace(",", "")) for cell in cells[2:4])
        assert 0 < num_requests <= num_samples
        assert "/s" not in cells[4]


def _when_some_were_made(pid: int) -> str:
    """Return what `top` shows once an interval has batches."""
    for _ in range(20):
        done = mpload("top", str(pid), "--once", "--interval", "1.5", COLUMNS="200")
        if done.returncode == 0 and "batch p50" in done.stdout:
            return done.stdout
    raise AssertionError(done.stderr)


def test_the_page_has_room_for_the_busiest_of_many_servers() -> None:
    servers = {f"http://node{number}:8000": server_stats(number) for number in range(100)}
    page = StatsPage()
    page.write(page_facts(LoaderStats(servers=servers)))
    (facts,) = (each for each in read_pages(os.getpid()) if each.get("num_servers"))
    page.close()
    assert facts["num_servers"] == 100
    found = stats_of_page(facts).servers
    assert found
    assert list(found.items()) == list(servers.items())[: -len(found) - 1 : -1]
