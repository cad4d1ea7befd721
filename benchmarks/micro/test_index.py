"""Lookup: the records of a chunk."""

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mpload import Index

pytestmark = pytest.mark.benchmark(group="index")


@pytest.mark.parametrize("num_samples", [16, 256])
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_records_of_a_chunk(benchmark: BenchmarkFixture, line_index: Index, order: str, num_samples: int) -> None:
    first = 1000
    shuffled = np.random.default_rng(0).permutation(len(line_index))
    ids = np.arange(first, first + num_samples) if order == "sequential" else shuffled[:num_samples]
    records = benchmark(line_index.records, ids)
    assert [record["label"] for record in records] == (ids % 1000).tolist()


def test_labels_of_a_chunk(benchmark: BenchmarkFixture, line_index: Index) -> None:
    ids = np.random.default_rng(0).permutation(len(line_index))[:256]
    assert benchmark(lambda: line_index.labels[ids]).tolist() == (ids % 1000).tolist()
