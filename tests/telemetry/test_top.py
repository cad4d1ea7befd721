"""The statistics that a running loader publishes: its page, `mpload top`, writers and the progress bar."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from mpload import LoaderStats, MPLoader, SourceStats, Topology
from mpload.cli.top import _shares
from mpload.errors import ArgumentError
from mpload.telemetry.page import StatsPage, page_facts, read_pages, stats_of_page
from mpload.telemetry.server_stats import ServerCounts, ServerStats, stats_by_server
from mpload.telemetry.showing import show_progress
from mpload.telemetry.stats import Timings
from mpload.telemetry.writers import JsonLinesWriter, PrometheusWriter, TensorBoardWriter
from tests.support.map_styles import Sleeping, Tuples
from tests.support.mixtures import source
from tests.support.programs import mpload

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


def test_writers_have_the_samples_of_each_source(tmp_path: Path) -> None:
    total = LoaderStats(sources={"a.txt": SourceStats(num_samples=5, num_failed=1), 'b"': SourceStats(num_samples=2)})
    span = total.since(LoaderStats(sources={"a.txt": SourceStats(num_samples=3)}))
    JsonLinesWriter(tmp_path / "stats.jsonl").write(span, total)
    line = json.loads((tmp_path / "stats.jsonl").read_text())
    assert line["sources"]["a.txt"] == {"num_samples": 2, "num_failed": 1}
    PrometheusWriter(tmp_path / "mpload.prom", labels={"rank": "0"}).write(span, total)
    families = {each.name: each for each in text_string_to_metric_families((tmp_path / "mpload.prom").read_text())}
    counted = {sample.labels["source"]: sample.value for sample in families["mpload_source_samples"].samples}
    assert counted == {"a.txt": 5, 'b"': 2}
    assert [each.value for each in families["mpload_source_failures"].samples] == [1, 0]
    assert all(sample.labels["rank"] == "0" for each in families.values() for sample in each.samples)


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


def spans(writer: Any, *, num_epochs: int = 6) -> MPLoader:
    """Run a loader that calls `writer` often, and return it."""
    loader = MPLoader(Sleeping(40), batch_size=5, num_workers=1, topology=Topology())
    with loader:
        loader.stats_to(writer, every_seconds=0.05)
        for _ in range(num_epochs):
            list(loader)
    return loader


@pytest.mark.processes
def test_the_spans_of_json_lines_add_up_to_the_totals(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    stats = spans(JsonLinesWriter(path)).stats()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) > 3
    assert sum(line["samples"] for line in lines) == lines[-1]["total_samples"] <= stats.num_samples
    assert all(0 <= line["wait_fraction"] <= 1 for line in lines)
    assert [line["total_batches"] for line in lines] == sorted(line["total_batches"] for line in lines)


@pytest.mark.processes
def test_the_prometheus_file_holds_the_latest_figures(tmp_path: Path) -> None:
    path = tmp_path / "mpload.prom"
    num_decoded, writer = 0, PrometheusWriter(path)

    class UntilDecoded:
        """Writes only what an interval brought in which samples were decoded: a busy machine has others."""

        def write(self, span: LoaderStats, total: LoaderStats) -> None:
            nonlocal num_decoded
            if span.timings.num_samples:
                num_decoded += span.timings.num_samples
                writer.write(span, total)

    spans(UntilDecoded())
    assert num_decoded
    lines = path.read_text().splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    helps = {line.split()[2]: line.split(maxsplit=3)[3] for line in lines if line.startswith("# HELP")}
    assert types.keys() == values.keys() == helps.keys()
    assert types["mpload_samples_total"] == "counter"
    assert types["mpload_wait_fraction"] == "gauge"
    assert 0 < float(values["mpload_samples_total"]) <= 240
    assert float(values["mpload_decode_seconds_per_sample"]) > 0.009
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


@pytest.mark.processes
def test_prometheus_reads_the_files_of_several_loaders_together(tmp_path: Path) -> None:
    odd = 'a "b" \\ \n c'
    for name, labels in {"train": {"loader": "train", "rank": "0"}, "odd": {"loader": odd}}.items():
        spans(PrometheusWriter(tmp_path / f"{name}.prom", labels=labels), num_epochs=1)
    families = [
        list(text_string_to_metric_families(path.read_text(encoding="utf-8"))) for path in tmp_path.glob("*.prom")
    ]
    assert [[family.name, family.documentation] for family in families[0]] == [
        [family.name, family.documentation] for family in families[1]
    ]
    (seen, other) = ({*sample.labels.items()} for found in families for sample in found[0].samples)
    assert {frozenset(seen), frozenset(other)} == {
        frozenset({("loader", "train"), ("rank", "0")}),
        frozenset({("loader", odd)}),
    }


@pytest.mark.parametrize("name", ["0a", "a-b", "", "__name", "ä"])
def test_a_label_that_prometheus_forbids_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="labels: a name consists of letters"):
        PrometheusWriter(tmp_path / "mpload.prom", labels={name: "x"})


@pytest.mark.processes
def test_the_prometheus_writer_does_not_follow_a_link_of_another_user(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".mpload.prom.{os.getpid()}").symlink_to(victim)
    spans(PrometheusWriter(tmp_path / "mpload.prom"), num_epochs=1)
    assert "mpload_samples_total" in (tmp_path / "mpload.prom").read_text()
    assert victim.read_text() == "precious"


@pytest.mark.processes
def test_tensorboard_scalars_have_the_number_of_samples_as_their_step() -> None:
    class Board:
        def __init__(self) -> None:
            self.seen: dict[str, list[int]] = {}

        def add_scalar(self, name: str, value: float, step: int) -> None:
            assert value >= 0
            self.seen.setdefault(name, []).append(step)

        def flush(self) -> None:
            pass

    board = Board()
    spans(TensorBoardWriter(board))
    steps = board.seen["mpload/samples_per_second"]
    assert steps == sorted(steps)
    assert steps[-1] > 0


def test_tensorboard_itself_accepts_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    spans(TensorBoardWriter(tmp_path))
    (file,) = tmp_path.iterdir()
    assert b"mpload/wait_fraction" in file.read_bytes()


@pytest.mark.processes
def test_the_error_of_a_writer_reaches_the_loop() -> None:
    class Failing:
        def write(self, span: Any, total: Any) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        spans(Failing())
    with (
        MPLoader(Tuples(), batch_size=5, num_workers=0, topology=Topology()) as loader,
        pytest.raises(ArgumentError, match="every_seconds must be positive, got 0"),
    ):
        loader.stats_to(Failing(), every_seconds=0)


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


def _server(num_requests: int) -> ServerStats:
    counts = ServerCounts()
    for _ in range(num_requests):
        counts.answered(0, num_samples=16, num_bytes=1000, latency_seconds=0.01)
        counts.failed(0)
    return stats_by_server([""], counts.take())[""]


def test_the_page_has_room_for_the_busiest_of_many_servers() -> None:
    servers = {f"http://node{number}:8000": _server(number) for number in range(100)}
    page = StatsPage()
    page.write(page_facts(LoaderStats(servers=servers)))
    (facts,) = (each for each in read_pages(os.getpid()) if each.get("num_servers"))
    page.close()
    assert facts["num_servers"] == 100
    found = stats_of_page(facts).servers
    assert found
    assert list(found.items()) == list(servers.items())[: -len(found) - 1 : -1]


def test_writers_have_the_figures_of_each_server(tmp_path: Path) -> None:
    total = LoaderStats(servers={"http://a": _server(5), 'http://"b': _server(0)}, elapsed_seconds=4)
    span = total.since(LoaderStats(servers={"http://a": _server(3)}, elapsed_seconds=2))
    JsonLinesWriter(tmp_path / "stats.jsonl").write(span, total)
    line = json.loads((tmp_path / "stats.jsonl").read_text())
    latency = line["servers"]["http://a"].pop("latency_p50_seconds")
    assert latency == pytest.approx(0.01, rel=0.08)
    counted = {"requests": 2, "samples": 32, "bytes": 2000, "failures": 2, "bytes_per_second": 1000}
    assert line["servers"]["http://a"] == counted
    PrometheusWriter(tmp_path / "mpload.prom").write(span, total)
    families = {each.name: each for each in text_string_to_metric_families((tmp_path / "mpload.prom").read_text())}
    for name, value in {"requests": 5, "samples": 80, "bytes": 5000, "failures": 5}.items():
        found = {each.labels["server"]: each.value for each in families[f"mpload_server_{name}"].samples}
        assert found == {"http://a": value, 'http://"b': 0}
    (first, _) = families["mpload_server_latency_p50_seconds"].samples
    assert first.value == latency
