"""`mpload bench`: benchmark image decoders, and the memory of lists of samples, on this machine."""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mpload.cli.endings import ends_cleanly
from mpload.cli.loading import IndexArgument
from mpload.cli.reports import AsJson, print_json
from mpload.cli.terminal import progress_bar
from mpload.errors import ArgumentError
from mpload.index.opening import open_index
from mpload.tools.bench.decoders import CROP, DECODE, Speed, installed_backends, measure_speeds, read_images
from mpload.tools.bench.memory import LOADER_NAMES, all_cases, measure_memory
from mpload.tools.bench.memory_report import memory_tables
from mpload.transport.kernel import set_up_heaps
from mpload.units import format_bytes, format_count, format_counted, parse_bytes

__all__ = ["bench"]

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Benchmark decoders and memory on this machine.")


@bench.command()
def decode(
    path: IndexArgument,
    *,
    images: Annotated[int, typer.Option(min=1, max=100_000, help="Number of random images.")] = 100,
    size: Annotated[int, typer.Option(min=1, max=4096, help="Height and width of the crop, in pixels.")] = 224,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per decoder.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random images and crops.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare the installed image decoders on one core.

    Two tasks are timed: decoding whole images; and decoding, cropping at random to SIZE x SIZE and mirroring. All
    decoders make the same crops. Reading files is not timed.
    """
    files = read_images(open_index(path), num_images=images, seed=seed)
    backends, missing = installed_backends(size)
    set_up_heaps()  # as in workers
    with progress_bar("decoding", unit="rounds", total=rounds) as update:
        speeds = measure_speeds(backends, files, rounds=rounds, seed=seed, progress=update)
    if as_json:
        facts = {"num_images": len(files), "mean_bytes": _mean_bytes(files)}
        print_json(facts | {"speeds": speeds, "not_installed": missing})
        return
    _print_speeds(speeds, files)
    for name in missing:
        print(f"not installed: {name} (pip install {name})")


@bench.command()
def memory(
    *,
    samples: Annotated[str, typer.Option(help="Lengths of the lists, separated by commas.")] = "1e4,1e5,1e6",
    workers: Annotated[str, typer.Option(help="Numbers of worker processes, separated by commas.")] = "0,4",
    loaders: Annotated[
        str, typer.Option(help=f"Lists and loaders to compare, separated by commas: {', '.join(LOADER_NAMES)}.")
    ] = ",".join(LOADER_NAMES),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs per case, if --max-seconds allows.")] = 2,
    max_seconds: Annotated[float, typer.Option(min=1, help="Time limit of one case.")] = 600.0,
    reserve: Annotated[
        str | None,
        typer.Option(help="Memory that must stay free, such as 4GiB.  [default: a tenth of the limit, at least 1GiB]"),
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder for the temporary lists.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the memory of lists of samples.

    The lists differ in how they are stored and loaded. Each case runs in a fresh process and reads a list of files
    that are never opened. A case is skipped if shorter lists predict that it needs more memory than is available, and
    stopped if it runs out of memory.
    """
    cases = all_cases(loaders.split(","), _numbers("--samples", samples), _numbers("--workers", workers))
    with ends_cleanly(), progress_bar("measuring", unit="cases", total=len(cases)) as update:
        results = list(
            measure_memory(
                cases,
                num_epochs=epochs,
                max_seconds=max_seconds,
                folder=folder or Path(tempfile.gettempdir()),
                reserve_bytes=None if reserve is None else parse_bytes(reserve),
                progress=update,
            )
        )
    if as_json:
        print_json({"cases": results})
        return
    for table in memory_tables(results):
        print(f"{table.title}:")
        _print_table(table.header, table.rows, num_names=1)
        print()


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(number.is_integer() for number in numbers):
        raise ArgumentError(f"{option} {text!r}: not a list of whole numbers. Separate them by commas: 1e4,1e6")
    return [int(number) for number in numbers]


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, num_names: int) -> None:
    """Print a table. The columns after the first `num_names` hold numbers, aligned to the right."""
    table = Table(*header, box=None, pad_edge=False)
    for column in table.columns[num_names:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, soft_wrap=True).print(table)


def _mean_bytes(files: Sequence[bytes]) -> float:
    return sum(map(len, files)) / len(files)


def _print_speeds(speeds: Sequence[Speed], files: Sequence[bytes]) -> None:
    mean_bytes = format_bytes(_mean_bytes(files))
    print(f"images per second on one core; {format_counted(len(files), 'image')} of {mean_bytes} on average")
    rows = []
    for name in dict.fromkeys(speed.backend for speed in speeds):
        by_task = {speed.task: speed for speed in speeds if speed.backend == name}
        rates = [by_task[task].images_per_second for task in (DECODE, CROP)]
        cells = ["-" if rate is None else format_count(round(rate)) for rate in rates]
        rows.append([name, *cells, format_count(by_task[DECODE].failed)])
    _print_table(["backend", DECODE, CROP, "failed"], rows, num_names=1)
