"""What a person who watches a loader sees."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mpload.telemetry.stats import LoaderStats
from mpload.units import format_bytes, format_count

__all__ = ["describe_span", "show_progress"]

_REFRESH_SECONDS = 0.5


def describe_span(span: LoaderStats) -> str:
    """Return the rate, how long the consumer waited, and the memory: `3,412 samples/s, waiting 4 %, 310.2 MiB`."""
    why = f" for {span.limit}" if span.wait_fraction > 0.1 else ""
    return (
        f"{format_count(round(span.samples_per_second))} samples/s, waiting {span.wait_fraction:.0%}{why}, "
        f"{format_bytes(span.memory.total_bytes)}"
    )


def show_progress(loader: Any, snapshot: Callable[[], LoaderStats], *, console: Console | None = None) -> Iterator[Any]:
    """Yield the batches of an iteration of `loader`, and draw how it goes on a terminal; elsewhere just yield them.

    Args:
        loader: has a length, and gives batches.
        snapshot: returns the statistics so far.
        console: where to draw; None: stderr.
    """
    console = console or Console(file=sys.stderr)
    if not console.is_terminal:
        yield from loader
        return
    columns = (BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total} batches, {task.description}"))
    # No refreshing thread: the loader's process may fork.
    with Progress(*columns, TimeRemainingColumn(), console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=len(loader))
        last, drawn = snapshot(), time.monotonic()
        for batch in loader:
            yield batch
            del batch  # its slot is the user's to free
            progress.advance(task)
            if time.monotonic() - drawn >= _REFRESH_SECONDS:
                now = snapshot()
                progress.update(task, description=describe_span(now.since(last)), refresh=True)
                last, drawn = now, time.monotonic()
        progress.refresh()
