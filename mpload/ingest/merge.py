"""`merge_indexes`: merges several indexes into one."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mpload.errors import ArgumentError, warn
from mpload.index.columns import Cell, format_columns
from mpload.index.copying import copy_of_url
from mpload.index.opening import open_index, root_at, root_of
from mpload.index.parts_index import PartsIndex
from mpload.index.parts_text import is_part_list
from mpload.index.publishing import check_local, check_out
from mpload.index.sidecar import Progress
from mpload.index.text import Header, read_header
from mpload.ingest.lists import open_list
from mpload.ingest.rows import Rows, absolute, check_several
from mpload.ingest.writing import write_texts
from mpload.storage.urls import check_url, is_url
from mpload.units import printable

__all__ = ["merge_indexes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """An index to be merged."""

    name: str
    """Its absolute path, or its URL."""
    text: Path
    """It, or a copy of it."""
    header: Header
    root: str
    num_samples: int | None = None
    """How many of its samples are wanted; None if all are."""

    def __post_init__(self) -> None:
        if is_url(self.root):
            check_url(self.root)


def _sources_at(name: str) -> Iterator[_Source]:
    """Read the header of the index at an absolute path or a URL, from which it is copied first; or of all its parts."""
    text, warning = copy_of_url(name) if is_url(name) else (Path(name), "")
    if warning:
        warn(warning)
    if is_part_list(text):
        index = open_index(name)
        assert isinstance(index, PartsIndex), "its text lists parts"
        for part, num_samples in index.listed():
            yield from (replace(source, num_samples=num_samples) for source in _sources_at(part))
        return
    header = read_header(text)
    yield _Source(
        name=name, text=text, header=header, root=root_at(name, header) if is_url(name) else root_of(text, header)
    )


def merge_indexes(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    relative: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write one index with the samples of all `sources`, one source after another.

    A source may be a list of parts, which are merged then. If the sources have different roots, the new root is their
    common parent, and paths are rewritten relative to it.

    Args:
        sources: paths or URLs of indexes or plain lists with the same columns and classes. An index at a URL is copied
            first, as `open_index` does.
        out: path of the index text to write. An older one is replaced.
        relative: write `#root` relative to the folder of `out`.
        progress: called with the number of samples written so far.

    Raises:
        ArgumentError: columns or classes differ, the roots have no common parent, or `out` is one of the sources or a
            URL.
        IndexNotFoundError: there is no index at one of the paths.
        IndexFormatError: a line is broken, or a source is not a regular file.
        OutageError: the server of a URL does not answer, and there is no copy.
        StorageError: a file cannot be read or written.

    Memory: constant.
    """
    check_several(sources, "sources")
    names = [absolute(source) for source in sources]
    if not names:
        raise ArgumentError("sources is empty. Give the indexes to merge: mpload merge a.txt b.txt -o all.txt")
    check_local(out)
    target = Path(absolute(out))
    check_out(target, [Path(name) for name in names if not is_url(name)])
    parts = [part for name in names for part in _sources_at(name)]
    check_out(target, [part.text for part in parts])
    for part in parts[1:]:
        _check_alike(parts[0], part)
    root = _common_root(parts)

    def cells() -> Iterator[Sequence[Cell]]:
        for part in parts:
            prefix = part.root[len(root) :].lstrip("/")
            with open_list(part.text, root=part.root, prefix=prefix + "/" if prefix else "") as rows:
                yield from islice(rows.cells, part.num_samples)

    first = parts[0].header
    rows = Rows(columns=first.columns, root=root, classes=first.classes, cells=cells())
    write_texts(rows, target, split=None, relative=relative, progress=progress)
    open_index(target)
    return target


def _check_alike(one: _Source, other: _Source) -> None:
    first_path, first, path, header = one.name, one.header, other.name, other.header
    if header.columns != first.columns:
        raise ArgumentError(
            f"{path}: has columns '{format_columns(header.columns)}', but {first_path} has "
            f"'{format_columns(first.columns)}'. Rebuild it with the same columns: mpload index {path} --columns ..."
        )
    if header.classes == first.classes:
        return
    if len(header.classes) != len(first.classes):
        difference = f"{len(header.classes)} classes, but {first_path} has {len(first.classes)}"
    else:
        number = next(n for n, pair in enumerate(zip(header.classes, first.classes, strict=True)) if len(set(pair)) > 1)
        difference = (
            f"class {number} {printable(header.classes[number])!r}, but in {first_path} it is "
            f"{printable(first.classes[number])!r}"
        )
    raise ArgumentError(
        f"{path}: has {difference}. So labels differ in meaning. Index both from one folder of all classes, or do not "
        "merge them: Mixture(..., match_classes=True) matches the classes of several indexes by name"
    )


def _common_root(parts: Sequence[_Source]) -> str:
    """Return the innermost folder or URL that contains all roots."""
    roots = [part.root for part in parts]
    common = os.path.commonprefix([root.split("/") for root in roots])  # noqa: RUF071  of lists, component by component
    if len(common) < (3 if is_url(roots[0]) else 1):  # a URL starts with its scheme, an empty component and its host
        other = next(number for number, root in enumerate(roots) if root != roots[0])
        raise ArgumentError(
            f"{parts[other].name}: has the root {printable(roots[other])}, which has no parent in common with "
            f"{printable(roots[0])}, the root of {parts[0].name}. Copy the files below one root first"
        )
    return "/".join(common) or "/"
