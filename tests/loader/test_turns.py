"""Images that need more than a worker's share of the budget are decoded one at a time; all others in parallel."""

import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import ImageDecoder, MPDataset, MPLoader, RandomResizedCrop, Topology, build_index
from mpload.images.decoders import ResizeCenterCrop
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES, MemoryBudget, divide
from mpload.transport.batches import PoolOptions
from mpload.units import GIB, MIB
from tests.support.batches import numbers_index
from tests.support.decoders import claims_in_a_child, claims_late, corner, interrupted_while_it_waits, turned
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")

NUM_SAMPLES = 60


def dataset(folder: Path, decode: Callable[..., Any] = turned, *, num_samples: int = NUM_SAMPLES) -> MPDataset:
    return MPDataset(numbers_index(folder, num_samples), decode=decode, batch_size=2, topology=Topology())


def spans_of(batches: Sequence[Any], *, num_samples: int = NUM_SAMPLES) -> list[tuple[float, float]]:
    rows = list(itertools.chain.from_iterable(values.tolist() for values, _ in batches))
    assert [row[0] for row in rows] == [*range(num_samples)]
    return sorted((start, end) for _, start, end in rows)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("options", [PoolOptions(), PoolOptions(starts_fresh=True)], ids=["forked", "fresh"])
def test_images_too_large_for_a_share_are_decoded_one_at_a_time(tmp_path: Path, options: PoolOptions) -> None:
    with MPLoader(dataset(tmp_path), num_workers=4, memory_budget="512MiB", options=options) as loader:
        spans = spans_of(list(loader))
        assert len(loader.pids) == 5
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.slow
@pytest.mark.processes
def test_a_worker_that_waits_for_its_turn_is_not_killed_as_stuck(tmp_path: Path) -> None:
    options = PoolOptions(sample_timeout_seconds=0.6)
    images = dataset(tmp_path, partial(turned, seconds=0.3), num_samples=12)
    with MPLoader(images, num_workers=4, memory_budget="512MiB", options=options) as loader:
        spans_of(list(loader), num_samples=12)
        assert not loader.stats().num_deaths


@pytest.mark.processes
def test_the_turn_passes_on_when_the_worker_that_holds_it_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLOAD_TEST_TURNS", str(tmp_path))

    def kill_the_holder() -> None:
        assert wait_until(lambda: any(path.name.startswith("held by") for path in tmp_path.iterdir()))
        (held,) = tmp_path.glob("held by *")
        (tmp_path / "go").touch()
        os.kill(int(held.name.split()[-1]), signal.SIGKILL)

    watcher = threading.Thread(target=kill_the_holder)
    with MPLoader(dataset(tmp_path), num_workers=3, memory_budget="512MiB") as loader:
        watcher.start()
        spans = spans_of(list(loader))
    watcher.join()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.processes
def test_a_worker_that_is_stopped_while_it_waits_is_replaced(tmp_path: Path) -> None:
    options = PoolOptions(sample_timeout_seconds=1.0)
    images = dataset(tmp_path, partial(turned, seconds=0.1), num_samples=12)
    with MPLoader(images, num_workers=2, memory_budget="512MiB", options=options) as loader:

        def stop_a_waiting_worker() -> bool:
            if loader._engine is None:
                return False
            pool = loader._engine.pool
            waiting = [pid for number, pid in pool._crew.pids.items() if pool._board.row(number).waits_for_turn]
            for pid in waiting[:1]:
                os.kill(pid, signal.SIGSTOP)
            return bool(waiting)

        watcher = threading.Thread(target=wait_until, args=(stop_a_waiting_worker,))
        watcher.start()
        spans_of(list(loader), num_samples=12)
        watcher.join()
        assert loader.stats().num_deaths == 1


@pytest.mark.processes
def test_a_late_claim_from_a_thread_does_not_block_other_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLOAD_TEST_TURNS", str(tmp_path))
    images = MPDataset(numbers_index(tmp_path, 2), decode=claims_late, batch_size=1, topology=Topology())
    received = []
    with MPLoader(images, num_workers=2, memory_budget="512MiB") as loader:
        for _, labels in loader:
            received.append(labels.tolist())
            (tmp_path / "received").touch()
    assert received == [[0], [1]]


