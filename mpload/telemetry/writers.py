"""Writers for the statistics of a running loader: JSON lines, Prometheus, TensorBoard, or your own object."""

import json
import os
import time
from pathlib import Path
from typing import Any, Protocol

from mpload.telemetry.stats import LoaderStats

__all__ = ["JsonLinesWriter", "PrometheusWriter", "Report", "StatsWriter", "TensorBoardWriter"]

_COUNTERS = {"batches", "samples", "cache_hits", "cache_misses", "copied_batches", "deaths"}


class StatsWriter(Protocol):
    """Receives statistics at regular intervals."""

    def write(self, span: LoaderStats, total: LoaderStats) -> None:
        """Record the statistics since the last call, `span`, and since the loader was made, `total`."""
        ...


class Report:
    """Passes a writer the statistics since the previous call."""

    def __init__(self, writer: StatsWriter, *, since: LoaderStats) -> None:
        self._writer = writer
        self._last = since

    def __call__(self, total: LoaderStats) -> None:
        """Call the writer with the statistics since the previous call, and in total."""
        self._writer.write(total.since(self._last), total)
        self._last = total


class JsonLinesWriter:
    """Appends one JSON object per line: `time_seconds` since 1970, the span's metrics, and totals named `total_...`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Append to `path`.

        Args:
            path: the file, which is created if it does not exist.
        """
        self._path = Path(path)

    def write(self, span: LoaderStats, total: LoaderStats) -> None:
        """Append one line; see `StatsWriter.write`."""
        totals = {f"total_{name}": value for name, value in total.metrics().items() if name in _COUNTERS}
        line = {"time_seconds": round(time.time(), 3), **span.metrics(), **totals}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class PrometheusWriter:
    """Maintains a file in the Prometheus text format, for the textfile collector of the node exporter.

    Names of metrics begin with `mpload_`, and those of counters end with `_total`. The file is replaced atomically.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Write to `path`.

        Args:
            path: the file, whose name should end with `.prom`.
        """
        self._path = Path(path)

    def write(self, span: LoaderStats, total: LoaderStats) -> None:
        """Replace the file; see `StatsWriter.write`."""
        lines = []
        totals = total.metrics()
        for name, value in span.metrics().items():
            is_counter = name in _COUNTERS
            full = f"mpload_{name}_total" if is_counter else f"mpload_{name}"
            lines.append(f"# TYPE {full} {'counter' if is_counter else 'gauge'}")
            lines.append(f"{full} {totals[name] if is_counter else value:.17g}")
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)  # the folder may be shared: do not write through another user's link
        with temporary.open("x", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        temporary.replace(self._path)


class TensorBoardWriter:
    """Writes scalars named `mpload/...` to TensorBoard, with the number of samples as the step."""

    def __init__(self, writer: str | os.PathLike[str] | Any) -> None:
        """Write to a folder, or to a `SummaryWriter` that the script already has.

        Args:
            writer: the folder or the `SummaryWriter`.

        Raises:
            ImportError: TensorBoard is not installed.
        """
        if isinstance(writer, str | os.PathLike):
            try:
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional
            except ImportError as error:
                raise ImportError("TensorBoardWriter needs TensorBoard: pip install tensorboard") from error
            writer = SummaryWriter(os.fspath(writer))
        self._writer = writer

    def write(self, span: LoaderStats, total: LoaderStats) -> None:
        """Add the metrics of the span; see `StatsWriter.write`."""
        for name, value in span.metrics().items():
            self._writer.add_scalar(f"mpload/{name}", value, total.num_samples)
        self._writer.flush()
