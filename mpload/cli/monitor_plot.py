"""The plot of `mpload monitor`: memory over time, stacked by the role of each process."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from mpload.cli.figures import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PINK,
    VERMILION,
    LineName,
    add_titles,
    name_lines,
    new_figure,
    set_byte_axis,
    set_time_axis,
)
from mpload.memory.monitor import Growth, Reading
from mpload.units import format_bytes, format_counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Role", "draw_memory_over_time", "find_roles", "starter_of"]

_MAX_LIMIT_RATIO = 4  # a limit beyond this multiple of the peak would flatten the plot, so it is not drawn
_FORK_SERVER = "multiprocessing.forkserver"
_WORKER_NAMES = ("mpload-worker", "pt_data_worker")


class Role(StrEnum):
    """The role of a process."""

    MAIN = "main process"
    """The root of a process tree without workers."""
    TRAINING = "training process"
    ZYGOTE = "zygote"
    WORKER = "worker"
    OTHER = "other process"


_COLOURS: Final = {Role.MAIN: BLUE, Role.TRAINING: BLUE, Role.ZYGOTE: PINK, Role.WORKER: ORANGE, Role.OTHER: GREY}


def starter_of(pid: int) -> int:
    """Return the PID of the process that started a process.

    That is its parent. If the parent is a fork server of `multiprocessing`, as for workers of a DataLoader since Python
    3.14, it is the process that started the fork server.

    Raises:
        psutil.Error: one of them has ended.
    """
    parent = psutil.Process(pid).parent()
    if parent is None:
        raise psutil.NoSuchProcess(pid)
    return parent.ppid() if _FORK_SERVER in " ".join(parent.cmdline()) else parent.pid


def find_roles(readings: Sequence[Reading], *, root_pid: int, parents: Mapping[int, int]) -> dict[int, Role]:
    """Return the role of every process, keyed by PID.

    Workers and zygotes are recognised by their process names. A process that started one of them is a training process.

    Args:
        readings: The readings that list the processes.
        root_pid: The PID of the root of the process tree.
        parents: The PID of the process that started each process, where it is known: see `starter_of`.
    """
    roles = {}
    for reading in readings:
        for process in reading.processes:  # a process may change its name: the last one counts
            is_worker = process.name.startswith(_WORKER_NAMES)
            is_zygote = process.name.startswith("mpload-zygote")
            roles[process.pid] = Role.WORKER if is_worker else Role.ZYGOTE if is_zygote else Role.OTHER
    starters = {parents.get(pid) for pid, role in roles.items() if role in {Role.ZYGOTE, Role.WORKER}}
    if not starters:
        return {**roles, root_pid: Role.MAIN}
    return {pid: Role.TRAINING if role is Role.OTHER and pid in starters else role for pid, role in roles.items()}


def draw_memory_over_time(
    readings: Sequence[Reading], growth: Sequence[Growth], path: Path, *, roles: Mapping[int, Role]
) -> None:
    """Write a PNG of the PSS of each role, stacked, the total RSS, and the memory limit if it is near the peak."""
    with new_figure(path, width=9, height=5) as figure:
        _draw(figure.add_subplot(), readings, growth, roles)


def _draw(axes: "Axes", readings: Sequence[Reading], growth: Sequence[Growth], roles: Mapping[int, Role]) -> None:
    seconds = [reading.seconds for reading in readings]
    used = [role for role in Role if role in roles.values()]
    bands = {role: [_pss_bytes(reading, role, roles) for reading in readings] for role in used}
    totals = [sum(sizes) for sizes in zip(*bands.values(), strict=True)]
    peak = max(range(len(readings)), key=lambda number: totals[number])
    rss = [reading.total.rss_bytes for reading in readings]
    highest = max(*rss, totals[peak], 1)
    limit = next((reading.usage.limit_bytes for reading in reversed(readings) if reading.usage), None)
    is_limit_shown = limit is not None and limit < _MAX_LIMIT_RATIO * highest
    top = max(highest, limit) if limit is not None and is_limit_shown else highest
    set_time_axis(axes, seconds[-1])
    set_byte_axis(axes, top)
    axes.stackplot(seconds, *bands.values(), colors=[_COLOURS[role] for role in used], linewidth=0)
    axes.plot(seconds, rss, color=INK, linewidth=1, linestyle=":")
    end = axes.get_xlim()[1]
    names, below = [], 0.0
    for role, sizes in bands.items():
        num = max(sum(roles[process.pid] is role for process in reading.processes) for reading in readings)
        name = str(role) if num < 2 else format_counted(num, role)
        text = f"{name}: {format_bytes(max(sizes))}"
        names.append(LineName(text=text, colour=_COLOURS[role], x=end, y=below + sizes[peak] / 2))
        below += sizes[peak]
    names.append(LineName(text="RSS (repeats shared pages)", colour=INK, x=end, y=max(rss)))
    about = "PSS, stacked by role, with the peak of each role"
    if limit is not None and is_limit_shown:
        axes.axhline(limit, color=VERMILION, linewidth=1.5)
        names.append(LineName(text=f"limit: {format_bytes(limit)}", colour=VERMILION, x=end, y=limit))
    elif limit is not None:
        about += f". Limit: {format_bytes(limit)}"
    finding = f"At most {format_bytes(totals[peak])}, in {format_counted(len(readings[peak].processes), 'process')}"
    if growth:
        finding = f"{growth[0].name} (pid {growth[0].pid}) grows by {format_bytes(60 * growth[0].bytes_per_second)}/min"
    add_titles(axes, finding, about)
    name_lines(axes, names)


def _pss_bytes(reading: Reading, role: Role, roles: Mapping[int, Role]) -> int:
    return sum(process.pss_bytes for process in reading.processes if roles[process.pid] is role)
