"""Finds out whether samples need OpenCV, which takes 20 MB of a job's memory."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mpload.errors import MploadError
from mpload.images.arrays import RawArray
from mpload.images.backends import NATIVE
from mpload.images.decoders import NumpyDecoder, RawBytes
from mpload.index.columns import Cell
from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.storage.local import LocalStorage
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.urls import is_url

__all__ = ["may_need_opencv"]

_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif")
_MARKER = b"\xff\xd8"  # JPEGs begin with it
_OTHERS = (RawBytes, NumpyDecoder, RawArray)


def may_need_opencv(index: Index, decoders: Iterable[Callable[..., object]], sources: Sequence[int]) -> bool:
    """Return whether decoders of mpload may need OpenCV for the files of an index.

    They need none for JPEGs that the native decoder decodes. The first row tells what the files are, and in a mixture
    that of each source. A job whose first files are JPEGs may still need it for another file, and loads it then.
    """
    of_files = [decoder for decoder in decoders if not isinstance(decoder, _OTHERS)]
    if not of_files:
        return False
    if NATIVE is None or any(getattr(decoder, "backend", "auto") == "simplejpeg" for decoder in of_files):
        return True
    try:
        return not _are_jpegs(index, {index.columns[number].name for number in sources})
    except MploadError:  # raised again when a sample is made
        return True


def _are_jpegs(index: Index, names: set[str]) -> bool:
    if isinstance(index, MixtureIndex):
        return all(_are_jpegs(part, names) for part in index.parts)
    found = names.intersection(column.name for column in index.columns)
    first = index.records(range(len(index))[:1])
    return all(_is_jpeg(index, record[name]) for record in first for name in found)


def _is_jpeg(index: Index, cell: Cell) -> bool:
    if not isinstance(cell, ByteRange):
        return str(cell).lower().endswith(_ENDINGS)
    if not isinstance(cell, Span) or is_url(index.root) or is_url(cell.path):
        return False
    begin = Span(cell.path, cell.offset_bytes, min(len(_MARKER), cell.length_bytes))
    return LocalStorage(Path(index.root), allow_outside_root=index.allow_outside_root).read([begin]) == [_MARKER]
