"""`mpload bench`: what this machine does with images, and with lists, of one's own size."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mpload.benching.decoders import CROP, DECODE, Speed, draw_speeds, installed_backends, measure_speeds, read_images
from mpload.cli.plots import check_plot
from mpload.cli.terminal import progress_bar
from mpload.index.opening import open_index
from mpload.units import format_bytes, format_count

__all__ = ["bench"]

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure decoders, and memory, on this machine.")


@bench.callback()
def _group() -> None:
    """Keep `decode` a command of its own while it is the only one."""


@bench.command()
def decode(
    path: Annotated[Path, typer.Argument(metavar="INDEX", help="An index, or a plain list of `path label` lines.")],
    *,
    images: Annotated[int, typer.Option(min=1, max=100_000, help="How many random images to take.")] = 100,
    size: Annotated[int, typer.Option(min=1, max=4096, help="Height and width of the crop, in pixels.")] = 224,
    rounds: Annotated[int, typer.Option(min=1, help="How often each backend's turn comes.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Which random images and crops.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw a bar chart, as a PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare every decoder that is installed, on one core, reading not counted.

    Decodes whole images, and decodes, crops at random to SIZE x SIZE and mirrors: the same crops for all.
    """
    check_plot(plot)
    files = read_images(open_index(path), num_images=images, seed=seed)
    backends, missing = installed_backends(size)
    with progress_bar("decoding", unit="rounds", total=rounds) as tell:
        speeds = measure_speeds(backends, files, rounds=rounds, seed=seed, progress=tell)
    if plot is not None:
        draw_speeds(speeds, plot)
    if as_json:
        print(json.dumps([asdict(speed) for speed in speeds], indent=2))
        return
    _print_speeds(speeds, files)
    for name in missing:
        print(f"not installed: {name} (pip install {name})")


def _print_speeds(speeds: Sequence[Speed], files: Sequence[bytes]) -> None:
    mean_bytes = format_bytes(sum(map(len, files)) / len(files))
    print(f"images a second on one core; {format_count(len(files))} images of {mean_bytes} on average")
    table = Table("backend", DECODE, CROP, "failed", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in dict.fromkeys(speed.backend for speed in speeds):
        ran = {speed.task: speed for speed in speeds if speed.backend == name}
        rates = [ran[task].images_per_second for task in (DECODE, CROP)]
        shown = ["-" if rate is None else format_count(round(rate)) for rate in rates]
        table.add_row(name, *shown, format_count(ran[DECODE].failed))
    Console(highlight=False).print(table)
