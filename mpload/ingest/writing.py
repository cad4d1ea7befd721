"""From open rows to one or several index texts, each complete or not there at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, MploadError, StorageError
from mpload.index.sidecar import Progress
from mpload.index.text import format_header, format_line
from mpload.ingest.rows import Rows, shown
from mpload.ingest.splitting import Split, part_of
from mpload.units import MIB

__all__ = ["check_out", "new_file", "new_path", "write_texts"]

_PROGRESS_SAMPLES = 4096


def check_out(out: Path, sources: list[Path]) -> None:
    """Raise `ArgumentError` unless an index can be written to `out` without destroying one of `sources`."""
    if out.is_dir():
        raise ArgumentError(f"{out}: is a directory. Name the index file: {out / 'train.txt'}")
    if not out.parent.is_dir():
        raise ArgumentError(f"{out.parent}: no such folder. Create it: mkdir -p {out.parent}")
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ArgumentError(f"{out}: is the source itself. Give the new index another name")


def write_texts(
    rows: Rows, out: Path, *, split: Split | None, relative: bool, progress: Progress | None
) -> tuple[Path, ...]:
    """Write all rows to `out`, or each to its part of the split; return the files written.

    Raises:
        ArgumentError: there is no sample, or a part of the split got none.
        StorageError: a file cannot be written. Then no file was changed.
    """
    paths = (out,) if split is None else split.paths(out)
    bounds = () if split is None else split.bounds
    source = next(number for number, column in enumerate(rows.columns) if column.type.is_source)
    counts = [0] * len(paths)
    header = format_header(columns=rows.columns, root=_root(rows.root, out, relative=relative), classes=rows.classes)
    with ExitStack() as stack:
        files = [stack.enter_context(new_file(path)) for path in paths]
        for file in files:
            file.write(header)
        for done, cells in enumerate(rows.cells, start=1):
            part = part_of(str(cells[source]), bounds) if bounds else 0
            files[part].write(format_line(cells))
            counts[part] += 1
            if progress is not None and done % _PROGRESS_SAMPLES == 0:
                progress(done)
        for path, count in zip(paths, counts, strict=True):
            if not count:
                raise ArgumentError(
                    f"{path}: none of the {sum(counts)} samples falls into this part. Give it a larger fraction"
                )
        if progress is not None:
            progress(sum(counts))
    return paths


def _root(root: str, out: Path, *, relative: bool) -> str | None:
    """Return what stands in `#root` of the index `out`; None where it needs none."""
    folder = os.path.normpath(out.parent.absolute())
    if root == folder:
        return None
    return os.path.relpath(root, folder) if relative and "://" not in root else root


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when all went well, and nothing otherwise.

    Raises:
        StorageError: it cannot be written.
    """
    with new_path(path) as unfinished, unfinished.open("xb", buffering=MIB) as file:
        yield file


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield where a file can be written that becomes `path`, through to the disk, when all went well.

    Raises:
        StorageError: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield unfinished
        _sync(unfinished)
        # A new text of the old one's size, within one tick of the file system's clock, would pass for the old one.
        path.with_name(path.name + ".mpx").unlink(missing_ok=True)
        unfinished.replace(path)
        with suppress(OSError):  # not every file system syncs folders
            _sync(path.parent)
    except OSError as error:
        if isinstance(error, MploadError):
            raise
        raise StorageError(
            f"{shown(str(path))}: cannot be written: {error.strerror or error}. "
            "Make room there, or give a folder that is writable"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
