"""`OneDecoder`: all files of a sample go through the same decoder and the same transform."""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.images.arrays import RawArray
from mpload.images.claims import Claim
from mpload.images.decoders import ImageDecoder, NumpyDecoder, RandomResizedCrop, RawBytes, ResizeCenterCrop
from mpload.images.gpu_decode import GpuDecode
from mpload.images.letterbox import Letterbox
from mpload.images.mask import Mask
from mpload.images.patches import RandomCrop
from mpload.index.columns import Column
from mpload.index.record import Record
from mpload.plan.sample_rng import SampleRng
from mpload.samples.batch import Sample
from mpload.samples.counts import DECODE_NS, TRANSFORM_NS
from mpload.samples.masks import PhotographsOnly
from mpload.samples.row_index import RowIndex
from mpload.samples.transforms import (
    DECODE_STREAM,
    TRANSFORM_STREAM,
    GlobalGenerators,
    adapt_transform,
    seeds_generators,
    takes,
    takes_images,
    users_code,
)
from mpload.samples.views import Views

__all__ = ["OneDecoder", "declares_images"]

_IMAGE_DECODERS = (ImageDecoder, RandomResizedCrop, ResizeCenterCrop, Letterbox, RandomCrop, GpuDecode)
_OUR_DECODERS = frozenset({*_IMAGE_DECODERS, RawBytes, NumpyDecoder, RawArray, Mask})


class OneDecoder:
    """Decodes and transforms all files of a sample alike. A sample is a tuple of values, one for each column.

    Process: may be pickled and forked. Each process has its own generators.
    """

    def __init__(
        self,
        *,
        columns: Sequence[Column],
        decode: Callable[..., Any],
        transform: Callable[..., Any] | None,
        row_index: RowIndex | None,
    ) -> None:
        self.decode = decode
        self.decoders = [decode]
        """The decoders that files go through."""
        self.transform = transform
        self.row_index = row_index
        self.sources = [number for number, column in enumerate(columns) if column.type.is_source]
        """Numbers of the columns whose bytes `make` gets."""
        if isinstance(decode, Views):
            name = columns[self.sources[0]].name if self.sources else "image"
            raise ArgumentError(
                "Views makes several arrays of one file, so it needs a key in the samples. Pass "
                f"decode={{'crops': Views(of={name!r}, ...)}}"
            )
        self._takes_rng = takes(decode, "rng")
        self._takes_claim = takes(decode, "claim")
        declared = declares_images(decode)
        self.makes_images = bool(declared) or takes_images(transform)
        """Whether arrays of three or more dimensions are images [..., H, W, C]."""
        self._gives_images = True if self.makes_images else declared
        self.may_draw_globally = transform is not None or type(decode) not in _OUR_DECODERS
        """Whether the user's code is called, which may draw from the global generators."""
        guard = self._guard([columns[number].name for number in self.sources])
        self.files_guard = guard if isinstance(decode, _IMAGE_DECODERS) else None
        """The check that refuses masks among photographs by their bytes; None if it is not needed."""
        self.arrays_guard = None if isinstance(decode, _IMAGE_DECODERS) else guard
        """The same check for decoded arrays."""
        self.reads_in_place = isinstance(decode, RawBytes) and decode.as_array and transform is None
        """Whether samples are undecoded bytes in arrays, which can be read directly into the slot."""
        self._start()

    def _guard(self, columns: Sequence[str]) -> PhotographsOnly | None:
        is_image_decoder = isinstance(self.decode, _IMAGE_DECODERS)
        if len(columns) < 2 or not (is_image_decoder or takes_images(self.transform)):
            return None
        treatment = self.transform if self.transform is not None else self.decode
        return PhotographsOnly(
            columns=tuple(columns),
            treatment=getattr(treatment, "__qualname__", type(treatment).__qualname__),
            keeps_gray=isinstance(self.decode, ImageDecoder) and self.transform is None,
        )

    def _start(self) -> None:
        self._transform = (
            None if self.transform is None else adapt_transform(self.transform, on_images=self._gives_images)
        )
        self.generators = GlobalGenerators(
            seeds=seeds_generators(self._transform), code=users_code(self.decode, self.transform)
        )

    def cause(self, cause: str) -> str:
        """Return the cause of a failure as it is: it is the same for all columns."""
        return cause

    def blame(self, can_read: object) -> None:
        """Do nothing: a message names all files of the sample."""

    def make(
        self,
        record: Record,
        data: Sequence[Any],
        rng: SampleRng,
        outs: Sequence[NDArray[Any]] | None,
        counts: list[int],
        claim: Claim,
    ) -> Sample:
        """Return the values of a sample.

        Args:
            record: Its line in the index.
            data: The bytes of each of `sources`.
            rng: The random numbers of the epoch.
            outs: For each of `sources`, the array that the decoder writes to; None if the decoder makes arrays.
            counts: The counters to which the time is added.
            claim: Called by decoders before they allocate much memory.
        """
        values: list[Any] = list(record.cells)
        decoded: list[Any] = []
        if self.files_guard is not None:
            self.files_guard.check(data)
        # Every source of a sample gets the same random numbers, so that image pairs are cropped and transformed alike.
        for place, number in enumerate(self.sources):
            start_ns = perf_counter_ns()
            if self.may_draw_globally:
                self.generators.seed(rng, record.sample_id)
            arguments: dict[str, Any] = {} if outs is None else {"out": outs[place]}
            if self._takes_rng:
                arguments["rng"] = rng.for_sample(record.sample_id, stream=DECODE_STREAM)
            if self._takes_claim:
                arguments["claim"] = claim
            rows = self.row_index
            decode = self.decode if rows is None else rows.decoder(self.decode, record.sample_id, place)
            value = decode(data[place], **arguments)
            decoded_ns = perf_counter_ns()
            counts[DECODE_NS] += decoded_ns - start_ns
            if self._transform is not None:
                if self.arrays_guard is not None:
                    decoded.append(value)
                    self.arrays_guard.check_arrays(decoded)
                value = self._transform(value, rng.for_sample(record.sample_id, stream=TRANSFORM_STREAM))
                counts[TRANSFORM_NS] += perf_counter_ns() - decoded_ns
            values[number] = value
        return tuple(values)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in {"_transform", "generators"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


def declares_images(decode: Callable[..., Any]) -> bool | None:
    """Return the decoder's `makes_images`; None if it has no such attribute."""
    while isinstance(decode, partial):
        decode = decode.func
    declared = getattr(decode, "makes_images", None)
    return None if declared is None else bool(declared)
