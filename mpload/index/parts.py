"""What an index consists of: the indexes with a text of their own, and their files."""

from collections.abc import Iterator
from pathlib import Path

from mpload.index.index import Index, sidecar_of, text_bytes
from mpload.index.parts_index import PartsIndex

__all__ = ["file_sizes", "is_shortened", "num_listed", "parts_of", "sidecar_path"]


def parts_of(index: Index) -> Iterator[tuple[int, Index]]:
    """Yield the indexes with a text of their own that make up an index, each after the sample_id of its first sample.

    An index is its only part, unless it was opened from a list of parts.
    """
    return index.parts() if isinstance(index, PartsIndex) else iter([(0, index)])


def num_listed(index: Index) -> int:
    """Return the number of lines in the text, which may be more than the index has samples."""
    return index.num_listed if isinstance(index, PartsIndex) else sidecar_of(index).num_samples


def is_shortened(index: Index) -> bool:
    """Return whether the text of an index has further lines: see `mpload.index.growth`."""
    return len(index) < num_listed(index)


def file_sizes(index: Index) -> tuple[int, int]:
    """Return the bytes of the text and of the sidecar; of an index of parts, the sums over all of them."""
    return index.file_sizes() if isinstance(index, PartsIndex) else (text_bytes(index), sidecar_of(index).file_bytes)


def sidecar_path(index: Index) -> Path:
    """Return the path of an index's sidecar, or of that of its list of parts."""
    return index.table_path if isinstance(index, PartsIndex) else sidecar_of(index).path
