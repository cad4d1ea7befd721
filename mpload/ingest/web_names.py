"""Names of local files that a web server would read in another way."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mpload.errors import warn
from mpload.index.columns import Cell, path_of
from mpload.ingest.rows import Rows
from mpload.units import format_counted, printable

__all__ = ["with_warning_of_escapes"]

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


def with_warning_of_escapes(rows: Rows, index: Path) -> Rows:
    """Return the rows. Once all were iterated, warn of names of files in which a web server sees escaped characters.

    Below an http root, a path is written as in a URL, so `a%20b.png` is the file `a b.png`. In a list, that may be what
    the user means. In a folder, it is the name of another file.

    Args:
        rows: the rows of a source.
        index: the path of their index, for the warning.
    """
    if rows.is_list or not rows.root.startswith(("http://", "https://")):
        return rows
    return replace(rows, cells=_cells(rows, index))


def _cells(rows: Rows, index: Path) -> Iterator[Sequence[Cell]]:
    sources = [number for number, column in enumerate(rows.columns) if column.type.is_source]
    num_found, example = 0, ""
    for cells in rows.cells:
        found = [path for number in sources if _ESCAPE.search(path := path_of(cells[number]))]
        num_found += bool(found)
        example = example or next(iter(found), "")
        yield cells
    if num_found:
        warn(
            f"{index}: {format_counted(num_found, 'sample')} with names that a web server takes for escaped ones, such "
            f"as {printable(example)}: paths below {printable(rows.root)} are written as in a URL. Write %25 for the "
            "percent sign in these paths of the index, or rename the files"
        )
