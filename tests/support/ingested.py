"""Small sources that tests write, and what is in the indexes made of them."""

import io
import tarfile
from pathlib import Path

import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from mpload import open_index
from mpload.index.columns import Cell
from mpload.storage.ranges import Span

__all__ = ["JPEG", "cells", "columns_of", "make_files", "make_tar", "read_span"]

JPEG: bytes = simplejpeg.encode_jpeg(np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8))


def make_files(folder: Path, *names: str) -> Path:
    """Write files with the bytes of a JPEG below `folder`, and return the folder."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPEG)
    return folder


def make_tar(path: Path, *members: tuple[str, bytes], tar_format: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar file with these members, and return its path."""
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def read_span(root: Path, cell: Cell) -> bytes:
    """Return the bytes of a span."""
    assert isinstance(cell, Span)
    return (root / cell.path).read_bytes()[cell.offset_bytes :][: cell.length_bytes]


def cells(path: Path) -> list[tuple[Cell, ...]]:
    """Return the cells of all samples of an index."""
    return [record.cells for record in open_index(path)]


def columns_of(index: Path) -> str:
    """Return the columns of an index as they are written in `#columns`."""
    return " ".join(map(str, open_index(index).columns))
