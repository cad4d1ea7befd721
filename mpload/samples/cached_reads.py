"""Copies the entries of a whole chunk of samples from a cache into one area."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mpload.index.lines import Lines
from mpload.samples.reading import ChunkCache
from mpload.storage.many import ManyRead
from mpload.units import KIB

__all__ = ["CachedReader"]

_AREA_BYTES = 512 * KIB
"""Bytes to copy at a time: enough for several photos, and few enough that a decoder finds them near the processor."""
_ALIGN_BYTES = 64


class CachedReader:
    """Gets the file or span in one column of each sample of a chunk, if a cache has it.

    A sample is declined if the cache lacks it, or if its entry is not valid. The cache's `read` is then asked.

    Args:
        cache: the cache. Its entries have one source each.
        lines: the lines of the samples.
        column: the number of the column.
        at: called with the place of each sample in the chunk before its entry is read.
    """

    def __init__(self, cache: ChunkCache, lines: Lines, column: int, *, at: Callable[[int], None]) -> None:
        self._cache = cache
        self._data = lines.data
        self._rows: list[int] = lines.rows.tolist()
        self._paths: list[list[int]] = lines.spans(column).paths.tolist()
        self._at = at
        self.is_hit = np.zeros(len(lines), np.bool_)
        """Which samples were copied, bool [n]."""
        self.is_outside = np.zeros(len(lines), np.bool_)
        """Which samples the cache never keeps, bool [n]."""

    def read(
        self, area: NDArray[np.uint8], *, first: int, step_bytes: int = 0, max_bytes: int | None = None
    ) -> ManyRead:
        """Copy entries into an area, as many as fit. Arguments are those of `ManyReader.read`."""
        whole = area.data
        most_bytes = len(area) if max_bytes is None else min(max_bytes, len(area))
        group_bytes = min(len(area), _AREA_BYTES) if not step_bytes else len(area)
        starts: list[int] = []
        lengths: list[int] = []
        used_bytes = 0
        for place in range(first, len(self._rows)):
            room_bytes = step_bytes or (min(most_bytes, group_bytes - used_bytes) if starts else most_bytes)
            room = whole[used_bytes : used_bytes + room_bytes]
            num_bytes = self._copy(place, room)
            if num_bytes > len(room):
                if starts and num_bytes <= most_bytes and not step_bytes:
                    break  # it comes first in the next area
                num_bytes = -1
            self.is_hit[place] = num_bytes >= 0
            starts.append(used_bytes)
            lengths.append(num_bytes)
            used_bytes += step_bytes or -(-max(0, num_bytes) // _ALIGN_BYTES) * _ALIGN_BYTES
            if used_bytes >= group_bytes:
                break
        return ManyRead(
            starts=np.array(starts, np.int64),
            lengths=np.array(lengths, np.int64),
            num_slow=0,
            used_bytes=min(used_bytes, len(area)),
        )

    def rows_outside(self, made: NDArray[np.bool_]) -> list[int]:
        """Return the sample_ids of those samples, among the ones in `made`, that the cache never keeps."""
        return [self._rows[place] for place in np.flatnonzero(made & self.is_outside).tolist()]

    def _copy(self, place: int, room: memoryview) -> int:
        row, (start, end) = self._rows[place], self._paths[place]
        if not self._cache.holds(row):
            self.is_outside[place] = True
            return -1
        if start < 0:  # the line must be parsed as a record
            return -1
        self._at(place)
        return self._cache.copy(row, self._data[start:end].decode("utf-8", "surrogateescape"), room)
