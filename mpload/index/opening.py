"""`open_index`: opens the index text at a path as an `Index`."""

import errno
import os
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from mpload.errors import IndexChangedError, IndexFormatError, MploadError, StorageError, warn
from mpload.index.copying import copies_of_urls, copy_of_file, copy_of_url
from mpload.index.index import Index
from mpload.index.open_file import open_text
from mpload.index.parts_opening import open_parts
from mpload.index.parts_text import is_part_list
from mpload.index.plain_lists import refuse_joined_cells
from mpload.index.sidecar import Progress, TextStamp, ensure_sidecar
from mpload.index.text import Dialect, Header, read_header
from mpload.storage.remote import RemoteStorage
from mpload.storage.urls import is_url

__all__ = ["is_outside", "open_index", "root_at", "root_of"]

_NUM_TRIES = 5


def open_index(
    path: str | os.PathLike[str],
    *,
    allow_outside_root: bool | None = None,
    progress: Progress | None = None,
    storage: RemoteStorage | None = None,
    local_copy: str | os.PathLike[str] | None = None,
) -> Index:
    """Open an index, or any plain list of `path label` lines, and build its sidecar unless a matching one exists.

    The text may also list the parts of an index, see docs/index-format.md. They are opened as one index.

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
        local_copy: a folder on a local disk, for an index on a file system that is slow to answer. The text, its
            sidecar and its row index are copied there, once per machine, and again when they have changed. If that is
            not possible because of other users, the index is read where it is, with a warning.

    Raises:
        IndexNotFoundError: there is no file at `path`.
        IndexChangedError: the text was replaced while it was being opened, or a part does not have the samples that
            are listed.
        IndexFormatError: the text is empty or has a broken line, or `path` is not a regular file.
        SidecarError: the sidecar cannot be written anywhere.
        OutageError: the server of a URL does not answer, and there is no copy.
        StorageError: the text cannot be opened or copied.

    Memory: constant, and 8 bytes per part. If the sidecar exists, opening takes a few milliseconds for any number of
    samples, and some 40 milliseconds per 1,000 parts.
    """
    copies = None if local_copy is None else Path(local_copy).expanduser().absolute()
    opening = _Opening(allow_outside_root=allow_outside_root, storage=storage, copies=copies)
    text, source = Path(path).expanduser(), os.fspath(path)
    if not is_url(source):
        source = str(text.absolute())
    if is_url(source) or copies is not None:
        text, warning = opening.text_of(source)
        if warning:
            warn(warning)
    if not is_part_list(text):
        return opening.opened(text, source, progress)
    return open_parts(
        text,
        source=source,
        opener=opening,
        allow_outside_root=bool(allow_outside_root),
        copies=copies,
        progress=progress,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """How indexes are opened."""

    allow_outside_root: bool | None
    storage: RemoteStorage | None
    copies: Path | None
    known: dict[str, tuple[Path, str]] = field(default_factory=dict)
    """The copies of URLs that were made together."""

    def prepare(self, sources: Sequence[str]) -> None:
        """Copy the parts at URLs, many at once."""
        if urls := list(dict.fromkeys(filter(is_url, sources))):
            self.known.update(zip(urls, copies_of_urls(urls, self.storage, self.copies), strict=True))

    def text_of(self, source: str) -> tuple[Path, str]:
        """Return the text at an absolute path or a URL, or its copy, and a warning or ""."""
        if is_url(source):
            return self.known.get(source) or copy_of_url(source, self.storage, self.copies)
        return (Path(source), "") if self.copies is None else copy_of_file(source, self.copies)

    def opened(self, text: Path, source: str, progress: Progress | None) -> Index:
        """Open the index in a text."""
        for _ in range(_NUM_TRIES - 1):  # a text that is replaced now, as by `mpload index --append`
            with suppress(IndexChangedError):
                return self._try(text, source, progress)
        return self._try(text, source, progress)

    def part(self, source: str, progress: Progress) -> tuple[Path, Index | None]:
        """Open a part, see `open_parts`."""
        text, warning = self.text_of(source)
        if warning:
            warn(warning)
        if is_part_list(text):
            raise IndexFormatError("lists parts itself. List its parts instead, as `mpload merge --as-parts` does")
        header = read_header(text, may_be_empty=True)
        if header.body_bytes == text.stat().st_size:
            return text, None
        return text, self.opened(text, source, progress)

    def _try(self, text: Path, source: str, progress: Progress | None) -> Index:
        return _open(
            text,
            source,
            allow_outside_root=self.allow_outside_root,
            copies=self.copies,
            progress=progress,
        )


def _open(
    text: Path, source: str, *, allow_outside_root: bool | None, copies: Path | None, progress: Progress | None
) -> Index:
    text = text.absolute()  # workers open the sidecar too, wherever this process has gone meanwhile
    with open_text(text) as file:
        stamp = TextStamp.of(file.fileno())
    changed = IndexChangedError(f"{text}: changed while it was being opened. Open it again")
    try:
        header = read_header(text)
        root = root_at(source, header) if is_url(source) else root_of(Path(source), header)
        refuse_joined_cells(text, header, root)
        layout = ensure_sidecar(text, header, progress=progress)
        if allow_outside_root is None:
            allow_outside_root = header.dialect is not Dialect.NATIVE
        index = Index(
            path=text,
            header=header,
            layout=layout,
            root=root,
            allow_outside_root=allow_outside_root,
            source=source,
            copies=copies,
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
