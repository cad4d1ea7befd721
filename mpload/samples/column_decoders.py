"""`ColumnDecoders`: each column of a sample has a decoder of its own. Samples are dicts.

What a column decoder is called with, apart from what `mpload.images.decoders` says of all decoders:

- Its first argument is the bytes of the column's file, or the text of the column's cell.
- If it has a parameter `record`, it is given the cells of the sample's line, by the name of their column.
- If it has a parameter `geometry`, it is given the `Geometry` that the sample's first image drew; None if none did.
- If it has an attribute `of`, that is the name of the column that it reads, in place of its key.
- If it has an attribute `target`, "mask", "boxes" or "keypoints", transforms of whole samples treat its values as
  `mpload.samples.targets` says.
- If its attribute `is_whole` is true, its values are not stacked: a batch has a list of them.
- If its attribute `has_geometry_size` is true, its arrays have the height and width of the geometry's result.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from mpload.errors import ArgumentError
from mpload.images.claims import Claim
from mpload.images.geometry import DrawsGeometry, Geometry, open_as, show
from mpload.images.gpu_decode import GpuDecode
from mpload.index.columns import Column, format_columns
from mpload.index.record import Record
from mpload.plan.sample_rng import SampleRng
from mpload.samples.counts import DECODE_NS, TRANSFORM_NS
from mpload.samples.leaves import typed_template_of
from mpload.samples.sample_transforms import adapt_sample_transform, channels_last
from mpload.samples.targets import Target, target_of
from mpload.samples.transforms import (
    DECODE_STREAM,
    TRANSFORM_STREAM,
    GlobalGenerators,
    runs_user_code,
    takes_images,
    users_code,
)

__all__ = ["ColumnDecoders", "Ready", "TypedColumn"]

_GIVEN = ("rng", "record", "geometry", "out", "claim")
"""Parameters of a column decoder, besides the first, that the pipeline gives by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedColumn:
    """How the value of one key of a sample is made."""

    key: str
    decode: Callable[..., Any]
    number: int
    """Number of the column of the index that is decoded."""
    place: int | None
    """Position of its bytes among those that are read; None for a cell."""
    takes: frozenset[str]
    """The parameters that the decoder is given by name."""

    def check(self, *, has_geometry: bool) -> None:
        """Raise `ArgumentError` if the decoder needs what it cannot be given."""
        positional = 0
        for parameter in _parameters(self.decode):
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL}:
                positional += 1
            is_first = positional == 1 and parameter.kind is not parameter.KEYWORD_ONLY
            if is_first or parameter.default is not parameter.empty or "VAR_" in parameter.kind.name:
                continue
            if parameter.name not in self.takes:
                raise ArgumentError(
                    f"{self.what}: nothing is passed for its parameter {parameter.name!r}. It gets the bytes of a file "
                    f"or the text of a cell, and by name: {', '.join(_GIVEN)}"
                )
            if parameter.name == "out" and self.output_shape is None and not self.has_geometry_size:
                raise ArgumentError(f"{self.what} takes out=, so it needs an attribute output_shape")
            if parameter.name == "geometry" and not has_geometry:
                raise ArgumentError(
                    f"{self.what} follows the geometry of an image, but no decoder draws one. Add an image to decode, "
                    "such as RandomResizedCrop(224)"
                )
        if not positional:
            raise ArgumentError(f"{self.what} must take an argument: the bytes of a file, or the text of a cell")

    @property
    def what(self) -> str:
        """The decoder, for messages."""
        name = getattr(self.decode, "__qualname__", type(self.decode).__qualname__)
        return f"decode[{self.key!r}] ({name})"

    @property
    def output_shape(self) -> object:
        """The shape of all values, or a dict of the shapes of their arrays; None if it varies."""
        return None if getattr(self.decode, "shape_varies", False) else getattr(self.decode, "output_shape", None)

    @property
    def has_geometry_size(self) -> bool:
        """Whether the arrays have the height and width of the geometry's result."""
        return bool(getattr(self.decode, "has_geometry_size", False))

    @property
    def draws(self) -> bool:
        """Whether the decoder can draw the geometry of a sample."""
        return isinstance(self.decode, DrawsGeometry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The part of a sample that has been made together with those of other samples."""

    keys: frozenset[str]
    """Keys of the sample whose arrays are made, all of them among `in_place_keys`."""
    geometry: Geometry
    """The sample's geometry."""


class ColumnDecoders:
    """Decodes each column with a decoder of its own, then transforms the sample. A sample is a dict.

    One image draws the sample's geometry: that of the first decoder, in the order of `decode`, that draws one. All
    other decoders follow it.

    Process: may be pickled and forked. Each process has its own generators.

    Raises:
        ArgumentError: A decoder does not fit its column, or a column of files has none.
    """

    def __init__(
        self,
        *,
        columns: Sequence[Column],
        decode: Mapping[str, Callable[..., Any]],
        transform: Callable[..., Any] | None,
    ) -> None:
        numbers = {column.name: number for number, column in enumerate(columns)}
        read_numbers = {key: _column_of(key, each, numbers, columns) for key, each in decode.items()}
        self.sources = sorted({number for number in read_numbers.values() if columns[number].type.is_source})
        """Numbers of the columns whose bytes `make` gets."""
        for number, column in enumerate(columns):
            if column.type.is_source and number not in self.sources:
                raise ArgumentError(
                    f"column {column.name!r} holds files, but decode has no decoder for it. Add one, such as "
                    f"decode={{{column.name!r}: RawBytes(), ...}}"
                )
        self._columns = [
            TypedColumn(
                key=key,
                decode=decode[key],
                number=number,
                place=self.sources.index(number) if number in self.sources else None,
                takes=_named_parameters(decode[key]) & set(_GIVEN),
            )
            for key, number in read_numbers.items()
        ]
        self.decoders = [column.decode for column in self._columns if column.place is not None]
        """The decoders that files go through."""
        drawing = [column for column in self._columns if column.draws and column.place is not None][:1]
        self.transform = transform
        self._check_device()
        for each in self._columns:
            each.check(has_geometry=bool(drawing))
        self.drawing = drawing[0] if drawing else None
        """The column that draws the geometry."""
        self.in_order = [*drawing, *(column for column in self._columns if column not in drawing)]
        """The columns that are decoded, in the order in which `make` decodes them."""
        # Keys are those of the index, in its order, then further keys of `decode`.
        cells = [column.name for column in columns if not column.type.is_source or column.name in decode]
        self._keys = [*cells, *(key for key in decode if key not in numbers)]
        self.decode: Any = decode
        self._takes_record = any("record" in column.takes for column in self._columns)
        found = {column.key: target_of(column.decode) for column in self._columns}
        self.targets = {key: target for key, target in found.items() if target is not None}
        """What transforms treat the values of a key as."""
        self.image_keys = frozenset(key for key, target in self.targets.items() if target.shows_images)
        """Keys of the sample whose arrays of three or more dimensions are images [..., H, W, C]."""
        self.whole_keys = frozenset(column.key for column in self._columns if getattr(column.decode, "is_whole", False))
        """Keys of the sample whose values a batch lists as they are."""
        drawn_shape = None if self.drawing is None else self.drawing.output_shape
        own = {column.key: column.output_shape for column in self._columns if column.output_shape is not None}
        following = {column.key: drawn_shape for column in self._columns if column.has_geometry_size}
        self.shapes = own if drawn_shape is None else {**following, **own}
        """By key of the sample: the shape of the arrays, or of the image that they follow, if it is always the same."""
        self.fixed_keys = frozenset(self.shapes)
        """Keys of the sample whose arrays all have the same shape."""
        out_keys = frozenset(column.key for column in self._columns if "out" in column.takes)
        self.in_place_keys = frozenset() if transform is not None else self.fixed_keys & out_keys
        """Keys of the sample whose arrays are written to `outs`."""
        self.may_draw_globally = transform is not None or any(runs_user_code(column.decode) for column in self._columns)
        """Whether the user's code is called, which may draw from the global generators."""
        self.files_guard = self.arrays_guard = None
        self.template: Any = None
        """The template of the samples, once it is known in this process."""
        self._start()

    def _start(self) -> None:
        self._transform = None if self.transform is None else adapt_sample_transform(self.transform, self.targets)
        self.generators = GlobalGenerators(
            seeds=self._transform is not None and self._transform.seeds_generators,
            code=users_code(*(column.decode for column in self._columns), self.transform),
        )
        self._at = ""

    def _check_device(self) -> None:
        """Raise `ArgumentError` if images that the device decodes are needed here."""
        has_images = any(target_of(column.decode) is Target.IMAGE for column in self._columns)
        for column in self._columns:
            if not isinstance(column.decode, GpuDecode):
                continue
            instead = f"Use its crop instead: {column.decode.crop!r:.80}"
            if any("geometry" in each.takes for each in self._columns):
                raise ArgumentError(
                    f"{column.what} leaves the crop to the device, where no other column can follow it. {instead}"
                )
            if takes_images(self.transform) and not has_images:
                raise ArgumentError(
                    f"{column.what} leaves the image to the device, so transform would not get its pixels. {instead}, "
                    "or transform images on the device with PerSample"
                )

    def cause(self, cause: str) -> str:
        """Return the cause of a failure, with the column that was being decoded."""
        return f"column {self._at!r}: {cause}" if self._at else cause

    def make(
        self,
        record: Record,
        data: Sequence[Any],
        rng: SampleRng,
        outs: Mapping[str, Any] | None,
        counts: list[int],
        claim: Claim,
        ready: Ready | None = None,
    ) -> dict[str, Any]:
        """Return a sample.

        Args:
            record: Its line in the index.
            data: The bytes of each of `sources`.
            rng: The random numbers of the epoch.
            outs: By key: the array, or dict of arrays, that the decoder writes to, for each of `in_place_keys`.
            counts: The counters to which the time is added.
            claim: Called by decoders before they allocate much memory.
            ready: What `outs` hold already.
        """
        start_ns = perf_counter_ns()
        sample: dict[str, Any] = {column.name: cell for column, cell in zip(record.columns, record.cells, strict=True)}
        given: dict[str, Any] = {"claim": claim, "geometry": None, "rng": None}
        if self._takes_record:
            given["record"] = MappingProxyType(dict(sample))
        made: dict[str, Any] = {}
        if ready is not None and outs is not None:
            made = {key: outs[key] for key in ready.keys}
            given["geometry"] = ready.geometry
        for column in self.in_order:
            if column.key in made:
                continue
            self._at = column.key
            if self.may_draw_globally:
                self.generators.seed(rng, record.sample_id)
            if column is self.drawing or "rng" in column.takes:
                given["rng"] = rng.for_sample(record.sample_id, stream=DECODE_STREAM)
            given["out"] = None if outs is None else outs.get(column.key)
            value = data[column.place] if column.place is not None else str(record.cells[column.number])
            if column is self.drawing:
                made[column.key], given["geometry"] = _drawn(cast("DrawsGeometry", column.decode), value, **given)
            else:
                arguments = {name: given[name] for name in column.takes if name != "out" or given["out"] is not None}
                made[column.key] = column.decode(value, **arguments)
        self._at = ""
        sample = {key: made[key] if key in made else sample[key] for key in self._keys}
        decoded_ns = perf_counter_ns()
        counts[DECODE_NS] += decoded_ns - start_ns
        if self._transform is not None:
            sample = self._transform(sample, rng.for_sample(record.sample_id, stream=TRANSFORM_STREAM))
            counts[TRANSFORM_NS] += perf_counter_ns() - decoded_ns
        for key in self.image_keys & sample.keys():
            sample[key] = channels_last(sample[key])
        return sample

    def needed_sources(self, ready: Ready) -> list[int]:
        """Return the numbers of the columns whose bytes `make` needs besides what is ready."""
        needed = {column.number for column in self.in_order if column.key not in ready.keys}
        return [number for number in self.sources if number in needed]

    def blame(self, can_read: Callable[[int], bool]) -> None:
        """Blame the failure on the first column whose file cannot be read.

        Args:
            can_read: Tells whether the file in a column, given by its number, can be read.
        """
        of_files = [column for column in self._columns if column.place is not None]
        at = of_files if len(of_files) == 1 else (column for column in of_files if not can_read(column.number))
        self._at = next((column.key for column in at), "")

    def template_of(self, sample: Mapping[str, Any]) -> Any:
        """Return the template of a sample: its containers, with a `Leaf` for each value."""
        return typed_template_of(sample, fixed_keys=self.fixed_keys, whole_keys=self.whole_keys)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in {"_transform", "generators"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


def _drawn(
    decode: DrawsGeometry, data: Any, *, rng: np.random.Generator, out: Any, claim: Claim, **_: Any
) -> tuple[Any, Geometry]:
    """Return what the image shows, and the geometry that it drew."""
    image = open_as(decode, data, claim)
    geometry = decode.draw_geometry(image.height, image.width, rng)
    return show(decode, image, geometry, out), geometry


def _column_of(key: object, decode: object, numbers: Mapping[str, int], columns: Sequence[Column]) -> int:
    """Return the number of the column that a decoder reads."""
    if not isinstance(key, str):
        raise ArgumentError(f"the keys of decode must be names of columns, got {key!r}")
    if isinstance(decode, type) and any("__call__" in vars(base) for base in decode.__mro__):
        raise ArgumentError(f"decode[{key!r}] is the class {decode.__name__}. Pass an instance: {decode.__name__}(...)")
    if not callable(decode):
        raise ArgumentError(f"decode[{key!r}] must be callable, got {decode!r:.80}")
    of = getattr(decode, "of", None)
    name = key if of is None else of
    if name not in numbers:
        what = f"decode[{key!r}] reads column {name!r}, but" if of is not None else f"decode has a key {key!r}, but"
        raise ArgumentError(f"{what} the columns of the index are '{format_columns(tuple(columns))}'")
    if name != key and key in numbers:
        raise ArgumentError(
            f"decode[{key!r}] reads column {name!r}, but its values would replace those of column {key!r}. Give it a "
            "key that is no column of the index"
        )
    return numbers[name]


def _parameters(decode: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(decode).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return [inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)]
    return found


def _named_parameters(decode: Callable[..., Any]) -> frozenset[str]:
    """Return the names of all parameters but the first that can be passed by name."""
    return frozenset(
        each.name
        for place, each in enumerate(_parameters(decode))
        if each.kind is each.KEYWORD_ONLY or (place and each.kind is each.POSITIONAL_OR_KEYWORD)
    )
