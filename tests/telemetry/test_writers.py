"""What writers are given, and what they write: JSON lines, Prometheus text and TensorBoard scalars."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpload import LoaderStats, MPLoader, MploadWarning, SourceStats, Topology
from mpload.errors import ArgumentError
from mpload.telemetry.writers import JsonLinesWriter, PrometheusWriter, TensorBoardWriter
from tests.support.map_styles import Sleeping, Tuples
from tests.support.server_figures import server_stats

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("writer", [JsonLinesWriter, PrometheusWriter])
def test_a_file_that_cannot_be_written_is_warned_of_once(writer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    statistics = writer(folder / "s.out")
    with pytest.warns(MploadWarning, match="s.out: statistics cannot be written: No such file") as warned:
        spans(statistics)
    assert len(warned) == 1
    folder.mkdir()
    spans(statistics)
    assert [each.name for each in folder.iterdir()] == ["s.out"]
    assert (folder / "s.out").read_text().strip()


@pytest.mark.processes
def test_the_error_of_a_writer_of_the_user_reaches_the_loop() -> None:
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


def test_writers_have_the_figures_of_eachserver_stats(tmp_path: Path) -> None:
    total = LoaderStats(servers={"http://a": server_stats(5), 'http://"b': server_stats(0)}, elapsed_seconds=4)
    span = total.since(LoaderStats(servers={"http://a": server_stats(3)}, elapsed_seconds=2))
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
