"""Tables of the results of `mpload bench memory`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpload.tools.bench.memory import LOADER_NAMES, MemoryResult, Outcome
from mpload.units import format_bytes, format_count, format_seconds

__all__ = ["MemoryTable", "memory_tables"]

_UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """A table of text: one row per loader and number of workers, one column per number of samples."""

    title: str
    header: list[str]
    rows: list[list[str]]


def memory_tables(results: Sequence[MemoryResult]) -> list[MemoryTable]:
    """Return tables of the peak PSS, the peak USS, the peak USS of a child process, and the time to the first batch."""
    return [
        _table("peak PSS of all processes", results, lambda result: _peak(result, result.peak_pss_bytes)),
        _table("peak USS of all processes", results, lambda result: _peak(result, result.peak_uss_bytes)),
        _table("peak USS of the largest child process", results, _child),
        _table("time to the first batch", results, _first_batch),
    ]


def _table(title: str, results: Sequence[MemoryResult], cell: Callable[[MemoryResult], str]) -> MemoryTable:
    samples = sorted({result.case.num_samples for result in results})
    cells = {(result.case.loader, result.case.num_workers, result.case.num_samples): cell(result) for result in results}
    names = list(LOADER_NAMES)
    kinds = sorted({kind[:2] for kind in cells}, key=lambda kind: (names.index(kind[0]), kind[1]))
    return MemoryTable(
        title=title,
        header=["list and loader", "workers", *map(format_count, samples)],
        rows=[
            [LOADER_NAMES[loader], str(num_workers), *(cells.get((loader, num_workers, n), _UNKNOWN) for n in samples)]
            for loader, num_workers in kinds
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
