"""`mpload monitor`: run a command, or attach to a process, and measure the memory of its process tree."""

import math
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mpload.cli.monitor_plot import draw_memory_over_time, find_roles, starter_of
from mpload.cli.outputs import check_output, check_plot, is_stream
from mpload.cli.reports import AsJson, print_json, prints_on_stderr
from mpload.errors import ArgumentError, MploadError
from mpload.index.publishing import new_path
from mpload.memory.machine import SystemUsage
from mpload.memory.monitor import MemoryMonitor, Reading, write_csv, write_parquet
from mpload.memory.usage import ProcessMemory, process_memory
from mpload.units import format_bytes, format_counted, format_seconds

__all__ = ["monitor"]

_MAX_SHOWN_PROCESSES = 20


def monitor(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The command to run and monitor.")
    ] = None,
    *,
    pid: Annotated[int | None, typer.Option(min=1, help="Attach to this process instead of running a command.")] = None,
    interval: Annotated[float, typer.Option(help="Seconds between readings.")] = 1.0,
    csv: Annotated[Path | None, typer.Option(help="Write all readings as CSV, one line per process.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write all readings as a Parquet file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot memory over time, stacked by role, as a PNG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Watch the memory of a command and its child processes.

    Exits with the exit code of the command. SIGTERM is passed on to the command. With --json, the output of the command
    goes to stderr.

    Look at PSS, whose sum is the memory of all processes together. RSS counts a shared page once for every process.
    """
    if (pid is None) == (not command):
        what = "a command after `--` or --pid" if pid is None else "either a command after `--` or --pid, not both"
        raise ArgumentError(f"give {what}: mpload monitor -- python train.py")
    if not 0 < interval < math.inf:
        raise ArgumentError(f"--interval must be positive, got {interval}. Give it in seconds, such as 0.5")
    if csv is not None and not is_stream(csv):
        check_output(csv)
    check_output(parquet)
    check_plot(plot)
    with prints_on_stderr(is_wanted=as_json):
        process = None if command is None else _start(command)
    with nullcontext() if process is None else _signals_forwarded_to(process):
        try:
            watched = MemoryMonitor(process.pid if process else pid, interval_seconds=interval)
            if pid is not None:
                process_memory(pid)
        except psutil.NoSuchProcess as error:
            raise MploadError(f"--pid {pid}: there is no such process. `ps -e` lists all processes") from error
        except psutil.AccessDenied as error:
            raise MploadError(
                f"--pid {pid}: this user may not look into the memory of that process. Run as its user, or as root"
            ) from error
        parents: dict[int, int] = {}
        exit_code = _watch(watched, process, parents)
    if as_json:
        print_json(_facts(watched, exit_code))
    else:
        Console(stderr=True, highlight=False, soft_wrap=True).print(_summary(watched))
    if csv is not None:
        with nullcontext(csv) if is_stream(csv) else new_path(csv) as new:
            write_csv(watched.readings, new)
    if parquet is not None:
        with new_path(parquet) as new:
            write_parquet(watched.readings, new)
    if plot is not None:
        roles = find_roles(watched.readings, root_pid=watched.pid, parents=parents)
        draw_memory_over_time(watched.readings, watched.growth(), plot, roles=roles)
    raise typer.Exit(exit_code)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command)
    except OSError as error:
        raise MploadError(f"{command[0]}: {error.strerror}. Check the command after `--`; nothing was run") from error


@contextmanager
def _signals_forwarded_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave it to a process when to end. It gets Ctrl-C from the terminal; a SIGTERM to this process is forwarded."""
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminated = signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGTERM, terminated)


def _watch(watched: MemoryMonitor, process: subprocess.Popen[bytes] | None, parents: dict[int, int]) -> int:
    """Take readings until the process ends, and return its exit code. Record the parent of every process."""
    console = Console(stderr=True)
    try:
        with (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live
        ):
            while True:
                reading = watched.read()
                for pid in {process.pid for process in reading.processes} - parents.keys():
                    with suppress(psutil.Error):
                        parents[pid] = starter_of(pid)
                if live is not None:
                    live.update(_table(reading), refresh=True)
                if process is None:
                    if not reading.processes:
                        return 0
                    with suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
                        psutil.Process(watched.pid).wait(watched.interval_seconds)
                    continue
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(watched.interval_seconds)
                    return code if code >= 0 else 128 - code
    except KeyboardInterrupt:  # ends the monitoring; a process that was attached to keeps running
        return 0


def _table(reading: Reading) -> Table:
    table = Table(box=None, pad_edge=False, title=format_seconds(reading.seconds), title_justify="left")
    if reading.usage is not None:
        table.caption, table.caption_justify = _usage(reading.usage), "left"
    table.add_column("process")
    for heading in ("PSS", "USS", "RSS", "swap"):
        table.add_column(heading, justify="right")
    largest = sorted(reading.processes, key=lambda process: -process.pss_bytes)
    for process in largest[:_MAX_SHOWN_PROCESSES]:
        table.add_row(f"{process.name} {process.pid}", *map(format_bytes, _figures(process)))
    table.add_row(reading.total.name, *map(format_bytes, _figures(reading.total)), style="bold")
    return table


def _usage(usage: SystemUsage) -> str:
    return (
        f"of {format_bytes(usage.limit_bytes)}: {format_bytes(usage.anonymous_bytes)} anonymous, "
        f"{format_bytes(usage.shmem_bytes)} shared memory, {format_bytes(usage.file_bytes)} page cache, "
        f"{format_bytes(usage.dev_shm_bytes)} in /dev/shm"
    )


def _figures(process: ProcessMemory) -> tuple[int, ...]:
    return process.pss_bytes, process.uss_bytes, process.rss_bytes, process.swap_bytes


def _num_processes(watched: MemoryMonitor) -> int:
    return max((len(reading.processes) for reading in watched.readings), default=0)


def _facts(watched: MemoryMonitor, exit_code: int) -> dict[str, Any]:
    limits = [reading.usage.limit_bytes for reading in watched.readings if reading.usage is not None]
    return {
        "pid": watched.pid,
        "exit_code": exit_code,
        "seconds": max((reading.seconds for reading in watched.readings), default=0.0),
        "num_processes": _num_processes(watched),
        "limit_bytes": limits[-1] if limits else None,
        "peak": dict(zip(("pss_bytes", "uss_bytes", "rss_bytes", "swap_bytes"), _figures(watched.peak), strict=True)),
        "growth": [asdict(process) for process in watched.growth()],
    }


def _summary(watched: MemoryMonitor) -> str:
    peak = watched.peak
    summary = (
        f"peak of {format_counted(_num_processes(watched), 'process')}: PSS {format_bytes(peak.pss_bytes)}, "
        f"USS {format_bytes(peak.uss_bytes)}, "
        f"RSS {format_bytes(peak.rss_bytes)} (counts shared pages once per process)"
    )
    return "\n".join([summary, *(f"possible leak: {process}" for process in watched.growth())])
