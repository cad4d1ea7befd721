"""Lines that are not in the page cache: the same lines, loaded together and ahead of their turn."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import Index, MPDataset, MPLoader, open_index
from mpload.index.index import lines_of, prefetch_lines, sidecar_of
from tests.support.index_texts import expected, make_text
from tests.support.native import needs_native_lines

NUM_SAMPLES = 30_000
WAIT_SECONDS = 60.0
rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return open_index(make_text(tmp_path_factory.mktemp("cold") / "train.txt", NUM_SAMPLES))


def evict(index: Index) -> None:
    for path in (index.path, sidecar_of(index).path):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def evicted(index: Index) -> NDArray[np.int64]:
    """Evict the index from the page cache, and return sample_ids whose lines the first lookup has to load."""
    evict(index)
    assert_right(index, rng.integers(0, NUM_SAMPLES, 64))
    if not index._num_missed:
        pytest.skip("this file system does not tell what is in the page cache")
    evict(index)
    return rng.integers(0, NUM_SAMPLES, 64)


def assert_right(index: Index, ids: NDArray[np.int64]) -> None:
    assert [record.cells for record in lines_of(index, ids).records()] == [expected(i) for i in ids.tolist()]


@needs_native_lines
def test_lines_are_the_same_whether_cached_or_not(index: Index) -> None:
    for ids in (evicted(index), np.arange(NUM_SAMPLES), rng.permutation(NUM_SAMPLES)[:5000]):
        evict(index)
        assert_right(index, ids)
        assert index._num_missed
        assert_right(index, ids)


@needs_native_lines
def test_prefetched_lines_are_in_the_page_cache_when_they_are_requested(index: Index) -> None:
    ids = evicted(index)
    deadline = time.monotonic() + WAIT_SECONDS
    while index._num_missed:  # until the rows and then the lines have been loaded; the calls do not wait
        prefetch_lines(index, lambda: ids)
        assert time.monotonic() < deadline
    assert_right(index, ids)
    assert not index._num_missed


@needs_native_lines
def test_nothing_is_prefetched_while_the_index_is_in_the_page_cache(index: Index) -> None:
    ids = np.arange(64)
    lines_of(index, ids)
    lines_of(index, ids)
    prefetch_lines(index, refuse)


def refuse() -> NDArray[np.int64]:
    raise AssertionError("nothing should be prefetched")


@pytest.mark.processes
@pytest.mark.parametrize("disturb", [evict, lambda _: None], ids=["evicted", "cached"])
def test_a_loader_yields_the_same_samples_from_an_evicted_index(
    tmp_path: Path, disturb: Callable[[Index], None]
) -> None:
    path = tmp_path / "train.txt"
    path.write_text("#mpload 1\n#columns text:str label:int\n" + "".join(f"line {i}\t{i}\n" for i in range(15_000)))
    dataset: MPDataset = MPDataset(path, batch_size=256, shuffle=True, tail="ragged")
    seen = []
    with MPLoader(dataset, num_workers=2) as loader:
        for number, (texts, labels) in enumerate(loader):
            assert texts == [f"line {label}" for label in labels.tolist()]
            seen += labels.tolist()
            if number % 20 == 0:
                disturb(dataset.index)
    assert seen != sorted(seen) == list(range(15_000))
