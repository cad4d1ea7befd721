"""A progress bar, drawn only where stderr is a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from mpload.units import format_count

__all__ = ["progress_bar"]

_REFRESH_SECONDS = 0.1


@contextmanager
def progress_bar(activity: str, *, unit: str = "samples", total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of items done so far, and draws it on stderr if that is a terminal.

    Args:
        activity: The work in a word or two, such as `indexing`.
        unit: The items that are counted, in the plural.
        total: The number of items in the end; None if it is not known.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    known = (BarColumn(bar_width=24), TimeRemainingColumn()) if total else (TimeElapsedColumn(),)
    # No refresh thread, because the work may fork.
    with Progress(
        TextColumn("{task.description}"),
        _CountColumn(unit),
        *known,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    ) as progress:
        task = progress.add_task(activity, total=total)
        drawn = 0.0

        def update(num_done: int) -> None:
            nonlocal drawn
            progress.update(task, completed=num_done)
            if (now := time.monotonic()) - drawn >= _REFRESH_SECONDS:
                progress.refresh()
                drawn = now

        progress.refresh()
        yield update


class _CountColumn(ProgressColumn):
    """`1,234 of 5,000 photos, 340 photos/s`."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        of_total = "" if task.total is None else f" of {format_count(round(task.total))}"
        rate = "" if not task.elapsed else f", {format_count(round(task.completed / task.elapsed))} {self._unit}/s"
        return Text(f"{format_count(round(task.completed))}{of_total} {self._unit}{rate}")
