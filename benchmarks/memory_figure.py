"""The figure of bench_memory.py."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpload.cli.figures import (
    BLUE,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    LineName,
    add_titles,
    byte_unit,
    name_lines,
    new_figure,
    round_ticks,
    set_byte_axis,
    set_time_axis,
)
from mpload.tools.bench.memory import MemoryResult
from mpload.units import GIB, format_count, format_counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_memory"]

_STYLES: Final = {
    "list-fork": ("list, fork", VERMILION),
    "list-spawn": ("list, spawn", ORANGE),
    "numpy-fork": ("list in NumPy, fork", PINK),
    "mpdataset": ("MPDataset, DataLoader", SKY),
    "mploader": ("MPDataset, MPLoader", BLUE),
}
"""The short name and the colour of each loader of `LOADER_NAMES` in a figure."""
_OURS = ("mpdataset", "mploader")


def draw_memory(results: Sequence[MemoryResult], path: Path) -> None:
    """Write a PNG: peak memory against the number of samples and, if curves were measured, memory against time.

    Only the results with the most workers are drawn. The curves over time are of the list that most loaders have read,
    or of the longest of these. Predicted values are dashed. Needs matplotlib.
    """
    num_workers = max(result.case.num_workers for result in results)
    drawn = sorted(
        (result for result in results if result.case.num_workers == num_workers),
        key=lambda result: result.case.num_samples,
    )
    num_loaders = Counter(result.case.num_samples for result in drawn if result.curve)
    curve_samples = max(num_loaders, key=lambda num_samples: (num_loaders[num_samples], num_samples), default=0)
    curves = [result for result in drawn if result.curve and result.case.num_samples == curve_samples]
    with new_figure(path, width=9, height=8.4 if curves else 4.4) as figure:
        axes = figure.subplots(2 if curves else 1, squeeze=False)[:, 0]
        _draw_peaks(axes[0], drawn)
        if curves:
            _draw_curves(axes[1], curves)


def _draw_peaks(axes: "Axes", results: Sequence[MemoryResult]) -> None:
    by_loader = {name: [result for result in results if result.case.loader == name] for name in _STYLES}
    most = max(map(_needed_bytes, results))
    names = []
    for loader, found in by_loader.items():
        if not found:
            continue
        label, colour = _STYLES[loader]
        points = [(result.case.num_samples, _needed_bytes(result)) for result in found]
        for start, end, result in zip(points, points[1:], found[1:], strict=False):
            axes.plot(*zip(start, end, strict=True), "--" if result.needed_bytes else "-", color=colour)
        fills = ["white" if result.needed_bytes else colour for result in found]
        samples, sizes = zip(*points, strict=True)
        axes.scatter(samples, sizes, s=28, facecolors=fills, edgecolors=colour, zorder=3, clip_on=False)
        text = f"{label}: {_like(sizes[-1], beside=most)}"
        names.append(LineName(text=text, colour=colour, x=samples[-1], y=sizes[-1]))
    longest = max(result.case.num_samples for result in results)
    ticks = round_ticks(longest)
    axes.set_xticks(ticks, list(map(_large, ticks)))
    axes.set(xlim=(0, 1.02 * longest), xlabel="samples in the dataset")
    set_byte_axis(axes, most)
    predicted = "; dashed: predicted, too large to run" if any(result.needed_bytes for result in results) else ""
    about = f"Peak memory (PSS) of all processes, {format_counted(results[0].case.num_workers, 'worker')}{predicted}"
    add_titles(axes, _finding(results), about)
    name_lines(axes, names)


def _draw_curves(axes: "Axes", results: Sequence[MemoryResult]) -> None:
    end = 1.02 * max(result.curve[-1].seconds for result in results)
    names = []
    for result in results:
        label, colour = _STYLES[result.case.loader]
        seconds = [moment.seconds for moment in result.curve]
        sizes = [moment.pss_bytes for moment in result.curve]
        axes.plot(seconds, sizes, color=colour)
        names.append(LineName(text=label, colour=colour, x=end, y=max(sizes)))
    set_time_axis(axes, end)
    set_byte_axis(axes, max(result.peak_pss_bytes for result in results))
    about = "Memory (PSS) of all processes over time; labels are at the height of the peaks"
    add_titles(axes, f"While {_large(results[0].case.num_samples)} samples are read", about)
    name_lines(axes, names)


def _finding(results: Sequence[MemoryResult]) -> str:
    """Return the memory for the largest dataset, as a sentence."""
    longest = max(result.case.num_samples for result in results)
    sizes = {result.case.loader: _needed_bytes(result) for result in results if result.case.num_samples == longest}
    ours = [size for loader, size in sizes.items() if loader in _OURS]
    lists = [size for loader, size in sizes.items() if loader not in _OURS]
    most = max(sizes.values())
    if not ours or not lists:
        return f"{_large(longest)} samples take {_like(most, beside=most)}"
    least = "" if len(lists) == 1 else f"{_like(min(lists), beside=most).partition(' ')[0]} to "
    as_list, with_ours = _like(max(lists), beside=most), _like(max(ours), beside=most)
    return f"{_large(longest)} samples take {least}{as_list} as a list, {with_ours} with MPDataset"


def _needed_bytes(result: MemoryResult) -> int:
    return result.needed_bytes or result.peak_pss_bytes


def _like(num_bytes: float, *, beside: float) -> str:
    """Format `num_bytes` in the binary unit that suits `beside`, so that both can be compared easily: `0.4 GiB`."""
    unit, name = byte_unit(beside)
    return f"{num_bytes / unit:,.1f} {name}" if unit == GIB else f"{num_bytes / unit:,.0f} {name}"


def _large(count: float) -> str:
    """Format a count for reading: `10 million`, `250,000`."""
    million = 10**6
    return f"{count / million:g} million" if count >= million else format_count(round(count))