@pytest.mark.slow
@pytest.mark.processes
def test_a_child_process_of_a_decoder_takes_no_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLOAD_TEST_TURNS", str(tmp_path))
    try:
        with MPLoader(
            dataset(tmp_path, claims_in_a_child, num_samples=6), num_workers=2, memory_budget="512MiB"
        ) as loader:
            assert len(list(loader)) == 3
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:a bad sample")
def test_a_worker_interrupted_while_waiting_is_subject_to_the_timeout_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLOAD_TEST_TURNS", str(tmp_path))
    options = PoolOptions(sample_timeout_seconds=1.0)
    index = numbers_index(tmp_path, 4)
    images = MPDataset(
        index, decode=interrupted_while_it_waits, batch_size=1, topology=Topology(), on_error="substitute"
    )
    with MPLoader(images, num_workers=2, memory_budget="512MiB", options=options) as loader:
        assert len(list(loader)) == 4
        assert loader.stats().num_deaths >= 2


@given(
    total_mib=st.integers(64, 1 << 16),
    num_workers=st.integers(1, 64),
    num_slots=st.integers(MIN_SLOTS, 20),
    slot_mib=st.integers(0, 300),
)
def test_all_shares_and_one_large_image_fit_the_budget(
    total_mib: int, num_workers: int, num_slots: int, slot_mib: int
) -> None:
    needed = (MIN_SLOTS * slot_mib * MIB) + num_workers * WORKER_BYTES
    budget = MemoryBudget(total_bytes=max(total_mib * MIB, needed))
    plan = divide(budget, num_slots=num_slots, slot_bytes=slot_mib * MIB, num_workers=num_workers)
    left = budget.total_bytes - plan.slots_bytes - plan.workers_bytes
    assert plan.decode_bytes >= WORKER_BYTES // 2
    assert num_workers * plan.decode_bytes <= plan.workers_bytes // 2 + left // 2


def test_ordinary_photographs_do_not_wait_with_an_ordinary_budget() -> None:
    plan = divide(MemoryBudget(total_bytes=2 * GIB), num_slots=4, slot_bytes=256 * 224 * 224 * 3, num_workers=4)
    assert plan.decode_bytes > 9 * 24_000_000


def encoded(ending: str, *options: int) -> bytes:
    pixels = cv2.resize(np.random.default_rng(0).integers(0, 255, (9, 9, 3), np.uint8), (1200, 800))
    return cv2.imencode(ending, pixels, options)[1].tobytes()


FILES = {
    "png": (encoded(".png"), 13),
    "progressive": (encoded(".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1), 13),
    "plain": (encoded(".jpg"), 6),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "decode", [ImageDecoder(), RandomResizedCrop(64, scale=(1, 1)), ResizeCenterCrop(64)], ids=repr
)
def test_a_decoder_claims_memory_before_it_allocates_it(name: str, decode: Any) -> None:
    data, pixel_bytes = FILES[name]
    claims: list[int] = []
    drawn: dict[str, Any] = {"rng": np.random.default_rng(0)} if isinstance(decode, RandomResizedCrop) else {}
    expected = decode(data, **drawn)
    drawn = {"rng": np.random.default_rng(0)} if drawn else {}
    assert (decode(data, claim=claims.append, **drawn) == expected).all()
    if name == "plain" and not isinstance(decode, ImageDecoder):
        assert sum(claims) <= 6 * 1200 * 800 // 4  # only some rows, or at half size
    else:
        assert max(claims) == pixel_bytes * 1200 * 800


def private_bytes(pids: Iterable[int]) -> int:
    """Return the memory of the workers, without pages that they share with the zygote, the first of the processes."""
    found = [re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text()) for pid in pids]
    zygote, *workers = [1024 * int(each[1]) if each else 0 for each in found]  # a process that ends has no memory
    return sum(max(0, worker - zygote) for worker in workers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:memory is short")  # of all processes, for a moment; the test measures the workers'
def test_workers_use_memory_for_only_one_huge_image_at_a_time(tmp_path: Path) -> None:
    side, num_files = 4_000, 12
    (tmp_path / "a").mkdir()
    pixels = cv2.resize(np.random.default_rng(0).integers(0, 255, (30, 30, 3), np.uint8), (side, side))
    data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    for number in range(num_files):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(data)
    index = build_index(tmp_path / "a", tmp_path / "a.txt")
    images = MPDataset(index, decode=ImageDecoder(), transform=corner, batch_size=1, topology=Topology())
    peak_bytes, is_over = 0, threading.Event()
    with MPLoader(images, num_workers=4, memory_budget="400MiB") as loader:

        def watch() -> None:
            nonlocal peak_bytes
            while not is_over.wait(0.01):
                peak_bytes = max(peak_bytes, private_bytes(loader.pids.values()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert len(list(loader)) == num_files
        is_over.set()
        watcher.join()
    assert 6 * side**2 < peak_bytes < 12 * side**2 + 4 * 16 * MIB  # one photograph takes 9 bytes per pixel
