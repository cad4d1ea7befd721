"""`mpload tune`: find the settings that make a loader fastest on this machine and data."""

import sys
import warnings
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from mpload.cli.loading import IndexArgument, decoder_of, named_object, opened
from mpload.cli.outputs import check_plot
from mpload.cli.reports import AsJson, print_json, prints_on_stderr
from mpload.errors import ArgumentError
from mpload.tools.pictures.figures import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    LineName,
    add_titles,
    name_lines,
    new_figure,
    round_ticks,
)
from mpload.units import format_bytes, format_counted, format_seconds, parse_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpload.tools.tune import Outcome, Point, Tuning

__all__ = ["tune"]

_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
_SIZES_FORM = "Separate several sizes by commas, the preferred one first: 256,64"


def tune(
    path: IndexArgument,
    *,
    batch_size: Annotated[
        str, typer.Option(help="Batch sizes to choose from, the preferred one first: 256,64")
    ] = "256",
    memory_budget: Annotated[
        str, typer.Option(help="Memory for the loader, such as 4GiB; auto: half of the free memory.")
    ] = ("auto"),
    max_workers: Annotated[int, typer.Option(min=1, help="Upper limit of workers to try.")] = 64,
    decode: Annotated[
        str | None, typer.Option(metavar="MODULE:OBJECT", help="Your decoder.  [default: RandomResizedCrop(224)]")
    ] = None,
    transform: Annotated[
        str | None, typer.Option(metavar="MODULE:OBJECT", help="Your transform.  [default: none]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.2, help="Seconds per trial.")] = 3.0,
    plot: Annotated[Path | None, typer.Option(help="Plot the trials as a PNG (needs matplotlib).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest workers, batch size and memory budget.

    Runs a loader with different settings on this machine, and prints the Python call with the best ones. The memory
    budget also determines how many batches are made ahead and how much is read ahead.
    """
    check_plot(plot)
    sizes = _sizes(batch_size)
    with prints_on_stderr(is_wanted=as_json), warnings.catch_warnings():
        index = opened(path)
        decoder = decoder_of(decode)
        transformed = None if transform is None else named_object(transform, option="--transform")
        # imports torch, after the arguments were checked
        from mpload.tools.tune import tune as search  # noqa: PLC0415

        warnings.simplefilter("ignore")  # trials use more workers than cores on purpose
        found = search(
            index,
            decode=decoder,
            transform=transformed,
            batch_sizes=sizes,
            memory_budget=memory_budget if memory_budget == "auto" else parse_bytes(memory_budget),
            max_workers=max_workers,
            seconds=seconds,
            announce=_announce,
        )
    call = _call(path, found, decode=decode, transform=transform, memory_budget=memory_budget)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        print_json(asdict(found) | {"call": call})
        return
    _print(found)
    print(f"\nNo more workers were tried: {found.reason}.\n\n{call}")
    if plot is not None:
        print(f"\nplot     {plot}")


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise ArgumentError(f"--batch-size {text!r}: not a list of whole numbers. {_SIZES_FORM}") from error
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"--batch-size {text!r}: batch sizes must be positive. {_SIZES_FORM}")
    return sizes


def _print(found: "Tuning") -> None:
    table = Table(
        "workers", "batch", "budget", "samples/s", "first batch", "memory", "waiting", box=None, pad_edge=False
    )
    for column in table.columns:
        column.justify = "right"
    table.add_column("")
    for outcome in found.outcomes:
        table.add_row(*_cells(outcome), "<- best" if outcome is found.best else "")
    Console(soft_wrap=True, highlight=False).print(table)


def _cells(outcome: "Outcome") -> list[str]:
    point = outcome.point
    budget = point.memory_budget if isinstance(point.memory_budget, str) else format_bytes(point.memory_budget)
    numbers = [str(point.num_workers), str(point.batch_size), budget]
    if not outcome.samples_per_second:
        return [*numbers, "does not fit", "", "", ""]
    return [
        *numbers,
        f"{outcome.samples_per_second:,.0f}",
        format_seconds(outcome.first_batch_seconds),
        format_bytes(outcome.memory_bytes),
        f"{outcome.waiting_share:.0%}",
    ]


def _call(path: str, found: "Tuning", *, decode: str | None, transform: str | None, memory_budget: str) -> str:
    """Return the Python call that makes a loader with the best settings."""
    point = found.best.point
    arguments = [repr(path), f"decode={_name(decode) or 'mpload.RandomResizedCrop(224)'}"]
    if transform is not None:
        arguments.append(f"transform={_name(transform)}")
    dataset = f"mpload.MPDataset({', '.join(arguments)}, batch_size={point.batch_size}, shuffle=True)"
    budget = "" if memory_budget == "auto" else f", memory_budget={memory_budget!r}"
    return f"mpload.MPLoader({dataset}, num_workers={point.num_workers}{budget})"


def _name(option: str | None) -> str | None:
    """Convert `module:object` to the Python expression `module.object`."""
    return None if option is None else option.replace(":", ".")


def _draw(found: "Tuning", path: Path) -> None:
    with new_figure(path, width=8, height=4.4) as figure:
        _draw_rates(figure.add_subplot(), found)


def _draw_rates(axes: "Axes", found: "Tuning") -> None:
    best, budget = found.best, found.outcomes[0].point.memory_budget
    tried = [outcome for outcome in found.outcomes if outcome.samples_per_second]
    max_workers = max(outcome.point.num_workers for outcome in tried)
    ticks = round_ticks(max(outcome.samples_per_second for outcome in tried))
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 << power for power in range(max_workers.bit_length())])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.set(xlim=(0.9, 1.1 * max_workers), ylim=(0, 1.1 * max(outcome.samples_per_second for outcome in tried)))
    axes.set_xlabel("workers")
    names = []
    for batch_size, colour in zip(dict.fromkeys(outcome.point.batch_size for outcome in tried), cycle(_COLOURS)):
        points = sorted(
            (outcome.point.num_workers, outcome.samples_per_second)
            for outcome in tried
            if outcome.point.batch_size == batch_size and outcome.point.memory_budget == budget
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=colour)
            names.append(LineName(text=f"batches of {batch_size}", colour=colour, x=points[-1][0], y=points[-1][1]))
    place = best.point.num_workers, best.samples_per_second
    axes.plot(*place, marker="o", markersize=13, fillstyle="none", color=INK, linestyle="none", clip_on=False)
    workers = format_counted(best.point.num_workers, "worker")
    finding = f"{workers}, batches of {best.point.batch_size}: {best.samples_per_second:,.0f} samples/s"
    add_titles(axes, finding, "Samples per second by number of workers; the ring marks the choice")
    name_lines(axes, names)


def _announce(point: "Point") -> None:
    if sys.stderr.isatty():
        workers = format_counted(point.num_workers, "worker")
        print(f"trying {workers}, batches of {point.batch_size}", file=sys.stderr)
