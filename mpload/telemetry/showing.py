"""A progress bar for a loader, on a terminal or in a notebook."""

import sys
import time
from collections.abc import Callable, Iterator
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mpload.telemetry.stats import LoaderStats
from mpload.units import format_bytes, format_count, format_seconds

__all__ = ["describe_span", "show_progress"]

_REFRESH_SECONDS = 0.5
_STARTING = "waiting for the first batch"


def describe_span(span: LoaderStats) -> str:
    """Return the rate, the share of time spent waiting, and the memory: `3,412 samples/s, waiting 4%, 310.2 MiB`."""
    why = f" for {span.limit}" if span.wait_fraction > 0.1 else ""
    return (
        f"{format_count(round(span.samples_per_second))} samples/s, waiting {span.wait_fraction:.0%}{why}, "
        f"{format_bytes(span.memory.total_bytes)}"
    )


def show_progress(loader: Any, snapshot: Callable[[], LoaderStats], *, console: Console | None = None) -> Iterator[Any]:
    """Yield the batches of one iteration of `loader`, and draw a progress bar on a terminal or in a notebook.

    If there is neither, only yield the batches.

    Args:
        loader: iterable of batches with a length.
        snapshot: returns the statistics so far.
        console: where to draw. None means the notebook if there is one, or else stderr.
    """
    total = len(loader)
    bar: _InNotebook | _OnTerminal
    if console is None and _is_notebook():
        bar = _InNotebook(total)
    else:
        bar = _OnTerminal(total, console or Console(file=sys.stderr))
    if not bar.is_visible:
        yield from loader
        return
    num_done, last, drawn = 0, snapshot(), time.monotonic()
    text = ""
    with bar:
        bar.draw(num_done, _STARTING)
        for batch in loader:
            yield batch
            del batch  # so that only the user keeps its slot in use
            num_done += 1
            if time.monotonic() - drawn >= _REFRESH_SECONDS:
                now = snapshot()
                text = describe_span(now.since(last))
                bar.draw(num_done, text)
                last, drawn = now, time.monotonic()
        bar.draw(num_done, text or describe_span(snapshot().since(last)))


class _OnTerminal:
    """A progress bar drawn by rich."""

    def __init__(self, total: int, console: Console) -> None:
        columns = BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total} batches, {task.description}")
        self.is_visible = console.is_terminal
        # No thread that refreshes: the loader's process may fork.
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, auto_refresh=False)
        self._task = self._progress.add_task(_STARTING, total=total)  # complete: `start` draws it

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def draw(self, num_done: int, text: str) -> None:
        self._progress.update(self._task, completed=num_done, description=text, refresh=True)


class _InNotebook:
    """A progress bar as HTML in the output of a cell. The one of rich needs ipywidgets, which many notebooks lack."""

    is_visible = True

    def __init__(self, total: int) -> None:
        self._total = total
        self._show = import_module("IPython.display")
        self._handle: Any = None

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        pass

    def draw(self, num_done: int, text: str) -> None:
        total = self._total
        left = (total - num_done) * (time.monotonic() - self._started) / max(1, num_done)
        remaining = f", {format_seconds(left)} left" if 0 < num_done < total else ""
        html = self._show.HTML(
            f"<progress value='{num_done}' max='{total}'></progress> "
            f"{num_done}/{total} batches, {escape(text)}{remaining}"
        )
        if self._handle is None:
            self._handle = self._show.display(html, display_id=True)
        else:
            self._handle.update(html)


def _is_notebook() -> bool:
    """Return whether a Jupyter kernel runs this process."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
