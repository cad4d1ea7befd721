"""Makes the samples of a chunk with a few native calls if `Views` of one column make all of their images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.images.many import EncodedSamples
from mpload.index.columns import ColumnType
from mpload.index.lines import Lines
from mpload.plan.batch_number import BatchNumber
from mpload.samples.bulk import BulkPipeline
from mpload.samples.bulk_makers import MAKERS_OF_CELLS, Images, Maker, Reading
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.leaves import Leaf
from mpload.samples.pipeline import Pipeline
from mpload.samples.views import Views, crops_of
from mpload.storage.native import NATIVE
from mpload.transport.worker import ChunkReport

__all__ = ["BulkViews"]

_DTYPES_OF_CELLS = {ColumnType.INT: "<i8", ColumnType.FLOAT: "<f8"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Groups:
    """The arrays of all groups of views, [B, count, height, width, 3], which are cut alike."""

    arrays: tuple[NDArray[np.uint8], ...]

    def __getitem__(self, samples: slice) -> tuple[NDArray[np.uint8], ...]:
        return tuple(array[samples] for array in self.arrays)


class BulkViews:
    """Makes samples as a pipeline does whose only column of files is read by `Views`, but a chunk at a time.

    Args:
        bulk: Makes the views from `_Groups`, and the cells.
        key: The key of the views.
        template: The template of the samples.

    Memory: as for `BulkPipeline`.
    Process: belongs to one process, like the files that the pipeline has opened.
    """

    def __init__(self, bulk: BulkPipeline, key: str, template: Mapping[str, Any]) -> None:
        self._bulk = bulk
        self._key = key
        self._template = template

    @classmethod
    def of(cls, pipeline: Pipeline, template: Any, *, arena: NDArray[np.uint8]) -> "BulkViews | None":
        """Return what makes a pipeline's samples in bulk; None if they are of another kind.

        Args:
            pipeline: The pipeline.
            template: The template of its samples; None for one decoder.
            arena: Memory for encoded images that were read and not yet decoded; 4 MiB are enough.
        """
        maker, columns = pipeline.maker, pipeline.index.columns
        reading = Reading.of(pipeline)
        if NATIVE is None or pipeline.transform is not None or reading is None:
            return None
        if not isinstance(maker, ColumnDecoders) or len(maker.decode) != 1:
            return None
        ((key, views),) = maker.decode.items()
        crops = crops_of(views) if type(views) is Views and views.output_shape is not None else None
        if crops is None:
            return None

        def decode_many(samples: EncodedSamples, arrays: Any) -> NDArray[np.uint8]:
            return crops.write_many(samples, arrays)

        images = Images(reading=reading, decode_many=decode_many, arena=arena)
        (number,) = maker.sources
        if not columns[number].type.is_file:
            return None
        makers: list[tuple[int, str, Maker]] = [(number, key, images.make)]
        for number, column in enumerate(columns):
            if number not in maker.sources:
                leaf, make = template[column.name], MAKERS_OF_CELLS.get(column.type)
                if make is None or not isinstance(leaf, Leaf) or leaf.dtype != _DTYPES_OF_CELLS.get(column.type):
                    return None
                makers.append((number, column.name, make))
        return cls(BulkPipeline(makers, reading), key, template)

    def make(
        self, lines: Lines, arrays: Mapping[str, Any], *, number: BatchNumber, first: int, report: ChunkReport
    ) -> Mapping[int, None]:
        """Make samples as `BulkPipeline.make` does."""
        named: dict[str, Any] = {
            key: arrays[leaf.name] for key, leaf in self._template.items() if isinstance(leaf, Leaf)
        }
        named[self._key] = _Groups(arrays=tuple(arrays[leaf.name] for leaf in self._template[self._key].values()))
        return self._bulk.make(lines, named, number=number, first=first, report=report)
