"""A loader warns once about what slows it down, with numbers and a remedy."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import MPDataset, MPLoader, RandomResizedCrop, RawArray, Topology, build_index
from mpload.errors import MploadWarning
from mpload.loader.advice import Adviser, Circumstances, advise
from mpload.loader.index_source import IndexSource
from mpload.memory.machine import refaulted_bytes
from mpload.telemetry.stats import LoaderStats, Timings
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


def advice(stats: LoaderStats, *, excess: float = 1.0, **circumstances: Any) -> dict[str, str]:
    context = Circumstances(**{"num_cores": 4, "is_auto": False, **circumstances})
    return advise(stats, context, image_excess=lambda: excess)


@pytest.mark.parametrize(
    ("milliseconds", "stage", "remedy"),
    [
        ({"read": 30_000, "total": 38_000}, "read: 30,000 of a worker's 38,000", "BlockShuffle"),
        ({"decode": 30_000, "total": 38_000}, "decode: 30,000 of", "ResizeCenterCrop"),
        ({"transform": 30_000, "total": 38_000}, "transform: 30,000 of", "DevicePrefetcher"),
        ({"total": 3_000}, "transport: 3,000 of a worker's 3,000", "memory_budget"),
    ],
)
def test_waiting_is_reported_with_its_cause_and_a_remedy(milliseconds: Any, stage: str, remedy: str) -> None:
    (text,) = advice(span(**milliseconds)).values()
    assert "the loop waited for 40% of the last 10.0 s" in text
    assert stage in text
    assert remedy in text
    assert not advice(span(wait=0.09, **milliseconds))
    assert "use 4 workers" in advice(span(num_workers=2, **milliseconds))["waits"]


def test_more_workers_than_cores_are_reported_if_they_compute() -> None:
    busy = span(wait=0.0, num_workers=8, decode=70_000, total=80_000)
    assert "8 workers share 4 cores" in advice(busy, runnable_seconds=75.0)["workers"]
    assert not advice(busy, runnable_seconds=20.0)
    assert not advice(busy, runnable_seconds=75.0, is_auto=True)
    assert not advice(busy, runnable_seconds=75.0, num_cores=8)


def test_a_thrashing_page_cache_is_reported_if_reading_is_the_bottleneck() -> None:
    reading, decoding = span(read=30_000, total=38_000), span(decode=30_000, total=38_000)
    assert "102.4 MiB per second had to be read again" in advice(reading, refaulted_bytes=GIB)["page cache"]
    assert "page cache" not in advice(decoding, refaulted_bytes=GIB)
    assert "page cache" not in advice(reading, refaulted_bytes=1000)


def test_large_images_are_reported_if_decoding_is_the_bottleneck() -> None:
    assert "9 times as many pixels" in advice(span(decode=30_000, total=38_000), excess=9.0)["images"]
    assert "images" not in advice(span(decode=30_000, total=38_000), excess=3.0)
    assert "images" not in advice(span(read=30_000, total=38_000), excess=9.0)


def test_stored_pixels_are_compared_with_the_output_of_the_decoder(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("advice.txt"))
    small, large = (
        IndexSource(dataset._run).image_excess()
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
    assert IndexSource(dataset._run).image_excess() == 1.0


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


def test_refaults_are_read_from_the_innermost_container(tmp_path: Path) -> None:
    (tmp_path / "members").write_text("0::/a/b\n")
    for folder, count in (("a", 7), ("a/b", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "memory.stat").write_text(f"anon 1\nworkingset_refault_file {count}\n")
    assert refaulted_bytes(cgroup_folder=tmp_path, cgroup_members=tmp_path / "members") == 3 * 4096
    assert refaulted_bytes() >= 0
