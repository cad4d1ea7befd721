"""`list_parts`: lists indexes as the parts of one, without copying their lines."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.index.index import Index, sidecar_of
from mpload.index.opening import open_index
from mpload.index.parts_index import PartsIndex
from mpload.index.parts_opening import difference_of
from mpload.index.parts_text import ListedPart, format_parts
from mpload.index.publishing import check_local, check_out, new_file
from mpload.index.sidecar import Progress
from mpload.ingest.rows import absolute, check_several
from mpload.storage.urls import is_url
from mpload.units import printable

__all__ = ["list_parts"]


def list_parts(
    parts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    relative: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a list of indexes, which `open_index` and `MPDataset` open as one index with the samples of all.

    No lines are copied. The list holds the number of samples of each part, and a digest of their lines, so that a part
    that is changed is noticed. Lines that are appended to a part later do not belong to the index until the parts are
    listed again. The parts of a list among `parts` are listed as such.

    Args:
        parts: paths or URLs of indexes with the same columns, classes and root. One that occurs twice counts twice.
        out: path of the list. An older one is replaced.
        relative: write all paths relative to the folder of `out`. Otherwise, only those inside of this folder are.
        progress: called with the number of samples processed so far while the sidecar of a part is built.

    Raises:
        ArgumentError: the parts do not fit together, one is a plain list, or `out` is one of them or a URL.
        IndexNotFoundError: there is no index at one of the paths.
        IndexFormatError: a line is broken, or a part has no samples.
        StorageError: a file cannot be read or written.

    Memory: about 1 kB per part.
    """
    check_several(parts, "parts")
    names = [absolute(part) for part in parts]
    if not names:
        raise ArgumentError("parts is empty. Give the indexes to list: mpload merge a.txt b.txt -o all.txt --as-parts")
    check_local(out, what="a list is written to a local file")
    target = Path(absolute(out))
    check_out(target, [Path(name) for name in names if not is_url(name)])
    first, listed = None, list[ListedPart]()
    for name, part in _opened(names, progress):
        first = first or part
        _check_alike(first, part)
        check_out(target, [part.path])
        layout = sidecar_of(part)
        listed.append(
            ListedPart(
                name=name if is_url(name) else _written(Path(name), target.parent, relative=relative),
                num_samples=layout.num_samples,
                digest=layout.digest,
            )
        )
    with new_file(target) as file:
        file.write(format_parts(listed))
    open_index(target)
    return target


def _opened(names: Sequence[str], progress: Progress | None) -> Iterator[tuple[str, Index]]:
    """Open the indexes, and the parts of those that are lists."""
    for name in names:
        index = open_index(name, progress=progress)
        if not isinstance(index, PartsIndex):
            yield name, index
            continue
        for source, _ in index.listed():
            yield source, open_index(source, progress=progress)


def _check_alike(first: Index, part: Index) -> None:
    if difference := difference_of(first, part):
        raise ArgumentError(f"{printable(str(part.path))}: {difference}")


def _written(part: Path, folder: Path, *, relative: bool) -> str:
    if part.is_relative_to(folder):
        return str(part.relative_to(folder))
    # The system resolves a link to the folder before a `..` behind it.
    return os.path.relpath(part.parent.resolve() / part.name, folder.resolve()) if relative else str(part)
