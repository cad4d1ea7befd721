"""Copies the ranges of a whole chunk of samples into one area, from bytes that were read ahead."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mpload.storage.many import ManyRead
from mpload.storage.read_ahead import ReadAhead
from mpload.units import KIB

__all__ = ["AheadReader"]

_AREA_BYTES = 512 * KIB
"""Bytes to copy at a time: enough for several photos, and few enough that a decoder finds them in the cache."""
_ALIGN_BYTES = 64


class AheadReader:
    """Gets one range of each sample of a chunk. `ReadAhead.release` lets go of the bytes.

    A range is declined if it is not read ahead, or if its read failed. `ReadAhead.read` then reads it, or raises.

    Args:
        ahead: what reads ahead.
        sample_ids: the samples.
        place: which of each sample's ranges to get.
        at: called with the place of a sample in the chunk before the reader waits for it.
    """

    def __init__(self, ahead: ReadAhead, sample_ids: Sequence[int], *, place: int, at: Callable[[int], None]) -> None:
        self._ahead = ahead
        self._sample_ids = sample_ids
        self._place = place
        self._at = at

    def read(
        self, area: NDArray[np.uint8], *, first: int, step_bytes: int = 0, max_bytes: int | None = None
    ) -> ManyRead:
        """Copy ranges into an area: as many as have arrived in a row, after a wait for the first one.

        Arguments are those of `ManyReader.read`. Nothing is read if no range fits, or if too many bytes are in use.
        """
        self._ahead.uses.asked()
        most_bytes = len(area) if max_bytes is None else min(max_bytes, len(area))
        room = area.data
        starts: list[int] = []
        lengths: list[int] = []
        taken = {}
        is_late = False
        used_bytes = 0
        group_bytes = min(len(area), _AREA_BYTES, self._ahead.usable_bytes)
        for number in range(first, len(self._sample_ids)) if group_bytes > 0 else ():
            sample_id = self._sample_ids[number]
            pieces = self._ahead.pieces_of(sample_id)
            piece = pieces[self._place] if pieces else None
            if piece is not None and piece.fetch.is_late:
                if starts:
                    break
                is_late = True
                self._at(number)
                self._ahead.wait_for(piece.fetch)
            data = None if piece is None or piece.fetch.data is None else piece.part_of(piece.fetch.data)
            num_bytes = -1 if data is None or len(data) > (step_bytes or most_bytes) else len(data)
            if num_bytes >= 0:
                if starts and used_bytes + num_bytes > group_bytes:
                    break
                assert piece is not None
                assert data is not None
                room[used_bytes : used_bytes + num_bytes] = data
                taken[sample_id] = piece
            starts.append(used_bytes)
            lengths.append(num_bytes)
            used_bytes += step_bytes or -(-max(0, num_bytes) // _ALIGN_BYTES) * _ALIGN_BYTES
        self._ahead.use(taken, is_late=is_late)
        return ManyRead(
            starts=np.array(starts, np.int64),
            lengths=np.array(lengths, np.int64),
            num_slow=0,
            used_bytes=min(used_bytes, len(area)),
        )
