"""`mpload index`: index a folder, a list, shards, annotated images, or everything below a URL."""

import math
import time
from typing import Annotated

import typer

from mpload.cli.appended import print_appended
from mpload.cli.clusters import OnCluster, cluster_of
from mpload.cli.reports import AsJson, print_json
from mpload.cli.summary import row_index_facts, row_index_text
from mpload.cli.terminal import progress_bar
from mpload.errors import ArgumentError
from mpload.index.columns import ColumnType
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.ingest.appending import append_to_index
from mpload.ingest.build import build_index
from mpload.ingest.class_folders import names_of_some
from mpload.ingest.folder_options import IMAGE_EXTENSIONS, FolderOptions
from mpload.samples.row_index import RowIndex
from mpload.tools.rows import note_rows
from mpload.units import format_counted, format_seconds

__all__ = ["index"]

_SPLIT_FORM = "Write 0.9,0.1 or train=0.9,val=0.1"


def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A folder of images, a list or CSV, shards (tar, LMDB, TFRecord, Arrow, Parquet, HDF5), COCO's "
            "JSON, a folder or set of Pascal VOC, a folder of YOLO, or s3://BUCKET/PREFIX.",
        ),
    ],
    *,
    out: Annotated[str, typer.Option("-o", "--out", help="The index to write.")],
    split: Annotated[
        str | None, typer.Option(help="Split by a hash of the path: 0.9,0.1 or train=0.9,val=0.1.")
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="Store the root relative to the index, so that both can be moved.")
    ] = False,
    stat: Annotated[bool, typer.Option("--stat", help="Record the size of every sample too.")] = False,
    image_sizes: Annotated[
        bool, typer.Option("--image-sizes", help="Add columns with the width and height of every image.")
    ] = False,
    jpeg: Annotated[
        bool,
        typer.Option("--jpeg", help="Note where the rows of every JPEG begin, in INDEX.mpr, so that crops are faster."),
    ] = False,
    classes_from: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Number the classes that this column names."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help='Names and types: "image:path label:int", or "image:path" without labels.')
    ] = None,
    root: Annotated[str | None, typer.Option(help="The folder or URL that paths are relative to.")] = None,
    follow_links: Annotated[bool, typer.Option("--follow-links", help="Follow symbolic links.")] = False,
    hidden: Annotated[bool, typer.Option("--hidden", help="Include hidden files.")] = False,
    extensions: Annotated[str | None, typer.Option(help="Extensions of image files: .jpg,.png")] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATTERN",
            help="Add the file of each image as a column: mask=../masks/{}.png or caption={}.txt. {} is the path of "
            "the image in the folder, without its extension. Repeatable.",
        ),
    ] = None,
    append: Annotated[
        bool,
        typer.Option("--append", help="Append what the source has gained to INDEX, which keeps its lines and classes."),
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read sizes, and files for --jpeg.")] = 8,
    on: OnCluster = None,
    as_json: AsJson = False,
) -> None:
    """Index a folder, a list, shards, or everything below a URL.

    A folder with one folder per class is ordered and numbered as by torchvision's ImageFolder. Shards stay where they
    are. With --append, give the options with which the index was made.
    """
    endings = IMAGE_EXTENSIONS if extensions is None else tuple(extensions.lower().replace(",", " ").split())
    folder = FolderOptions(follow_links=follow_links, hidden=hidden, extensions=endings, beside=_patterns(beside or []))
    source = sources[0] if len(sources) == 1 else sources
    cluster = cluster_of(on)
    started = time.monotonic()
    if append:
        if cluster is not None:
            raise ArgumentError("--append lists on this machine only. Leave out --on")
        if split is not None:
            raise ArgumentError("--append is for one index, not for --split. Make the parts anew without --append")
        with progress_bar("indexing") as update:
            appended = append_to_index(
                source, out, columns=columns, root=root, folder=folder, with_sizes=stat,
                classes_from=classes_from, num_workers=workers, progress=update,
            )  # fmt: skip
        rows = [_noted(open_index(out), num_workers=workers)] if jpeg else []
        print_appended(appended, rows, seconds=time.monotonic() - started, as_json=as_json)
        return
    with progress_bar("indexing") as update:
        built = build_index(
            source,
            out,
            columns=columns,
            root=root,
            split=None if split is None else _parts(split),
            folder=folder,
            relative=relative,
            with_sizes=stat,
            with_image_sizes=image_sizes,
            classes_from=classes_from,
            num_workers=workers,
            on=cluster,
            progress=update,
        )
    indexes = [open_index(path) for path in (built if isinstance(built, tuple) else (built,))]
    rows = [_noted(made, num_workers=workers) for made in indexes] if jpeg else []
    seconds = time.monotonic() - started
    if as_json:
        facts = [
            {"path": made.path, "num_samples": len(made), "num_classes": len(made.classes), "root": made.root}
            for made in indexes
        ]
        for fact, noted in zip(facts, rows, strict=False):
            fact["row_index"] = row_index_facts(noted)
        print_json({"indexes": facts, "seconds": round(seconds, 3)})
    else:
        parts = ", ".join(f"{made.path}: {format_counted(len(made), 'sample')}" for made in indexes)
        names = indexes[0].classes
        classes = f" of {format_counted(len(names), 'class')} ({names_of_some(names)})" if names else ""
        print(f"{parts}{classes}, in {format_seconds(seconds)}")
        for noted in rows:
            print(f"{noted.path}: {row_index_text(noted)}")
        if any(column.name == "label" and column.type is ColumnType.STR for column in indexes[0].columns):
            print("Labels are texts. To number the classes: --classes-from label")


def _noted(index: Index, *, num_workers: int) -> RowIndex:
    with progress_bar("reading JPEGs", total=len(index)) as update:
        return note_rows(index, num_workers=num_workers, progress=update)


def _patterns(texts: list[str]) -> dict[str, str]:
    """Parse `mask=../masks/{}.png`."""
    pairs = [text.partition("=") for text in texts]
    names = [name for name, _, _ in pairs]
    for text, (name, equals, pattern) in zip(texts, pairs, strict=True):
        if not (name and equals and pattern) or names.count(name) > 1:
            raise ArgumentError(
                f"--beside {text!r} is not NAME=PATTERN with a name of its own. Write mask=../masks/{{}}.png"
            )
    return {name: pattern for name, _, pattern in pairs}


def _parts(text: str) -> dict[str, float] | list[float]:
    """Parse `0.9,0.1` or `train=0.9,val=0.1`."""
    pairs = [word.rpartition("=")[::2] for word in text.replace(",", " ").split()]
    try:
        fractions = [float(fraction) for _, fraction in pairs]
    except ValueError as error:
        raise ArgumentError(f"--split {text!r}: not all fractions are numbers. {_SPLIT_FORM}") from error
    if not math.isclose(total := math.fsum(fractions), 1, abs_tol=1e-6):
        raise ArgumentError(f"--split {text!r}: the fractions must sum to 1, but sum to {total:g}. {_SPLIT_FORM}")
    names = [name for name, _ in pairs if name]
    if not names:
        return fractions
    if len(set(names)) < len(fractions):
        raise ArgumentError(f"--split {text!r}: give each part a name of its own, or none a name. {_SPLIT_FORM}")
    return dict(zip(names, fractions, strict=True))
