"""Tables and a figure of what `mpload bench memory` has measured."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpload.tools.bench.memory import LOADER_NAMES, MemoryResult, Outcome
from mpload.units import GIB, format_bytes, format_count, format_seconds

__all__ = ["MemoryTable", "draw_memory", "memory_tables"]

_COLOURS = dict(zip(LOADER_NAMES, ("tab:red", "tab:orange", "tab:brown", "tab:blue", "tab:green"), strict=True))
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Text, cell by cell: a row for each loader and number of workers, a column for each number of samples."""

    title: str
    header: list[str]
    rows: list[list[str]]


def memory_tables(results: Sequence[MemoryResult]) -> list[MemoryTable]:
    """Return the peaks of PSS and of USS, that of one process, and the time to the first batch."""
    return [
        _table(
            "PSS of all processes, the most there was", results, lambda result: _peak(result, result.peak_pss_bytes)
        ),
        _table(
            "USS of all processes, the most there was", results, lambda result: _peak(result, result.peak_uss_bytes)
        ),
        _table("USS of the largest process but the first", results, _child),
        _table("time to the first batch", results, _first_batch),
    ]


def draw_memory(results: Sequence[MemoryResult], path: Path) -> None:
    """Write a PNG: memory against the number of samples, and against time; needs matplotlib.

    Of the results with the most workers. Time is that of the list that most loaders have read, the longest of such;
    what is only foretold is drawn hollow.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional package

    num_workers = max(result.case.num_workers for result in results)
    drawn = sorted(
        (result for result in results if result.case.num_workers == num_workers),
        key=lambda result: result.case.num_samples,
    )
    by_loader = {name: [result for result in drawn if result.case.loader == name] for name in LOADER_NAMES}
    by_loader = {name: found for name, found in by_loader.items() if found}
    num_loaders = Counter(result.case.num_samples for result in drawn if result.curve)
    shown = max(num_loaders, key=lambda num_samples: (num_loaders[num_samples], num_samples), default=0)
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    by_samples, by_time = figure.subplots(1, 2)
    for loader, found in by_loader.items():
        colour = _COLOURS[loader]
        samples = [result.case.num_samples for result in found]
        sizes = [(result.needed_bytes or result.peak_pss_bytes) / GIB for result in found]
        fills = ["none" if result.needed_bytes else colour for result in found]
        by_samples.plot(samples, sizes, "-", color=colour, label=LOADER_NAMES[loader])
        by_samples.scatter(samples, sizes, facecolors=fills, edgecolors=colour, zorder=3)
        for result in found:
            if result.case.num_samples == shown:
                seconds = [moment.seconds for moment in result.curve]
                by_time.plot(seconds, [moment.pss_bytes / GIB for moment in result.curve], "-", color=colour)
                by_time.plot(seconds, [moment.uss_bytes / GIB for moment in result.curve], ":", color=colour)
    by_samples.set(xscale="log", yscale="log", xlabel="samples", title=f"peak, {num_workers} workers")
    by_samples.set_ylabel("PSS of all processes, GiB; hollow: foretold")
    by_time.set(xscale="log", xlabel="seconds since start", title=f"{format_count(shown)} samples", ylim=(0, None))
    by_time.set_ylabel("PSS (line) and USS (dots) of all processes, GiB")
    for axes in (by_samples, by_time):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    figure.savefig(path, format="png", dpi=110)


def _table(title: str, results: Sequence[MemoryResult], cell: Callable[[MemoryResult], str]) -> MemoryTable:
    samples = sorted({result.case.num_samples for result in results})
    cells = {(result.case.loader, result.case.num_workers, result.case.num_samples): cell(result) for result in results}
    kinds = sorted({(list(LOADER_NAMES).index(loader), num_workers) for loader, num_workers, _ in cells})
    names = list(LOADER_NAMES)
    return MemoryTable(
        title=title,
        header=["list and loader", "workers", *map(format_count, samples)],
        rows=[
            [
                LOADER_NAMES[names[place]],
                str(num_workers),
                *(cells.get((names[place], num_workers, num_samples), _UNKNOWN) for num_samples in samples),
            ]
            for place, num_workers in kinds
        ],
    )


def _peak(result: MemoryResult, num_bytes: int) -> str:
    if result.outcome is Outcome.NOT_RUN:
        return f"would need {format_bytes(result.needed_bytes or 0)}"
    if result.outcome is Outcome.OUT_OF_MEMORY:
        needed_bytes = max(num_bytes, result.needed_bytes or 0)
        return f"stopped; needs {'' if result.needed_bytes else 'over '}{format_bytes(needed_bytes)}"
    return format_bytes(num_bytes) + (" (cut short)" if result.outcome is Outcome.OUT_OF_TIME else "")


def _child(result: MemoryResult) -> str:
    has_child = result.case.num_workers and result.outcome is not Outcome.NOT_RUN
    return format_bytes(result.peak_child_uss_bytes) if has_child else _UNKNOWN


def _first_batch(result: MemoryResult) -> str:
    return _UNKNOWN if result.first_batch_seconds is None else format_seconds(result.first_batch_seconds)
