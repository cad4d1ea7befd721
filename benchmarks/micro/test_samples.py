"""What a worker does to a chunk of 16 samples: look up, read, decode and write into a slot."""

from contextlib import closing
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mpload import ErrorPolicy, Index, RandomResizedCrop, RawBytes, Shuffle, Topology
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.plan.plan import Tail
from mpload.samples.index_work import PipelineWork
from mpload.samples.pipeline import Pipeline
from mpload.transport.ragged import RaggedArray
from mpload.transport.ring import SlotRing
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.transport.worker import ChunkReport

pytestmark = pytest.mark.benchmark(group="samples")

CHUNK_SAMPLES, BATCH_SAMPLES = 16, 256
PIXELS = Field(name="image", shape=(224, 224, 3), dtype="uint8")
BYTES = RaggedField(name="image")


@pytest.mark.parametrize(
    ("decode", "field"), [(RandomResizedCrop(224), PIXELS), (RawBytes(as_array=True), BYTES)], ids=["crops", "bytes"]
)
def test_chunk(benchmark: BenchmarkFixture, photo_index: Index, decode: Any, field: Field | RaggedField) -> None:
    work = PipelineWork(
        pipeline=Pipeline(index=photo_index, decode=decode, policy=ErrorPolicy()),
        batching=Batching(num_samples=len(photo_index), batch_size=BATCH_SAMPLES, order=Shuffle(), tail=Tail.PAD),
        read_ahead_bytes=1 << 20,
        decode_bytes=1 << 30,
    )
    work.open(0)
    task = BatchNumber(seed=0, epoch=0, start=0, batch=1, topology=Topology()).numbers
    report = ChunkReport()
    layout = SlotLayout(num_samples=BATCH_SAMPLES, fields=(field, Field(name="label", dtype="int64")))
    with closing(SlotRing(num_slots=1, layout=layout)) as ring:
        arrays = ring.views(0)

        def fill() -> None:
            for value in arrays.values():
                if isinstance(value, RaggedArray):
                    value.begin(0, CHUNK_SAMPLES)
            work.fill(task, arrays, 0, CHUNK_SAMPLES, report)

        benchmark(fill)
        assert all(arrays["image"][place].any() for place in range(CHUNK_SAMPLES))
