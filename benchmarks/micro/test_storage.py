"""Reads: 16 whole files, and 16 spans of a shard, from the page cache."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mpload.storage.local import LocalStorage
from mpload.storage.ranges import ByteRange, Span

pytestmark = pytest.mark.benchmark(group="storage")

SPAN_BYTES = 40_000


def files_of(folder: Path) -> list[ByteRange]:
    return [ByteRange(str(file.relative_to(folder))) for file in sorted(folder.glob("*/*.jpg"))]


def spans_of(folder: Path) -> list[ByteRange]:
    shard = folder / "shard.bin"
    shard.write_bytes(bytes(64 * SPAN_BYTES))
    numbers = np.random.default_rng(0).permutation(64)[:16]
    return [Span(shard.name, number * SPAN_BYTES, SPAN_BYTES) for number in numbers.tolist()]


@pytest.mark.parametrize("ranges_of", [files_of, spans_of])
def test_reads_of_a_chunk(
    benchmark: BenchmarkFixture, photos: Path, ranges_of: Callable[[Path], list[ByteRange]]
) -> None:
    ranges = ranges_of(photos)
    with LocalStorage(photos) as storage:
        data = benchmark(storage.read, ranges)
    assert min(map(len, data)) > 20_000
    assert len(data) == 16
