"""`mpload index`: an index of a folder, a list, shards, or what lies below a URL."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mpload.cli.reports import AsJson, print_json
from mpload.cli.terminal import progress_bar
from mpload.errors import ArgumentError
from mpload.index.opening import open_index
from mpload.ingest.build import build_index
from mpload.ingest.folder_options import IMAGE_EXTENSIONS, FolderOptions
from mpload.units import format_count, format_seconds

__all__ = ["index"]


def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A folder of images, a list or CSV, shards (tar, LMDB, TFRecord, Arrow, Parquet), or s3://BUCKET/PREFIX.",
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The index to write.")],
    split: Annotated[
        str | None, typer.Option(help="Write parts: 0.9,0.1 or train=0.9,val=0.1, by a hash of the path.")
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="Write the root relative to the index: both can move together.")
    ] = False,
    stat: Annotated[bool, typer.Option("--stat", help="Measure the size of every sample too.")] = False,
    columns: Annotated[
        str | None, typer.Option(help='Names and types: "image:path label:int"; "image:path" leaves labels out.')
    ] = None,
    root: Annotated[str | None, typer.Option(help="The folder or URL that paths are relative to.")] = None,
    follow_links: Annotated[bool, typer.Option("--follow-links", help="Follow symbolic links.")] = False,
    hidden: Annotated[bool, typer.Option("--hidden", help="Include hidden files.")] = False,
    extensions: Annotated[str | None, typer.Option(help="What counts as an image: .jpg,.png")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads that --stat asks for sizes with.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Index a folder, a list, shards, or everything below a URL.

    Folders of class folders get the order and class numbers of torchvision's ImageFolder. Shards are read in place.
    """
    endings = IMAGE_EXTENSIONS if extensions is None else tuple(extensions.lower().replace(",", " ").split())
    started = time.monotonic()
    with progress_bar("indexing") as tell:
        built = build_index(
            sources[0] if len(sources) == 1 else sources,
            out,
            columns=columns,
            root=root,
            split=None if split is None else _parts(split),
            folder=FolderOptions(follow_links=follow_links, hidden=hidden, extensions=endings),
            relative=relative,
            with_sizes=stat,
            num_workers=workers,
            progress=tell,
        )
    seconds = time.monotonic() - started
    indexes = [open_index(path) for path in (built if isinstance(built, tuple) else (built,))]
    if as_json:
        facts = [
            {"path": made.path, "num_samples": len(made), "num_classes": len(made.classes), "root": made.root}
            for made in indexes
        ]
        print_json({"indexes": facts, "seconds": round(seconds, 3)})
    else:
        parts = ", ".join(f"{made.path}: {format_count(len(made))} samples" for made in indexes)
        num_classes = len(indexes[0].classes)
        classes = f" of {format_count(num_classes)} {'class' if num_classes == 1 else 'classes'}" if num_classes else ""
        print(f"{parts}{classes}, in {format_seconds(seconds)}")


def _parts(text: str) -> dict[str, float] | list[float]:
    """Read `0.9,0.1` or `train=0.9,val=0.1`."""
    pairs = [word.rpartition("=")[::2] for word in text.replace(",", " ").split()]
    try:
        fractions = [float(fraction) for _, fraction in pairs]
    except ValueError as error:
        raise ArgumentError(f"--split {text!r}: {error}. Write 0.9,0.1 or train=0.9,val=0.1") from error
    names = [name for name, _ in pairs if name]
    if not names:
        return fractions
    if len(set(names)) < len(fractions):
        raise ArgumentError(f"--split {text!r}: give every part a name of its own, or none: train=0.9,val=0.1")
    return dict(zip(names, fractions, strict=True))
