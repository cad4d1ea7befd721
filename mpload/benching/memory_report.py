"""Tables and a figure of what `mpload bench memory` has measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpload.benching.memory import LOADER_NAMES, MemoryResult, Outcome
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
    """Write a PNG: memory against the number of samples, and against time for the longest list; needs matplotlib."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional package

    num_workers = max(result.case.num_workers for result in results)
    drawn = [result for result in results if result.case.num_workers == num_workers and result.curve]
    num_samples = max((result.case.num_samples for result in drawn), default=0)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_samples, by_time = figure.subplots(1, 2)
    for loader, colour in _COLOURS.items():
        of_loader = [result for result in drawn if result.case.loader == loader]
        samples = [result.case.num_samples for result in of_loader]
        label = LOADER_NAMES[loader]
        by_samples.plot(samples, [result.peak_pss_bytes / GIB for result in of_loader], "o-", color=colour, label=label)
        by_samples.plot(samples, [result.peak_uss_bytes / GIB for result in of_loader], "x:", color=colour)
        for result in of_loader:
            if result.case.num_samples == num_samples:
                seconds = [moment.seconds for moment in result.curve]
                by_time.plot(seconds, [moment.pss_bytes / GIB for moment in result.curve], "-", color=colour)
                by_time.plot(seconds, [moment.uss_bytes / GIB for moment in result.curve], ":", color=colour)
    by_samples.set(xscale="log", yscale="log", xlabel="samples", title=f"peak, {num_workers} workers")
    by_time.set(
        xscale="log", xlabel="seconds since start", title=f"{format_count(num_samples)} samples", ylim=(0, None)
    )
    for axes in (by_samples, by_time):
        axes.set_ylabel("GiB of all processes: PSS -, USS ...")
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
