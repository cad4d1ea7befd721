"""Makes samples whose columns have decoders of their own, a chunk at a time: the image first, then what follows it.

The image of each sample is made with those of the others, and tells its geometry. Columns that follow it are made in
the same way where something can. All others are made by the pipeline, one sample after another, and so is every sample
that a native call declines. Values, errors and policies are the same for both ways.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.images.many import DecodeMany, many_decoder
from mpload.images.many_geometries import NUM_GEOMETRY, geometry_of
from mpload.images.many_masks import many_masks
from mpload.index.columns import ColumnType
from mpload.index.lines import Lines
from mpload.plan.batch_number import BatchNumber
from mpload.plan.sample_rng import SampleRng
from mpload.samples.bulk import LEFT_OUT_CHUNKS
from mpload.samples.bulk_boxes import boxes_maker
from mpload.samples.bulk_makers import MAKERS_OF_CELLS, Chunk, Images, Maker, Reading
from mpload.samples.column_decoders import ColumnDecoders, Ready, TypedColumn
from mpload.samples.leaves import Leaf
from mpload.samples.pipeline import Pipeline
from mpload.storage.native import NATIVE
from mpload.transport.ragged import RaggedArray
from mpload.transport.worker import ChunkReport

__all__ = ["BulkColumns"]


class _Column:
    """One key of the samples, and what makes its values."""

    def __init__(self, key: str, number: int, template: Any, maker: Maker, *, has_paths: bool = False) -> None:
        self.key = key
        self.number = number
        self._template = template
        self._maker = maker
        self._has_paths = has_paths
        self._num_left_out = 0

    @property
    def reads_files(self) -> bool:
        """Whether it reads whole files for the next chunk."""
        return self._has_paths and not self._num_left_out

    def make(self, chunk: Chunk, arrays: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Make the values of a chunk, and return which were made, bool [n]."""
        made = None
        if self._num_left_out:
            self._num_left_out -= 1
        else:
            made = self._maker(chunk, self.number, _arrays_of(self._template, arrays))
            num_wanted = len(chunk.lines) if chunk.is_drawn is None else np.count_nonzero(chunk.is_drawn)
            if made is not None and 2 * np.count_nonzero(made) < num_wanted:
                self._num_left_out = LEFT_OUT_CHUNKS
        return np.zeros(len(chunk.lines), np.bool_) if made is None else made


