"""A loader warns once about what slows it down, with numbers and a remedy."""

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import MPDataset, MPLoader, RandomResizedCrop, RawArray, Topology, build_index
from mpload.errors import MploadWarning
from mpload.loader.advice import Adviser, advise
from mpload.loader.index_source import IndexSource
from mpload.memory.contention import Contention
from mpload.memory.core_times import CoreShares
from mpload.memory.machine import refaulted_bytes
from mpload.telemetry.stats import LoaderStats, Timings, running_facts
from mpload.units import GIB
from tests.support.map_styles import Sleeping


def span(*, wait: float = 0.4, num_workers: int = 4, **milliseconds: int) -> LoaderStats:
    """Return a span of ten seconds with these times, summed over all workers."""
    timings = Timings(num_samples=1000, **{f"{stage}_ns": each * 10**6 for stage, each in milliseconds.items()})
    return LoaderStats(
        num_batches=100,
        num_samples=1000,
        num_workers=num_workers,
        wait_seconds=10 * wait,
        elapsed_seconds=10.0,
        timings=timings,
    )


def advice(
    stats: LoaderStats,
    *,
    running: float = 1.0,
    delayed: float = 0.0,
    excess: float = 1.0,
    neighbour_cores: float = 0.0,
    num_cores: int = 4,
    is_auto: bool = False,
    refaulted_bytes: int = 0,
) -> dict[str, str]:
    """Return the advice if each worker was on a core for this share of its busy time, and had none for another."""
    busy_share = stats.timings.total_ns * 1e-9 / stats.elapsed_seconds / stats.num_workers
    each = CoreShares(seconds=stats.elapsed_seconds, running=running * busy_share, delayed=delayed * busy_share)
    facts = running_facts(
        stats,
        shares=[each] * stats.num_workers,
        num_cores=num_cores,
        is_auto=is_auto,
        contention=Contention(neighbour_cores=neighbour_cores),
        refaulted_bytes=refaulted_bytes,
    )
    return advise(facts, image_excess=lambda: excess)


@pytest.mark.parametrize(
    ("milliseconds", "stage", "remedy"),
    [
        ({"read": 30_000, "total": 38_000}, "Reading takes 30.0 ms of a worker's 38.0 ms", "BlockShuffle"),
        ({"decode": 30_000, "total": 38_000}, "Decoding takes 30.0 ms of", "ResizeCenterCrop"),
        ({"transform": 30_000, "total": 38_000}, "The transform takes 30.0 ms of", "DevicePrefetcher"),
        ({"total": 3_000}, "Workers make samples for only 7% of their time", "memory_budget"),
    ],
)
def test_slow_batches_are_reported_with_their_cause_and_a_remedy(milliseconds: Any, stage: str, remedy: str) -> None:
    waits = 0.2 if stage.startswith("Reading") else 1.0  # who reads waits
    (text,) = advice(span(**milliseconds), running=waits).values()
    assert "the loop waited for 40% of the last 10.0 s" in text
    assert stage in text
    assert remedy in text
    assert not advice(span(wait=0.09, **milliseconds))


def test_workers_that_wait_are_never_told_to_compute_less_but_to_be_more() -> None:
    text = advice(span(decode=38_000, total=38_000), running=0.01, excess=20.0)["waits"]
    assert "they wait, not compute, for 99% of their time" in text
    assert "num_workers=7" in text
    assert not re.search("mpload pack|smaller|cores, with|a machine|ResizeCenterCrop", text)


def test_other_processes_that_take_the_cores_are_named() -> None:
    text = advice(span(decode=38_000, total=38_000), running=0.5, delayed=0.5, neighbour_cores=2.0)["waits"]
    assert "Limited by other processes, which take the cores" in text
    assert "keep 2.0 of 4 cores busy, and workers had no core for 50% of their time" in text


