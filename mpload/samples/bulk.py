"""Makes the samples of a whole chunk with a few native calls: lookup, reading, decoding, all straight into the slot.

A call declines unusual samples. `PipelineWork` then makes these one by one, with the pipeline, which also raises all
errors. So values, errors and policies are the same for both ways.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.images.decoders import NumpyDecoder, RawBytes
from mpload.images.many import many_decoder, row_bytes
from mpload.index.lines import Lines
from mpload.plan.batch_number import BatchNumber
from mpload.plan.sample_rng import SampleRng
from mpload.samples.bulk_makers import MAKERS_OF_CELLS, Arrays, Bytes, Chunk, Images, Maker, Reading, Rows
from mpload.samples.one_decoder import OneDecoder
from mpload.samples.pipeline import Pipeline
from mpload.storage.native import NATIVE
from mpload.transport.ragged import RaggedArray
from mpload.transport.worker import ChunkReport
from mpload.units import MIB

__all__ = ["ARENA_BYTES", "LEFT_OUT_CHUNKS", "BulkPipeline"]

ARENA_BYTES = 4 * MIB
"""Room for about 40 photographs: those of a chunk are read and decoded with one call."""
LEFT_OUT_CHUNKS = 15
"""Chunks not to try after one that was mostly declined, so that data such as PNGs are not all read twice."""


class BulkPipeline:
    """Makes samples as a pipeline does, but a chunk at a time.

    Args:
        makers: for each column its number, the name of its arrays, and what makes it.
        reading: what reads the files, to be told which samples were made; None without a cache.

    Memory: 4 MiB of encoded images at most, and the lines of the chunk.
    Process: belongs to one process, like the files that the pipeline has opened.
    """

    def __init__(self, makers: list[tuple[int, str, Maker]], reading: Reading | None = None) -> None:
        self._makers = makers
        self._reading = reading
        self._rng = SampleRng(seed=0, epoch=0)
        self._num_left_out = 0  # chunks not to try, because most samples were declined

    @classmethod
    def of(cls, pipeline: Pipeline, *, arena: NDArray[np.uint8]) -> "BulkPipeline | None":
        """Return what makes a pipeline's samples in bulk; None if nothing can.

        Args:
            pipeline: the pipeline.
            arena: memory for encoded images that were read and not yet decoded; 4 MiB are enough.
        """
        if NATIVE is None or pipeline.transform is not None:
            return None
        if not isinstance(pipeline.maker, OneDecoder):
            return None
        columns = pipeline.index.columns
        reading = Reading.of(pipeline)
        of_source = None if reading is None else _maker_of_source(pipeline, reading, arena)
        makers: list[tuple[int, str, Maker]] = []
        for number in sorted(range(len(columns)), key=lambda number: number not in pipeline.sources):
            maker = of_source if number in pipeline.sources else MAKERS_OF_CELLS.get(columns[number].type)
            if maker is None:
                return None
            makers.append((number, columns[number].name, maker))
        return cls(makers, reading)

    def make(
        self, lines: Lines, arrays: Mapping[str, Any], *, number: BatchNumber, first: int, report: ChunkReport
    ) -> Mapping[int, None]:
        """Make the samples of `lines` at position `first` of the batch `number`, and the ones that follow it.

        Return the places in `lines` of the samples that must be made one by one.
        """
        if self._num_left_out:
            self._num_left_out -= 1
            return dict.fromkeys(range(len(lines)))
        if (self._rng.seed, self._rng.epoch) != (number.seed, number.epoch):
            self._rng = SampleRng(seed=number.seed, epoch=number.epoch)
        chunk = Chunk(lines=lines, first=first, key=self._rng.key, report=report)
        made = np.ones(len(lines), np.bool_)
        for column, name, maker in self._makers:
            made_here = maker(chunk, column, arrays[name])
            if made_here is None:
                return dict.fromkeys(range(len(lines)))
            made &= made_here
            if not made.any():
                break
        left: list[int] = np.flatnonzero(~made).tolist()
        if 2 * len(left) > len(lines):
            self._num_left_out = LEFT_OUT_CHUNKS
        ragged = [array for array in arrays.values() if isinstance(array, RaggedArray)]
        if left and not all(array.has_room(len(left)) for array in ragged):
            # Samples that some column declined have taken room in others. Begin again, without them.
            for array in ragged:
                array.begin(first, first + len(lines))
            return dict.fromkeys(range(len(lines)))
        if self._reading is not None:
            self._reading.note_made(made, report)
        return dict.fromkeys(left)


def _maker_of_source(pipeline: Pipeline, reading: Reading, arena: NDArray[np.uint8]) -> Maker | None:
    are_files = all(pipeline.index.columns[number].type.is_file for number in pipeline.sources)
    decode = pipeline.decode
    if not pipeline.sources or not are_files:
        return None
    if type(decode) is RawBytes:
        return Bytes(reading=reading).make
    if type(decode) is NumpyDecoder:
        return Arrays(reading=reading, decode=decode).make
    if (num_bytes := row_bytes(decode)) is not None:
        reading.maps_shards = True
        return Rows(reading=reading, row_bytes=num_bytes).make
    if (decode_many := many_decoder(decode)) is not None and len(pipeline.sources) == 1:
        return Images(reading=reading, decode_many=decode_many, arena=arena, rows=pipeline.row_index).make
    return None
