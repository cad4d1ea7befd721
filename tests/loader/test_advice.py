"""A loader says once what slows it down, with numbers and a remedy."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import MPDataset, MPLoader, RandomResizedCrop, Topology, build_index
from mpload.errors import MploadWarning
from mpload.loader.advice import Adviser, Circumstances, advise
from mpload.loader.index_source import IndexSource
from mpload.memory.machine import refaulted_bytes
from mpload.telemetry.stats import LoaderStats, Timings
from mpload.units import GIB
from tests.support.map_styles import Sleeping


def span(*, wait: float = 0.4, num_workers: int = 4, **milliseconds: int) -> LoaderStats:
    """Return a span of ten seconds with these times of all workers."""
    timings = Timings(num_samples=1000, **{f"{stage}_ns": each * 10**6 for stage, each in milliseconds.items()})
    return LoaderStats(
        num_batches=100,
        num_samples=1000,
        num_workers=num_workers,
        wait_seconds=10 * wait,
        elapsed_seconds=10.0,
        timings=timings,
    )


def told(stats: LoaderStats, *, excess: float = 1.0, **circumstances: Any) -> dict[str, str]:
    now = Circumstances(**{"num_cores": 4, "is_auto": False, **circumstances})
    return advise(stats, now, image_excess=lambda: excess)


@pytest.mark.parametrize(
    ("milliseconds", "stage", "remedy"),
    [
        ({"read": 30_000, "total": 38_000}, "read: 30,000 of a worker's 38,000", "BlockShuffle"),
        ({"decode": 30_000, "total": 38_000}, "decode: 30,000 of", "ResizeCenterCrop"),
        ({"transform": 30_000, "total": 38_000}, "transform: 30,000 of", "DevicePrefetcher"),
        ({"total": 3_000}, "transport: 3,000 of a worker's 3,000", "memory_budget"),
    ],
)
def test_waits_are_told_with_their_cause_and_a_remedy(milliseconds: Any, stage: str, remedy: str) -> None:
    (text,) = told(span(**milliseconds)).values()
    assert "for 40% of the last 10.0 s the loop waited" in text
    assert stage in text
    assert remedy in text
    assert not told(span(wait=0.09, **milliseconds))
    assert "use 4 workers" in told(span(num_workers=2, **milliseconds))["waits"]


def test_workers_that_outnumber_cores_are_told_where_they_compute() -> None:
    busy = span(wait=0.0, num_workers=8, decode=70_000, total=80_000)
    assert "8 workers share 4 cores" in told(busy, runnable_seconds=75.0)["workers"]
    assert not told(busy, runnable_seconds=20.0)
    assert not told(busy, runnable_seconds=75.0, is_auto=True)
    assert not told(busy, runnable_seconds=75.0, num_cores=8)


def test_a_page_cache_that_thrashes_is_told_where_reading_limits() -> None:
    reading, decoding = span(read=30_000, total=38_000), span(decode=30_000, total=38_000)
    assert "102.4 MiB a second were read again" in told(reading, refaulted_bytes=GIB)["page cache"]
    assert "page cache" not in told(decoding, refaulted_bytes=GIB)
    assert "page cache" not in told(reading, refaulted_bytes=1000)


def test_large_images_are_told_where_decoding_limits() -> None:
    assert "9 times as many pixels" in told(span(decode=30_000, total=38_000), excess=9.0)["images"]
    assert "images" not in told(span(decode=30_000, total=38_000), excess=3.0)
    assert "images" not in told(span(read=30_000, total=38_000), excess=9.0)


def test_images_are_compared_with_what_the_decoder_makes(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("advice.txt"))
    small, large = (
        IndexSource(dataset._run).image_excess()
        for size in (16, 64)
        for dataset in [MPDataset(index, decode=RandomResizedCrop(size), batch_size=2, topology=Topology())]
    )
    assert small == pytest.approx(16 * large)
    assert small > 10
    assert np.isfinite(large)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
def test_each_thing_is_said_once_by_a_real_loader() -> None:
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
    assert "The bottleneck is decode" in str(warning.message)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
def test_advice_names_the_line_of_the_users_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.loader.loader._ADVICE_SECONDS", 0.5)
    with (
        MPLoader(Sleeping(400), batch_size=5, num_workers=2, topology=Topology()) as loader,
        warnings.catch_warnings(record=True) as found,
    ):
        warnings.simplefilter("always")
        while not found:
            for _ in loader:
                pass
    assert {warning.filename for warning in found} == {__file__}


def test_refaults_count_up_and_come_from_the_innermost_container(tmp_path: Path) -> None:
    (tmp_path / "members").write_text("0::/a/b\n")
    for folder, count in (("a", 7), ("a/b", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "memory.stat").write_text(f"anon 1\nworkingset_refault_file {count}\n")
    assert refaulted_bytes(cgroup_folder=tmp_path, cgroup_members=tmp_path / "members") == 3 * 4096
    assert refaulted_bytes() >= 0
