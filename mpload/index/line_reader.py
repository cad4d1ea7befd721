"""`LineReader`: finds and reads lines without the native module."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpload.errors import IndexChangedError
from mpload.index.lookup import SidecarFile, SidecarLayout
from mpload.index.open_file import OpenFile, read_pieces
from mpload.index.text import MAX_LINE_BYTES

__all__ = ["LineReader", "misfit_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineReader:
    """The open files of an index."""

    path: Path
    text: OpenFile
    sidecar: SidecarFile
    layout: SidecarLayout
    body_bytes: int
    """Offset of the first line in the text."""
    stamp: tuple[int, int]
    """Size and modification time of the text when the index was opened."""

    def read(self, sample_ids: NDArray[np.int64]) -> list[bytes]:
        """Return the lines of `sample_ids` as raw bytes, without their newlines."""
        if not sample_ids.size:
            return []
        if self.text.stamp() != self.stamp:
            raise IndexChangedError(f"{self.path}: changed after it was opened. Open it again")
        # The newline before each line is read too. Together with the newline at the line's end, it proves that the
        # offsets in the sidecar are right.
        starts, ends = self.bounds(sample_ids)
        skips = np.minimum(starts - self.body_bytes, 1)
        lengths = ends - starts + skips
        pieces = read_pieces(self.text, starts - skips, lengths)
        ends_text = (ends == self.stamp[0]).tolist()  # only there may the newline be missing
        lines = []
        for piece, skip, length, is_at_end in zip(pieces, skips.tolist(), lengths.tolist(), ends_text, strict=True):
            line, newline, rest = piece[skip:].partition(b"\n")
            if len(piece) != length or piece[:skip] not in {b"", b"\n"} or rest.strip() or not line:
                raise misfit_of(self.path, self.layout.path)
            if not newline and not is_at_end:
                raise misfit_of(self.path, self.layout.path)
            lines.append(line)
        return lines

    def bounds(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the lines of `sample_ids` start and end in the text."""
        num_bytes = self.stamp[0]
        starts, ends = self.sidecar.offsets(sample_ids)
        ends = np.where(sample_ids < self.layout.num_samples - 1, ends, num_bytes)
        ends = np.minimum(ends, starts + (MAX_LINE_BYTES + 2))  # CR and newline
        if ((starts < self.body_bytes) | (ends <= starts) | (ends > num_bytes)).any():
            raise misfit_of(self.path, self.layout.path)
        return starts, ends


def misfit_of(text: Path, sidecar: Path) -> IndexChangedError:
    """Return the error of a sidecar whose offsets are not those of the text's lines."""
    return IndexChangedError(
        f"{text}: its sidecar {sidecar} does not match it. Delete the sidecar and open the index again, which rebuilds "
        "it"
    )
