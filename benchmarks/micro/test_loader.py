"""The training process: batches as tensors, and the state of a run."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mpload import Index, MPDataset, MPLoader, RandomResizedCrop, Topology

pytestmark = pytest.mark.benchmark(group="loader")

BATCH_SAMPLES = 16


def dataset(index: Index) -> MPDataset[list[object]]:
    return MPDataset(index, decode=RandomResizedCrop(64), batch_size=BATCH_SAMPLES, shuffle=True, topology=Topology())


def test_batch_of_a_loader(benchmark: BenchmarkFixture, photo_index: Index) -> None:
    """The time of the training process alone, with one worker: a batch of one chunk, as tensors, with statistics."""
    with MPLoader(dataset(photo_index), num_workers=1, memory_budget="1GiB") as loader:
        images, labels = benchmark.pedantic(next, (iter(loader),), rounds=500, warmup_rounds=20)  # type: ignore[no-untyped-call]
        assert images.shape == (BATCH_SAMPLES, 3, 64, 64)
        assert len(labels) == BATCH_SAMPLES


def test_state_dict(benchmark: BenchmarkFixture, photo_index: Index) -> None:
    with MPLoader(dataset(photo_index), num_workers=0) as loader:
        batches = iter(loader)
        next(batches)
        assert benchmark(loader.state_dict)["position"] == BATCH_SAMPLES


def test_load_state_dict(benchmark: BenchmarkFixture, photo_index: Index) -> None:
    with MPLoader(dataset(photo_index), num_workers=0) as loader:
        state = loader.state_dict() | {"position": 10 * BATCH_SAMPLES}
        benchmark(loader.load_state_dict, state)
        assert loader.state_dict() == state
