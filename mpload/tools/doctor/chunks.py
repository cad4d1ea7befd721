"""Decodes images as a worker does: a chunk at a time, from files into the arrays of a batch."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from operator import add
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from mpload.errors import MploadError
from mpload.images.many import many_decoder
from mpload.index.index import lines_of
from mpload.index.opening import open_index
from mpload.judgement.facts import Cost
from mpload.plan.batch_number import BatchNumber
from mpload.plan.topology import Topology
from mpload.samples.bulk import ARENA_BYTES, BulkPipeline
from mpload.samples.counts import DECODE_NS, READ_NS
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.samples.row_index import create_row_index
from mpload.storage.local import LocalStorage
from mpload.storage.ranges import Span
from mpload.tools.doctor.stopwatch import Stopwatch
from mpload.transport.messages import MAX_COUNTS
from mpload.transport.worker import ChunkReport

__all__ = ["ChunkDecoder", "decodes_in_bulk"]

_NUMBER = BatchNumber(seed=0, epoch=0, start=0, batch=0, topology=Topology())


def decodes_in_bulk(pipeline: Pipeline, decode: Callable[..., Any]) -> bool:
    """Whether workers would use `decode` in bulk for the files of a pipeline, if there were no transform."""
    is_quick = pipeline.ahead.is_active or type(pipeline.opened_storage) is LocalStorage
    return is_quick and pipeline.cache is None and many_decoder(decode) is not None


class ChunkDecoder:
    """Reads and decodes images of a temporary folder, and records what that costs."""

    def __init__(
        self,
        images: Sequence[bytes],
        decode: Callable[..., Any],
        *,
        folder: Path,
        is_packed: bool,
        in_bulk: bool,
        notes_rows: bool,
    ) -> None:
        """Write the images.

        Args:
            images: Their bytes.
            decode: The decoder.
            folder: A folder that does not exist yet.
            is_packed: Whether they lie in a shard, not in files of their own.
            in_bulk: Whether they are decoded in bulk.
            notes_rows: Whether there is a row index, which is filled when photos are decoded for the first time.
        """
        folder.mkdir()
        cells: list[Span | int] = [*range(len(images))]
        if is_packed:
            ends = [*accumulate(map(len, images), initial=0)]
            cells = [Span("shard", start, end - start) for start, end in pairwise(ends)]
            (folder / "shard").write_bytes(b"".join(images))
        else:
            for number, data in enumerate(images):
                (folder / str(number)).write_bytes(data)
        path = folder / "index.txt"
        lines = "".join(f"{cell}\n" for cell in cells)
        path.write_text(f"#mpload 1\n#columns image:{'span' if is_packed else 'path'}\n{lines}", encoding="ascii")
        index = open_index(path)
        rows = create_row_index(index) if notes_rows else None
        self._pipeline = Pipeline(index=index, decode=decode, policy=ErrorPolicy(), row_index=rows)
        arena = np.empty(ARENA_BYTES, np.uint8)
        self._bulk = BulkPipeline.of(self._pipeline, arena=arena) if in_bulk else None
        self._watch = Stopwatch(self._decode)
        self.num_decoded = 0
        """The number of images that could be decoded."""
        self._elapsed_ns = 0
        self._counts = [0] * MAX_COUNTS

    def measure(self, sample_ids: Sequence[int]) -> None:
        """Decode some of the images as one chunk, twice; only the second time counts.

        The first time pays for what others have evicted from the processor's caches, and for entries of a row index.
        """
        for _ in range(1 if self._pipeline.row_index is None else 2):  # the second time may only note the tables
            self._decode(sample_ids)
        started_ns = perf_counter_ns()
        num_decoded, counts = self._watch(sample_ids)
        self._elapsed_ns += perf_counter_ns() - started_ns
        self.num_decoded += num_decoded
        self._counts = list(map(add, self._counts, counts))

    @property
    def decode(self) -> Cost:
        """The mean cost of decoding one image."""
        return self._cost(DECODE_NS)

    @property
    def read(self) -> Cost:
        """The mean cost of reading one image, from the page cache."""
        return self._cost(READ_NS)

    def _cost(self, number: int) -> Cost:
        return self._watch.cost(self.num_decoded).times(self._counts[number] / max(1, self._elapsed_ns))

    def _decode(self, sample_ids: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many images were decoded, and the counters."""
        pipeline, num_decoded = self._pipeline, len(sample_ids)
        lines = lines_of(pipeline.index, sample_ids)
        report = ChunkReport()
        made = None
        if pipeline.writes_in_place:
            made = np.empty((len(lines), *(pipeline.output_shape or ())), pipeline.output_dtype)
        left: Iterable[int] = range(len(sample_ids))
        if self._bulk is not None:
            left = self._bulk.make(lines, {"image": made}, number=_NUMBER, first=0, report=report)
        pipeline.take_counts()
        for place in left:
            try:
                pipeline.sample(lines.record(place), seed=0, epoch=0, outs=None if made is None else [made[place, ...]])
            except MploadError:
                num_decoded -= 1
        return num_decoded, list(map(add, report.tally.counts, pipeline.take_counts()))
