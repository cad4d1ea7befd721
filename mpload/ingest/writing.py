"""Writes rows to one or several index texts. Each text is published atomically, when it is complete."""

from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.publishing import declared_root, new_file
from mpload.index.scan import Scan
from mpload.index.sidecar import Progress
from mpload.index.text import format_header, format_line, read_header
from mpload.ingest.rows import Rows
from mpload.ingest.splitting import Split, part_of
from mpload.units import printable

__all__ = ["check_text", "write_texts"]

_PROGRESS_SAMPLES = 4096


def write_texts(
    rows: Rows, out: Path, *, split: Split | None, relative: bool, progress: Progress | None
) -> tuple[Path, ...]:
    """Write all rows to `out`, or each row to its part of the split, and return the paths written.

    If there is an error, no file is changed.

    Raises:
        ArgumentError: there are no samples, or none in a part of the split.
        IndexFormatError: a row breaks a rule of the format, such as a label without a name among the classes.
        StorageError: a file cannot be written.
    """
    paths = (out,) if split is None else split.paths(out)
    bounds = () if split is None else split.bounds
    source = next((number for number, column in enumerate(rows.columns) if column.type.is_source), 0)
    counts = [0] * len(paths)
    header = format_header(
        columns=rows.columns, root=declared_root(rows.root, out, relative=relative), classes=rows.classes
    )
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
            if not count and split is None:
                raise ArgumentError(f"{path}: the source has no samples, and an index has at least one")
            if not count:
                raise ArgumentError(
                    f"{path}: none of the {sum(counts)} samples falls into this part. Give it a larger fraction"
                )
        for path, file in zip(paths, files, strict=True):
            check_text(file, path)
        if progress is not None:
            progress(sum(counts))
    return paths


def check_text(file: BinaryIO, path: Path) -> None:
    """Raise `IndexFormatError` if the text of an index, which will be published at `path`, cannot be opened."""
    file.flush()
    unfinished = Path(file.name)
    try:
        for _ in Scan(path=unfinished, header=read_header(unfinished)):
            pass
    except IndexFormatError as error:
        fault = str(error).removeprefix(f"{unfinished}:")
        raise IndexFormatError(
            f"{printable(str(path))}: is not written, as it would be broken in line {fault}"
        ) from error
