"""Writes rows to one or several index texts. Each text is published atomically, when it is complete."""

from contextlib import ExitStack
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.index.publishing import declared_root, new_file
from mpload.index.sidecar import Progress
from mpload.index.text import format_header, format_line
from mpload.ingest.rows import Rows
from mpload.ingest.splitting import Split, part_of

__all__ = ["write_texts"]

_PROGRESS_SAMPLES = 4096


def write_texts(
    rows: Rows, out: Path, *, split: Split | None, relative: bool, progress: Progress | None
) -> tuple[Path, ...]:
    """Write all rows to `out`, or each row to its part of the split, and return the paths written.

    If an error occurs before all rows are written, no file is changed.

    Raises:
        ArgumentError: there are no samples, or none in a part of the split.
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
            if not count:
                raise ArgumentError(
                    f"{path}: none of the {sum(counts)} samples falls into this part. Give it a larger fraction"
                )
        if progress is not None:
            progress(sum(counts))
    return paths
