"""Makes the boxes of a chunk of samples: reads their files and clips their boxes to the crops, with two native calls.

The results are those of `Boxes` to the last bit. Files that do not list objects as COCO does are declined.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from mpload.native import native_module
from mpload.samples.boxes import Boxes, BoxFormat
from mpload.samples.bulk_makers import Chunk, Maker, Reading
from mpload.samples.counts import DECODE_NS
from mpload.samples.objects import names_of
from mpload.storage.many import ManyRead
from mpload.transport.ragged import RaggedArray

__all__ = ["NATIVE", "boxes_maker"]


class _Native(Protocol):
    """The module `mpload.samples._objects`."""

    scan_many: Callable[..., None]


NATIVE: Final[_Native | None] = native_module("samples._objects")

_MAX_OBJECTS = 1 << 14  # of a chunk; files with more are declined
_MAX_VALUES, _MAX_NAMES = 8, 8  # in the native module
_DTYPES: dict[str, type[np.generic]] = {"int": np.int64, "float": np.float32}


def boxes_maker(decode: Callable[..., Any], *, reading: Reading, arena: NDArray[np.uint8]) -> Maker | None:
    """Return what makes boxes as `decode` does; None if nothing can.

    Args:
        decode: A decoder.
        reading: Reads the files.
        arena: Memory for files that were read, uint8 [num_bytes].
    """
    if NATIVE is None or type(decode) is not Boxes or decode.keypoints is not None:  # subclasses may differ
        return None
    kinds = dict(value.rpartition(":")[::2] for value in decode.values)
    if not set(kinds.values()) <= _DTYPES.keys() or not len(decode.values) == len(kinds) <= _MAX_VALUES:
        return None
    names = {name: names_of(name) for name in kinds}
    usual = [each for found in names.values() for each in found]
    if len(set(usual)) < len(usual) or max(map(len, names.values()), default=0) > _MAX_NAMES or "bbox" in usual:
        return None  # one value of an object would be two of the result
    if not all(name.isascii() and name.isprintable() for name in usual):
        return None  # the native module reads no other names
    columns = np.empty((len(kinds), _MAX_OBJECTS), np.int64)
    return _Boxes(
        reading=reading,
        decode=decode,
        arena=arena,
        native=NATIVE,
        values=tuple((kinds[name] == "int", *names[name]) for name in kinds),
        boxes=np.empty((_MAX_OBJECTS, 4)),
        numbers=np.empty((_MAX_OBJECTS, len(kinds))),
        shown=np.empty((_MAX_OBJECTS, 4), np.float32),
        columns=columns,
        column_of={name: column.view(_DTYPES[kinds[name]]) for name, column in zip(kinds, columns, strict=True)},
    ).make


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Boxes:
    """Reads files of boxes, and writes the boxes of each sample, and their values, to ragged fields.

    Memory: 1 MiB of addresses for boxes with one value. Only the pages that a chunk fills become memory.
    """

    reading: Reading
    decode: Boxes
    arena: NDArray[np.uint8]
    native: _Native
    values: tuple[tuple[Any, ...], ...]
    """For each value, whether it is an integer, then its usual names."""
    boxes: NDArray[np.float64]
    numbers: NDArray[np.float64]
    shown: NDArray[np.float32]
    """float32 [max_objects, 4]: the boxes that are visible."""
    columns: NDArray[np.int64]
    column_of: Mapping[str, NDArray[Any]]
    """By name: a value of each visible box, a view of `columns`."""

    def make(self, chunk: Chunk, column: int, arrays: Mapping[str, RaggedArray]) -> NDArray[np.bool_]:
        """Make a column."""
        assert chunk.geometries is not None
        assert chunk.is_drawn is not None
        made = np.zeros(len(chunk.lines), np.bool_)
        max_bytes = int(min(self.decode.max_bytes, len(self.arena)))
        for done, read in self.reading.reads(chunk, column, lambda _: self.arena, max_bytes=max_bytes):
            start_ns = perf_counter_ns()
            stop = done + len(read.lengths)
            bounds = self._scan(read, chunk.is_drawn[done:stop], chunk.geometries[done:stop])
            made[done:stop] = self._write(bounds, chunk.first + done, arrays)
            chunk.report.tally.counts[DECODE_NS] += perf_counter_ns() - start_ns
        return made

    def _scan(self, read: ManyRead, is_wanted: NDArray[np.bool_], geometries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the visible boxes of files in the arena, and return the bounds of each file's; -1 if it was declined."""
        bounds = np.empty((len(read.lengths), 2), np.int64)
        self.native.scan_many(
            self.arena,
            read.starts,
            read.lengths,
            is_wanted,
            geometries,
            self.values,
            get_args(BoxFormat).index(self.decode.format),
            self.decode.min_visible,
            self.decode.min_side,
            self.boxes,
            self.numbers,
            self.shown,
            self.columns,
            bounds,
        )
        return bounds

    def _write(self, bounds: NDArray[np.int64], first: int, arrays: Mapping[str, RaggedArray]) -> NDArray[np.bool_]:
        """Write the visible boxes, and return which files were not declined, bool [n]."""
        num_shown = int(bounds.max(initial=0))
        shown = self.shown[:num_shown]
        made = arrays["boxes"].put_many(first, shown, bounds * (4 * shown.itemsize), row_shape=(4,))
        for name, column in self.column_of.items():
            made &= arrays[name].put_many(first, column[:num_shown], bounds * column.itemsize)
        return made
