"""`mpload pack`: write the samples of an index into tar shards, LMDB files or arrays."""

import json
from typing import Annotated

import typer

from mpload.cli.clusters import OnCluster, cluster_of
from mpload.cli.loading import IndexArgument, opened
from mpload.cli.reports import AsJson, print_json
from mpload.cli.terminal import progress_bar
from mpload.tools.pack.folder import folder_at
from mpload.tools.pack.options import JpegForm, PackOptions, ShardFormat
from mpload.tools.pack.packing import pack_index, pack_rows, verify_pack
from mpload.units import format_bytes, format_counted, parse_bytes

__all__ = ["pack"]


def pack(
    path: IndexArgument,
    *,
    out: Annotated[str, typer.Option("-o", "--out", help="The folder for the shards and their index.")],
    size: Annotated[str, typer.Option(help="Approximate size of a shard.")] = "1GiB",
    shard_format: Annotated[
        ShardFormat,
        typer.Option(
            "--format",
            help="tar files; lmdb: LMDB data files that hold the same members by key; arrays: .npy files with one row "
            "per sample, for images or arrays of one shape.",
        ),
    ] = ShardFormat.TAR,
    shuffle: Annotated[
        int | None, typer.Option(metavar="SEED", help="Shuffle the samples once, with this seed.")
    ] = None,
    resize_short: Annotated[
        int | None, typer.Option(help="Shrink larger images to this many pixels on the shorter side.")
    ] = None,
    quality: Annotated[int, typer.Option(help="JPEG quality for --resize-short, 1 to 100.")] = 90,
    jpeg: Annotated[
        JpegForm,
        typer.Option(
            help="baseline: rewrite JPEGs without loss, so that they decode faster, progressive ones 3 times and more. "
            "keep: store the bytes that were given."
        ),
    ] = JpegForm.KEEP,
    decode: Annotated[
        int | None,
        typer.Option(metavar="SIZE", help="Store the middle of each image as SIZE x SIZE raw pixels, as .npy."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes. The output does not depend on their number.")] = 1,
    on: OnCluster = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check a finished pack against INDEX, byte for byte.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write samples into tar shards, LMDB files or arrays.

    Also writes an index of the shards. Any tar tool and WebDataset can read tar shards; numpy.load can read arrays.

    If interrupted, run the same command again to continue.
    """
    options = PackOptions(
        format=shard_format,
        shard_bytes=parse_bytes(size),
        shuffle_seed=shuffle,
        resize_short=resize_short,
        quality=quality,
        jpeg=jpeg,
        decode=decode,
    )
    folder = folder_at(out)
    source = opened(path)
    cluster = cluster_of(on)
    with progress_bar("verifying" if verify else "packing", total=len(source)) as update:
        if verify:
            verify_pack(source, folder, options, num_workers=workers, on=cluster, progress=update)
            made = folder / "index.txt"
        else:
            made = pack_index(source, folder, options, num_workers=workers, on=cluster, progress=update)
    shards = sorted(folder.glob(f"shard-*.{shard_format.ending}"))
    shards_bytes = sum(shard.stat().st_size for shard in shards)
    rows = pack_rows(folder)
    decoder = None if rows is None else f"mpload.{rows!r}"
    if as_json:
        facts = {"path": made, "num_samples": len(source), "num_shards": len(shards), "shards_bytes": shards_bytes}
        print_json(facts | {"is_verified": verify} | ({} if decoder is None else {"decode": decoder}))
        return
    name = "verified" if verify else str(made)
    content = f"{format_counted(len(source), 'sample')} in {format_counted(len(shards), 'shard')}"
    print(f"{name}: {content}, {format_bytes(shards_bytes)}")
    if decoder is not None:
        name = json.dumps(str(made), ensure_ascii=False)  # quoted as in Python
        print(f"Load it with mpload.MPDataset({name}, decode={decoder})")
