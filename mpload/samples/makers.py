"""`Makers`: what makes samples of the bytes of their files, for all samples alike or for each bucket."""

from collections.abc import Mapping, Sequence
from typing import Any

from mpload.images.opencv import load_opencv
from mpload.index.bucket_table import BucketTable
from mpload.index.index import Index, peers_of
from mpload.samples.bucket_shapes import BucketShapes, packed_view
from mpload.samples.by_source import makers_of
from mpload.samples.opencv_use import may_need_opencv
from mpload.samples.row_index import RowIndex

__all__ = ["Makers"]


class Makers:
    """One maker, or one for each bucket if the images of each bucket have a shape of their own.

    Process: may be pickled and forked.
    """

    def __init__(
        self,
        *,
        index: Index,
        decode: Any,
        transform: Any,
        row_index: RowIndex | None,
        table: BucketTable | None,
        shapes: BucketShapes | None,
    ) -> None:
        self._index = index
        self._transform = transform
        self._table = table
        self._bucket: int | None = None
        self.shapes = shapes
        """The shape of the images of each bucket; None if there is one maker."""
        self.decode = decode
        """The decoder, or dict of decoders, as the user chose it: not yet adapted to buckets."""
        decoders: list[Any] = [decode] if shapes is None else shapes.decoders(decode)
        found = [makers_of(index, each, transform, row_index) for each in decoders]
        self._makers = [maker for maker, _ in found]
        self.by_source = found[0][1]
        """The makers of each source of a mixture; None if they do not differ."""
        self.current = self._makers[0]
        """The maker of the bucket in use."""
        decoders_of_files = (self.by_source or self.current).decoders
        self._uses_opencv = self.current.may_draw_globally or may_need_opencv(
            index, decoders_of_files, self.current.sources
        )
        self._start()

    def _start(self) -> None:
        if self._uses_opencv:
            load_opencv()  # so that workers that are forked from this process share its memory

    def use_bucket(self, bucket: int) -> None:
        """Use this bucket from now on: images have its shape, and substitutes are from among its samples."""
        self._bucket = bucket
        if self.shapes is not None:
            self.current = self._makers[bucket]

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Shape of every array that the decoder returns; None if it varies within a batch, or is unknown."""
        if self.shapes is not None and self._transform is not None:
            return None  # the transform may return other shapes in other buckets
        decode = self.decode if self.shapes is None else self.current.decode
        shape: tuple[int, ...] | None = getattr(decode, "output_shape", None)
        return shape

    def peers_of(self, sample_id: int) -> Sequence[int]:
        """Return the samples that may take the place of one: those of its bucket or, in a mixture, of its source."""
        if self._table is not None and self._bucket is not None:
            return self._table.bucket(self._bucket)
        return peers_of(self._index, sample_id)

    def unpacked(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arrays of a slot, with those of images in the shape of the bucket."""
        shape = self.output_shape
        if self.shapes is None or shape is None:
            return arrays
        names = {self._index.columns[number].name for number in self.current.sources}
        return {name: packed_view(array, shape) if name in names else array for name, array in arrays.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()
