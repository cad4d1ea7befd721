"""`merge_indexes`: merges several indexes into one."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, format_columns
from mpload.index.opening import open_index, root_of
from mpload.index.sidecar import Progress
from mpload.index.text import Header, read_header
from mpload.ingest.lists import open_list
from mpload.ingest.rows import Rows, absolute
from mpload.ingest.writing import check_out, write_texts
from mpload.units import printable

__all__ = ["merge_indexes"]


def merge_indexes(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    relative: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write one index with the samples of all `sources`, one source after another.

    If the sources have different roots, the new root is their common parent, and paths are rewritten relative to it.

    Args:
        sources: paths of indexes or plain lists with the same columns and classes.
        out: path of the index text to write. An older one is replaced.
        relative: write `#root` relative to the folder of `out`.
        progress: called with the number of samples written so far.

    Raises:
        ArgumentError: columns or classes differ, the roots have no common parent, or `out` is one of the sources.
        IndexNotFoundError: there is no index at one of the paths.
        IndexFormatError: a line is broken, or a source is not a regular file.
        StorageError: a file cannot be read or written.

    Memory: constant.
    """
    paths = [Path(absolute(source)) for source in sources]
    if not paths:
        raise ArgumentError("sources is empty. Give the indexes to merge: mpload merge a.txt b.txt -o all.txt")
    target = Path(absolute(out))
    check_out(target, paths)
    headers = [read_header(path) for path in paths]
    for path, header in zip(paths[1:], headers[1:], strict=True):
        _check_alike(paths[0], headers[0], path, header)
    roots = [root_of(path, header) for path, header in zip(paths, headers, strict=True)]
    root = _common_root(paths, roots)

    def cells() -> Iterator[Sequence[Cell]]:
        for path, own in zip(paths, roots, strict=True):
            prefix = own[len(root) :].lstrip("/")
            with open_list(path, prefix=prefix + "/" if prefix else "") as rows:
                yield from rows.cells

    rows = Rows(columns=headers[0].columns, root=root, classes=headers[0].classes, cells=cells())
    write_texts(rows, target, split=None, relative=relative, progress=progress)
    open_index(target)
    return target


def _check_alike(first_path: Path, first: Header, path: Path, header: Header) -> None:
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
        f"{path}: has {difference}. So labels differ in meaning. Index both from one folder of all classes"
    )


def _common_root(paths: Sequence[Path], roots: Sequence[str]) -> str:
    """Return the innermost folder or URL that contains all roots."""
    common = os.path.commonprefix([root.split("/") for root in roots])  # noqa: RUF071  of lists, component by component
    is_url = "://" in roots[0]
    if len(common) < (3 if is_url else 1):  # a URL starts with its scheme, an empty component and its host
        other = next(number for number, root in enumerate(roots) if root != roots[0])
        raise ArgumentError(
            f"{paths[other]}: has the root {printable(roots[other])}, which has no parent in common with "
            f"{printable(roots[0])}, the root of {paths[0]}. Copy the files below one root first"
        )
    return "/".join(common) or "/"