def test_more_workers_than_cores_are_reported_if_they_compute() -> None:
    busy = span(wait=0.0, num_workers=8, decode=70_000, total=80_000)
    assert "8 workers share 4 cores" in advice(busy, running=0.5, delayed=0.45)["workers"]
    assert not advice(busy, running=0.25)
    assert not advice(busy, running=0.9, is_auto=True)
    assert not advice(busy, running=0.9, num_cores=8)


def test_a_thrashing_page_cache_is_reported_if_reading_is_the_bottleneck() -> None:
    reading, decoding = span(read=30_000, total=38_000), span(decode=30_000, total=38_000)
    text = advice(reading, running=0.2, refaulted_bytes=GIB)["waits"]
    assert "the page cache is too small" in text
    assert "102.4 MiB per second had to be read again" in text
    assert "page cache" not in advice(decoding, refaulted_bytes=GIB)["waits"]
    assert "page cache" not in advice(reading, running=0.2, refaulted_bytes=1000)["waits"]


def test_large_images_are_reported_if_decoding_is_the_bottleneck() -> None:
    assert "--resize-short 256" in advice(span(decode=30_000, total=38_000), excess=9.0)["waits"]
    assert (
        "because the images are larger than the crop needs"
        in advice(span(decode=38_000, total=38_000), excess=9.0)["waits"]
    )
    assert "larger" not in advice(span(decode=30_000, total=38_000), excess=3.0)["waits"]
    assert "larger" not in advice(span(read=30_000, total=38_000), running=0.2, excess=9.0)["waits"]


def test_stored_pixels_are_compared_with_the_output_of_the_decoder(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("advice.txt"))
    small, large = (
        IndexSource(dataset._runs).image_excess()
        for size in (16, 64)
        for dataset in [MPDataset(index, decode=RandomResizedCrop(size), batch_size=2, topology=Topology())]
    )
    assert small == pytest.approx(16 * large)
    assert small > 10
    assert np.isfinite(large)


@pytest.mark.parametrize("shape", [(), (12,), (2, 2, 3)])
def test_arrays_that_are_not_decoded_from_images_are_never_too_large(tmp_path: Path, shape: tuple[int, ...]) -> None:
    decode = RawArray(shape, makes_images=len(shape) > 2)
    (tmp_path / "rows.bin").write_bytes(bytes(range(12)))
    (tmp_path / "rows.txt").write_text(f"#mpload 1\n#columns row:span\n0+{decode.sample_bytes}@rows.bin\n")
    dataset = MPDataset(tmp_path / "rows.txt", decode=decode, batch_size=1, topology=Topology())
    assert IndexSource(dataset._runs).image_excess() == 1.0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
def test_a_real_loader_gives_each_piece_of_advice_once() -> None:
    adviser = Adviser(is_auto=False, num_cores=2, image_excess=lambda: 1.0)
    with (
        MPLoader(Sleeping(400), batch_size=5, num_workers=2, topology=Topology()) as loader,
        warnings.catch_warnings(record=True) as found,
    ):
        warnings.simplefilter("always")
        for _ in range(3):
            adviser(loader.stats())
            list(loader)
        adviser(loader.stats())
    (warning,) = found
    assert warning.category is MploadWarning
    assert "Decoding takes" in str(warning.message)
    assert "they wait, not compute" in str(warning.message)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
def test_advice_names_the_line_of_the_users_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.loader.loader.ADVICE_SECONDS", 0.5)
    with (
        MPLoader(Sleeping(400), batch_size=5, num_workers=2, topology=Topology()) as loader,
        warnings.catch_warnings(record=True) as found,
    ):
        warnings.simplefilter("always")
        while not found:
            for _ in loader:
                pass
    assert {warning.filename for warning in found} == {__file__}


def test_refaults_are_read_from_the_innermost_container(tmp_path: Path) -> None:
    (tmp_path / "members").write_text("0::/a/b\n")
    for folder, count in (("a", 7), ("a/b", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "memory.stat").write_text(f"anon 1\nworkingset_refault_file {count}\n")
    assert refaulted_bytes(cgroup_folder=tmp_path, cgroup_members=tmp_path / "members") == 3 * 4096
    assert refaulted_bytes() >= 0
