"""Looks at the loaders of a running job from another process, without disturbing it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil

from mpload.errors import MploadError
from mpload.judgement.facts import Facts
from mpload.memory.contention import PressureReading, contention_between, read_pressure, shares_of_span
from mpload.memory.core_times import CoreTimes, read_core_times_of
from mpload.memory.machine import num_allowed_cores, num_usable_cores, refaulted_bytes
from mpload.telemetry.page import read_pages, stats_of_page
from mpload.telemetry.stats import LoaderStats, running_facts

__all__ = ["CANDIDATES", "LoaderKey", "Reading", "facts_between", "figures_of", "find_job", "is_stopped", "read_job"]

CANDIDATES = "`pgrep -af python` lists candidates"

LoaderKey = tuple[int, int]
"""The process of a loader, and the number of the loader in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a job has done until one moment."""

    pages: Mapping[LoaderKey, Mapping[str, Any]]
    times: Mapping[int, CoreTimes]
    """Of all processes of the job."""
    pressure: PressureReading
    refaulted_bytes: int


def _pages_of(pids: Sequence[int]) -> dict[LoaderKey, dict[str, Any]]:
    """Return the figures that the loaders of these processes publish. The first is that of the job."""
    found = {}
    for each in pids:
        try:
            with figures_of(each):
                pages = read_pages(each)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError as error:
            if each == pids[0]:
                raise MploadError(
                    f"this user may not look into process {each}. Run this command as {_user_of(each)}, in the "
                    "container of that process"
                ) from error
            continue
        # Forked children inherit the page of their parent.
        own = [facts for facts in pages if facts.get("pid") == each]
        found.update({(each, number): facts for number, facts in enumerate(own)})
    return found


def read_job(pid: int) -> Reading | None:
    """Read what a job has done so far. Return None if it has ended, or has no loader with workers."""
    pids = _family(pid)
    pages, times = _pages_of(pids), read_core_times_of(pids)
    if not pages:
        return None
    return Reading(
        pages=pages,
        times=times,
        pressure=read_pressure(own_seconds=sum(each.running_seconds for each in times.values())),
        refaulted_bytes=refaulted_bytes(),
    )


def find_job(pid: int) -> Reading:
    """Do the same as `read_job`.

    Raises:
        MploadError: there is no such process, or no loader runs in it.
    """
    if not _family(pid):
        raise MploadError(f"there is no process {pid}. Give the PID of the training process: {CANDIDATES}")
    if (found := read_job(pid)) is None:
        raise MploadError(
            f"no MPLoader with workers runs in process {pid} or its descendants. Give the PID of the training process: "
            f"{CANDIDATES}"
        )
    return found


def facts_between(before: Reading, after: Reading) -> dict[LoaderKey, tuple[LoaderStats, Facts]]:
    """Return what each loader did between two readings, and the facts to judge it by."""
    pids = set(after.times)
    cores = num_usable_cores(of=max((num_allowed_cores(pid) for pid in pids), default=1))
    contention = contention_between(before.pressure, after.pressure, num_cores=cores)
    shares = shares_of_span(before.times, after.times, begun_seconds=before.pressure.at_seconds)
    found = {}
    for key, page in after.pages.items():
        if key not in before.pages:
            continue
        with figures_of(key[0]):
            earlier = before.pages[key]
            span = stats_of_page(page).since(stats_of_page(earlier))
            # A loader writes its page when a batch is taken, so its span differs from that of the kernel's figures.
            seconds = page["monotonic_seconds"] - earlier["monotonic_seconds"]
            own = [replace(shares[worker.pid], seconds=seconds) for worker in span.workers if worker.pid in shares]
            facts = running_facts(
                span,
                shares=own,
                num_cores=cores / max(1, len({pid for pid, _ in after.pages})),
                contention=contention,
                refaulted_bytes=after.refaulted_bytes - before.refaulted_bytes,
            )
            found[key] = (span, facts)
    return found


@contextmanager
def figures_of(pid: int) -> Iterator[None]:
    """Inside the block, figures of a process are read, which may be another user's, and may be anything.

    Raises:
        MploadError: they are not the figures of a loader.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, MploadError):
            raise
        raise MploadError(
            f"the statistics that process {pid} publishes cannot be read ({type(error).__name__}). Does it run the "
            f"same version of mpload? Otherwise give the PID of another process: {CANDIDATES}"
        ) from error


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, so that it does nothing until it is continued."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _user_of(pid: int) -> str:
    try:
        return psutil.Process(pid).username()
    except psutil.Error:
        return "its user"


def _family(pid: int) -> list[int]:
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except (psutil.NoSuchProcess, ValueError):  # of a negative number
        return []
