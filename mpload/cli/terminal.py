"""A progress bar for a person who watches, and nothing for a pipe or a file."""

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
def progress_bar(what: str, *, unit: str = "samples", total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the number done so far; it draws on stderr where that is a terminal.

    Args:
        what: the work in a word or two, such as `indexing`.
        unit: what is counted.
        total: how many there will be; None: nobody knows.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    known = (BarColumn(bar_width=24), TimeRemainingColumn()) if total else (TimeElapsedColumn(),)
    # No refreshing thread: the work may fork.
    with Progress(
        TextColumn("{task.description}"),
        _CountColumn(unit),
        *known,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    ) as progress:
        task = progress.add_task(what, total=total)
        drawn = 0.0

        def tell(num_done: int) -> None:
            nonlocal drawn
            progress.update(task, completed=num_done)
            if (now := time.monotonic()) - drawn >= _REFRESH_SECONDS:
                progress.refresh()
                drawn = now

        progress.refresh()
        yield tell


class _CountColumn(ProgressColumn):
    """`1,234 of 5,000 photos, 340 photos/s`."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        of_total = "" if task.total is None else f" of {format_count(round(task.total))}"
        rate = "" if not task.elapsed else f", {format_count(round(task.completed / task.elapsed))} {self._unit}/s"
        return Text(f"{format_count(round(task.completed))}{of_total} {self._unit}{rate}")
