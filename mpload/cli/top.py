"""`mpload top`: what the loaders of a running job are doing, worker by worker."""

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from mpload.errors import MploadError
from mpload.memory.usage import anonymous_pss_bytes
from mpload.telemetry.page import read_pages
from mpload.units import format_bytes, format_count, format_seconds

__all__ = ["top"]

_STALE_SECONDS = 3.0
_STAGES = ("read", "decode", "transform")


def top(
    pid: Annotated[int, typer.Argument(help="The training process, or the one that has started it.")],
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, over one interval, and end.")] = False,
) -> None:
    """Show what the loaders of a running job are doing: rate, waits, and each worker's stages and memory.

    Ends with the job, or on Ctrl-C. The job is not disturbed: it keeps a page of figures that is read here.
    """
    before = _loaders(pid)
    if not before:
        raise MploadError(
            f"process {pid}, and those that it has started, have no MPLoader with workers. Name the training process: "
            "`pgrep -af python` lists candidates"
        )
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not once else None
    with live or nullcontext():
        while True:
            time.sleep(interval)
            now = _loaders(pid)
            if not now:
                return
            shown = Group(*(_table(facts, before.get(key, facts)) for key, facts in now.items()))
            if live is not None:
                live.update(shown, refresh=True)
            else:
                console.print(shown)
            if once:
                return
            before = now


def _loaders(pid: int) -> dict[tuple[int, int], dict[str, Any]]:
    """Return what the loaders of a process and of its descendants say, by process and number."""
    found = {}
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return {}
    for process in processes:
        try:
            pages = read_pages(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError as error:
            if process.pid == pid:
                raise MploadError(f"process {pid} belongs to another user. Run this as that user") from error
            continue
        # Forked children inherit the page of their parent.
        mine = [facts for facts in pages if facts.get("pid") == process.pid]
        found.update({(process.pid, number): facts for number, facts in enumerate(mine)})
    return found


def _table(now: Mapping[str, Any], before: Mapping[str, Any]) -> Table:
    seconds = now["elapsed_seconds"] - before["elapsed_seconds"]
    metrics = now["metrics"]
    num_samples = metrics["samples"] - before["metrics"]["samples"]
    waited = now["wait_seconds"] - before["wait_seconds"]
    p50, p99 = (format_seconds(metrics[f"latency_{name}_seconds"]) for name in ("p50", "p99"))
    age = time.monotonic() - now["monotonic_seconds"]
    busy = (
        f"{format_count(round(num_samples / seconds))} samples/s, waiting {waited / seconds:.0%}" if seconds else "idle"
    )
    asked = metrics["cache_hits"] + metrics["cache_misses"]
    parts = [
        f"process {now['pid']}: {busy}",
        f"limited by {now['limit']}",
        f"batch p50 {p50}, p99 {p99}",
        f"slots {format_bytes(metrics['slots_bytes'])}",
        f"{metrics['deaths']} deaths, {metrics['copied_batches']} batches copied",
    ]
    if asked:
        parts.append(f"cache hits {metrics['cache_hits'] / asked:.0%}")
    if age > _STALE_SECONDS:
        parts.append(f"no batch was taken for {format_seconds(age)}")
    table = Table(title="; ".join(parts), title_justify="left", title_style="")
    for name in ("worker", "pid", "busy", *_STAGES, "other", "memory"):
        table.add_column(name, justify="left" if name == "worker" else "right")
    span = max(now["monotonic_seconds"] - before["monotonic_seconds"], 1e-9)
    earlier = {worker["name"]: worker["timings"] for worker in before["workers"]}
    for worker in now["workers"]:
        shares = list(_shares(worker["timings"], earlier.get(worker["name"], {}), seconds=span))
        table.add_row(
            worker["name"],
            str(worker["pid"]),
            *(f"{share:.0%}" for share in shares),
            format_bytes(anonymous_pss_bytes(worker["pid"])),
        )
    return table


def _shares(now: Mapping[str, int], before: Mapping[str, int], *, seconds: float) -> Iterable[float]:
    """Yield the share of the time that a worker was busy, and in which stage."""
    taken = {name: now[name] - before.get(name, 0) for name in now}
    stages = [taken[f"{stage}_ns"] for stage in _STAGES]
    for each in (taken["total_ns"], *stages, max(0, taken["total_ns"] - sum(stages))):
        yield each * 1e-9 / seconds
