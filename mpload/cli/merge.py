"""`mpload merge`: concatenate several indexes."""

from typing import Annotated

import typer

from mpload.cli.reports import AsJson, print_json
from mpload.cli.terminal import progress_bar
from mpload.index.opening import open_index
from mpload.ingest.merge import merge_indexes
from mpload.ingest.parts import list_parts
from mpload.units import format_counted

__all__ = ["merge"]


def merge(
    sources: Annotated[
        list[str], typer.Argument(metavar="INDEX", help="Paths or URLs of indexes with the same columns.")
    ],
    *,
    out: Annotated[str, typer.Option("-o", "--out", help="The index to write.")],
    relative: Annotated[
        bool,
        typer.Option(
            "--relative", help="Store the root, or the paths of parts, relative to the index, so that all can be moved."
        ),
    ] = False,
    as_parts: Annotated[
        bool,
        typer.Option("--as-parts", help="List the indexes as parts of one, which opens them, without copying lines."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Concatenate indexes that have the same columns."""
    with progress_bar("listing" if as_parts else "merging") as update:
        join = list_parts if as_parts else merge_indexes
        index = open_index(join(sources, out, relative=relative, progress=update))
    if as_json:
        print_json({"path": index.path, "num_samples": len(index), "root": index.root})
    else:
        print(f"{index.path}: {format_counted(len(index), 'sample')} from {format_counted(len(sources), 'index')}")
