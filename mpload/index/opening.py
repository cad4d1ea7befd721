"""From a path to an `Index`."""

import os
from pathlib import Path

from mpload.errors import IndexChangedError, IndexFormatError
from mpload.index.index import Index
from mpload.index.sidecar import Progress, TextStamp, ensure_sidecar
from mpload.index.text import Dialect, Header, read_header

__all__ = ["open_index", "root_of"]


def open_index(
    path: str | os.PathLike[str], *, allow_outside_root: bool | None = None, progress: Progress | None = None
) -> Index:
    """Open an index text, or any plain list of `path label` lines; build its sidecar where none fits.

    Args:
        path: the text. Its sidecar lies beside it, or in the user's cache folder where the text's folder is read-only.
        allow_outside_root: whether paths may lead out of the root, by `..`, by a link or as absolute paths. None: those
            of an index may not; those of a plain list, which declares no root, may.
        progress: told the number of samples done while a sidecar is being built.

    Raises:
        IndexChangedError: the text was replaced at the same time.
        IndexFormatError: the file is empty, no index, or has a broken line.
        SidecarError: there is no place to write the sidecar.
        OSError: the text cannot be read.

    Memory: constant. Opening takes a few milliseconds for any number of samples once the sidecar stands.
    """
    text = Path(path).expanduser()
    if text.is_dir():
        raise IndexFormatError(f"{text}: is a directory. Make an index of it: mpload index {text} -o train.txt")
    if text.exists() and not text.is_file():
        raise IndexFormatError(f"{text}: is not a regular file, and an index is read by position. Copy it into one")
    stamp = TextStamp.of(text)
    header = read_header(text)
    layout = ensure_sidecar(text, header, progress=progress)
    if allow_outside_root is None:
        allow_outside_root = header.dialect is not Dialect.NATIVE
    index = Index(
        path=text.absolute(),
        header=header,
        layout=layout,
        root=root_of(text, header),
        allow_outside_root=allow_outside_root,
    )
    if TextStamp.of(text) != stamp:  # header, sidecar and lines may be of different texts
        raise IndexChangedError(f"{text}: changed while it was being opened. Open it again")
    return index


def root_of(text: Path, header: Header) -> str:
    """Return the folder, or the URL, that the paths of the index at `text` are relative to."""
    if header.root is not None and "://" in header.root:
        return header.root
    return os.path.normpath(text.absolute().parent / (header.root or "."))
