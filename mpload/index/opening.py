"""`open_index`: opens the index text at a path as an `Index`."""

import errno
import os
import posixpath
import warnings
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from mpload.errors import IndexChangedError, MploadError, MploadWarning, StorageError
from mpload.index.copying import local_copy
from mpload.index.index import Index
from mpload.index.open_file import open_text
from mpload.index.sidecar import Progress, TextStamp, ensure_sidecar
from mpload.index.text import Dialect, Header, read_header
from mpload.storage.remote import RemoteStorage, is_url

__all__ = ["is_outside", "open_index", "root_at", "root_of"]

_NUM_TRIES = 5


def open_index(
    path: str | os.PathLike[str],
    *,
    allow_outside_root: bool | None = None,
    progress: Progress | None = None,
    storage: RemoteStorage | None = None,
) -> Index:
    """Open an index, or any plain list of `path label` lines, and build its sidecar unless a matching one exists.

    An index at a URL is copied to the user's cache folder, once per machine, with its sidecar and its row index if they
    are there too. It is copied again when it has changed. If its server does not answer, the latest copy is used, with
    a warning.

    Args:
        path: the text, or its URL. Its sidecar is stored beside it, or in the user's cache folder if the text's folder
            is read-only.
        allow_outside_root: whether paths may lead outside the root, through `..`, a link or an absolute path. None
            allows it for plain lists, which declare no root, and forbids it for indexes.
        progress: called with the number of samples processed so far while a sidecar is built.
        storage: the time limits for copying an index from a URL; None means the default ones.

    Raises:
        IndexNotFoundError: there is no file at `path`.
        IndexChangedError: the text was replaced while it was being opened.
        IndexFormatError: the text is empty or has a broken line, or `path` is not a regular file.
        SidecarError: the sidecar cannot be written anywhere.
        OutageError: the server of a URL does not answer, and there is no copy.
        StorageError: the text cannot be opened or copied.

    Memory: constant. If the sidecar exists, opening takes a few milliseconds for any number of samples.
    """
    url = os.fspath(path)
    if not is_url(url):
        text = Path(path).expanduser()
    else:
        text, warning = local_copy(url, storage)
        if warning:
            warnings.warn(warning, MploadWarning, stacklevel=2)
    for _ in range(
        _NUM_TRIES - 1
    ):  # a text that is replaced now, as by `mpload index --append`, is opened as it is then
        with suppress(IndexChangedError):
            return _open(text, url, allow_outside_root=allow_outside_root, progress=progress)
    return _open(text, url, allow_outside_root=allow_outside_root, progress=progress)


def _open(text: Path, url: str, *, allow_outside_root: bool | None, progress: Progress | None) -> Index:
    with open_text(text) as file:
        stamp = TextStamp.of(file.fileno())
    changed = IndexChangedError(f"{text}: changed while it was being opened. Open it again")
    try:
        header = read_header(text)
        layout = ensure_sidecar(text, header, progress=progress)
        if allow_outside_root is None:
            allow_outside_root = header.dialect is not Dialect.NATIVE
        index = Index(
            path=text.absolute(),
            header=header,
            layout=layout,
            root=root_at(url, header) if is_url(url) else root_of(text, header),
            allow_outside_root=allow_outside_root,
            source=url if is_url(url) else str(text.absolute()),
        )
    except MploadError as error:
        # A text that is replaced loses its sidecar before.
        is_gone = isinstance(error, StorageError) and error.errno == errno.ENOENT
        if is_gone or (text.exists() and TextStamp.of(text) != stamp):
            raise changed from error
        raise
    if TextStamp.of(text) != stamp:  # the header, the sidecar and the lines may come from different texts
        raise changed
    return index


def root_of(text: Path, header: Header) -> str:
    """Return the folder or URL that paths in the index at `text` are relative to."""
    if header.root is not None and "://" in header.root:
        return header.root
    return os.path.normpath(text.absolute().parent / (header.root or "."))


def root_at(url: str, header: Header) -> str:
    """Return the folder or URL that paths in the index at `url` are relative to."""
    above, root = url.rpartition("/")[0], header.root or "."
    if is_url(root) or root.startswith("/"):
        return root
    scheme, _, place = above.partition("://")
    server, _, folder = place.partition("/")
    below = quote(root) if scheme.startswith("http") else root
    folder = posixpath.normpath(posixpath.join("/", folder, below))
    return f"{scheme}://{server}{folder}".rstrip("/")


def is_outside(path: str, root: str) -> bool:
    """Whether `path` leads outside `root`. Only the text is examined, so links are not resolved."""
    if "://" in path:
        return not path.startswith(root.rstrip("/") + "/")
    if not path.startswith("/") and ".." not in path:
        return False
    if "://" in root:
        return path.startswith("/") or os.path.normpath(path).split("/")[0] == ".."
    full = os.path.normpath(f"{root}/{path}" if not path.startswith("/") else path)
    return full != root and not full.startswith(root.rstrip("/") + "/")