def _arrays_of(template: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the array of a leaf, or those of a dict of leaves."""
    if isinstance(template, Leaf):
        return arrays[template.name]
    return {key: arrays[leaf.name] for key, leaf in template.items()}


def _texts(chunk: Chunk, column: int, array: RaggedArray) -> NDArray[np.bool_] | None:
    """Make a column of texts; samples with column decoders carry them as UTF-8 only."""
    try:
        chunk.lines.data.decode()
    except UnicodeDecodeError:
        return None
    return MAKERS_OF_CELLS[ColumnType.STR](chunk, column, array)


_MAKERS = {**MAKERS_OF_CELLS, ColumnType.STR: _texts}


class BulkColumns:
    """Makes samples as a pipeline with column decoders does, but a chunk at a time.

    Args:
        reading: Reads the files.
        arena: Memory for files that were read, uint8 [num_bytes].
        image: The column that draws the geometry.
        crop: Its decoder.
        others: The columns that follow it, or whose values are cells.
        in_place_keys: Keys of the samples that need not be made again if another key was not made.
        is_complete: Whether these are all keys of the samples.

    Memory: 4 MiB of encoded images at most, and the lines of the chunk.
    Process: belongs to one process, like the files that the pipeline has opened.
    """

    def __init__(
        self,
        reading: Reading,
        arena: NDArray[np.uint8],
        image: _Column,
        crop: Any,
        others: Sequence[_Column],
        *,
        in_place_keys: frozenset[str],
        is_complete: bool,
    ) -> None:
        self._reading = reading
        self._arena = arena
        self._image = image
        self._crop = crop
        self._others = others if is_complete else [column for column in others if column.key in in_place_keys]
        self._in_place_keys = in_place_keys
        self._is_complete = is_complete
        self._rng = SampleRng(seed=0, epoch=0)

    @classmethod
    def of(cls, pipeline: Pipeline, template: Mapping[str, Any], *, arena: NDArray[np.uint8]) -> "BulkColumns | None":
        """Return what makes a pipeline's samples in bulk; None if nothing can.

        Args:
            pipeline: The pipeline.
            template: The template of its samples.
            arena: Memory for encoded images that were read and not yet decoded; 4 MiB are enough.
        """
        maker, columns = pipeline.maker, pipeline.index.columns
        reading = Reading.of(pipeline)
        if NATIVE is None or reading is None or pipeline.cache is not None:
            return None
        if not isinstance(maker, ColumnDecoders) or maker.drawing is None or not template:  # the index is empty
            return None

        def column_of(column: TypedColumn, decode_many: DecodeMany | None) -> _Column | None:
            if not columns[column.number].type.is_file:
                return None
            make = boxes_maker(column.decode, reading=reading, arena=arena)
            if decode_many is not None and column.key in maker.in_place_keys:
                make = Images(reading=reading, decode_many=decode_many, arena=arena).make
            if make is None:
                return None
            has_paths = columns[column.number].type is ColumnType.PATH
            return _Column(column.key, column.number, template[column.key], make, has_paths=has_paths)

        image = column_of(maker.drawing, many_decoder(maker.drawing.decode))
        if image is None:
            return None
        decoded = [column_of(each, many_masks(each.decode)) for each in maker.in_order[1:]]
        keys = {each.key for each in maker.in_order}
        cells = [
            _Column(column.name, number, template[column.name], _MAKERS[column.type])
            for number, column in enumerate(columns)
            if column.name not in keys and column.type in _MAKERS
        ]
        others = [*filter(None, decoded), *cells]
        return cls(
            reading,
            arena,
            image,
            maker.drawing.decode,
            others,
            in_place_keys=maker.in_place_keys,
            is_complete={image.key, *(each.key for each in others)} == template.keys(),
        )

    def make(
        self, lines: Lines, arrays: Mapping[str, Any], *, number: BatchNumber, first: int, report: ChunkReport
    ) -> Mapping[int, Ready | None]:
        """Make the samples of `lines` at position `first` of the batch `number`, and the ones that follow it.

        Return the places in `lines` of the samples that must be made one by one, with the part of each that is ready.
        """
        if (self._rng.seed, self._rng.epoch) != (number.seed, number.epoch):
            self._rng = SampleRng(seed=number.seed, epoch=number.epoch)
        geometries = np.empty((len(lines), NUM_GEOMETRY), np.int64)
        chunk = Chunk(lines=lines, first=first, key=self._rng.key, report=report, geometries=geometries)
        together = [column.number for column in (self._image, *self._others) if column.reads_files]
        if self._image.reads_files and len(together) > 1:
            chunk = replace(chunk, read=self._reading.read_together(chunk, together, self._arena))
        is_drawn = self._image.make(chunk, arrays)
        made = {self._image.key: is_drawn}
        if is_drawn.any():
            chunk = replace(chunk, is_drawn=is_drawn)
            made |= {column.key: column.make(chunk, arrays) for column in self._others}
        if self._is_complete and all(is_made.all() for is_made in made.values()):  # nearly always
            return {}
        is_left = ~np.logical_and.reduce([*made.values(), np.full(len(lines), self._is_complete)])
        ragged = [array for array in arrays.values() if isinstance(array, RaggedArray)]
        if is_left.any() and not all(array.has_room(int(is_left.sum())) for array in ragged):
            # Samples that some column declined have taken room in others. Begin again, without them.
            for array in ragged:
                array.begin(first, first + len(lines))
            is_left[:] = True
        in_place = {key: is_made for key, is_made in made.items() if key in self._in_place_keys}
        return {
            place: self._ready(in_place, place, geometries) if is_drawn[place] else None
            for place in np.flatnonzero(is_left).tolist()
        }

    def _ready(self, made: Mapping[str, NDArray[np.bool_]], place: int, geometries: NDArray[np.int64]) -> Ready:
        keys = frozenset(key for key, is_made in made.items() if is_made[place])
        return Ready(keys=keys, geometry=geometry_of(self._crop, geometries[place].tolist()))
