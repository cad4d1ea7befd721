"""Writers for the statistics of a running loader: JSON lines, Prometheus, TensorBoard, or your own object."""

import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from mpload.errors import ArgumentError, warn
from mpload.telemetry.stats import LoaderStats

__all__ = ["JsonLinesWriter", "PrometheusWriter", "Report", "StatsWriter", "TensorBoardWriter"]

_COUNTERS = {
    "batches",
    "samples",
    "cache_hits",
    "cache_misses",
    "hedges",
    "served_samples",
    "served_bytes",
    "copied_batches",
    "deaths",
    "source_samples",
    "source_failures",
    "server_requests",
    "server_samples",
    "server_bytes",
    "server_failures",
}
_HELP = {
    "batches": "Batches delivered.",
    "samples": "Samples in the batches delivered.",
    "workers": "Current number of worker processes.",
    "samples_per_second": "Samples delivered per second.",
    "wait_fraction": "Fraction of the time that the training loop waited for batches.",
    "latency_p50_seconds": "Median of the times that the training loop waited for a batch.",
    "latency_p99_seconds": "99th percentile of the times that the training loop waited for a batch.",
    "read_seconds_per_sample": "Mean time of a worker to read a sample from storage.",
    "decode_seconds_per_sample": "Mean time of a worker to decode a sample, or to get it from a map-style dataset.",
    "transform_seconds_per_sample": "Mean time of a worker in the transform of a sample.",
    "transport_seconds_per_sample": "Mean time of a worker to pass on a sample.",
    "slots_bytes": "Shared memory of the slots that hold batches.",
    "zygote_bytes": "Memory of the zygote, the process that workers are forked from.",
    "workers_bytes": "Memory of all workers.",
    "cache_hits": "Samples read from the cache.",
    "cache_misses": "Samples not found in the cache.",
    "hedges": "Requests made a second time, since the first one was late.",
    "served_samples": "Samples that servers made, including those of batches not delivered yet.",
    "served_bytes": "Bytes received from servers of samples.",
    "copied_batches": "Batches copied because the training loop still held too many earlier ones.",
    "source_samples": "Samples of a source of a mixture in the batches delivered.",
    "source_failures": "Samples of a source of a mixture that failed, and were skipped or substituted.",
    "server_requests": "Requests that a server of samples has answered.",
    "server_samples": "Samples in the answers of a server.",
    "server_bytes": "Bytes of the answers of a server.",
    "server_failures": "Requests to a server that failed.",
    "server_latency_p50_seconds": "Median of the times until a server began to answer.",
    "deaths": "Processes of the loader that died and were replaced.",
}
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


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


class _FileWriter:
    """Writes statistics to a file. One that cannot be written is warned of once, and training goes on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._is_warned = False

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Warn if the file cannot be written, for example since its disk is full."""
        try:
            yield
        except OSError as error:
            if not self._is_warned:
                self._is_warned = True
                warn(
                    f"{self._path}: statistics cannot be written: {error.strerror or error}. Training goes on, and "
                    "later statistics are written if that is possible then. Free some space, or choose another file"
                )


class JsonLinesWriter(_FileWriter):
    """Appends one JSON object per line: `time_seconds` since 1970, the span's metrics, and totals named `total_...`.

    For a mixture, `sources` holds the samples of each source in the span. `servers` holds what each server of samples
    has done in the span, by its URL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Append to `path`.

        Args:
            path: the file, which is created if it does not exist.
        """
        super().__init__(path)
        self._is_broken = False
        """Whether the last line may be incomplete."""

    def write(self, span: LoaderStats, total: LoaderStats) -> None:
        """Append one line; see `StatsWriter.write`."""
        totals = {f"total_{name}": value for name, value in total.metrics().items() if name in _COUNTERS}
        line: dict[str, Any] = {"time_seconds": round(time.time(), 3), **span.metrics(), **totals}
        if span.sources:
            line["sources"] = {name: asdict(each) for name, each in span.sources.items()}
        if span.servers:
            seconds = span.elapsed_seconds or math.inf
            line["servers"] = {
                url: {**each.metrics(), "bytes_per_second": each.received_bytes / seconds}
                for url, each in span.servers.items()
            }
        with self._warning():
            began, self._is_broken = self._is_broken, True
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" * began + json.dumps(line) + "\n")
            self._is_broken = False


class PrometheusWriter(_FileWriter):
    """Maintains a file in the Prometheus text format, for the textfile collector of the node exporter.

    Names of metrics begin with `mpload_`, and those of counters end with `_total`. Counters count since the loader was
    made; the others describe the last interval. The samples of each source of a mixture have the label `source`, and
    the figures of each server of samples the label `server`. The file is replaced atomically.

    Each loader needs a file of its own, and labels that tell it from the machine's other loaders, such as
    `PrometheusWriter(f"train-{rank}.prom", labels={"loader": "train", "rank": str(rank)})`.
    """

    def __init__(self, path: str | os.PathLike[str], *, labels: Mapping[str, str] | None = None) -> None:
        """Write to `path`.

        Args:
            path: the file, whose name should end with `.prom`.
            labels: labels of all metrics.

        Raises:
            ArgumentError: a label's name is not one that Prometheus allows.
        """
        super().__init__(path)
        for name in labels or {}:
            if not _LABEL.fullmatch(name):
                raise ArgumentError(
                    f"labels: a name consists of letters, digits and underscores and begins with a letter or one "
                    f"underscore, got {name!r}"
                )
        self._labels = dict(labels or {})

    def write(self, span: LoaderStats, total: LoaderStats) -> None:
        """Replace the file; see `StatsWriter.write`."""
        totals, lines = total.metrics(), list[str]()
        for name, value in span.metrics().items():
            lines += self._family(name, [({}, totals[name] if name in _COUNTERS else value)])
        if total.sources:
            sources = [({"source": name}, each) for name, each in total.sources.items()]
            lines += self._family("source_samples", [(label, each.num_samples) for label, each in sources])
            lines += self._family("source_failures", [(label, each.num_failed) for label, each in sources])
        for name in next(iter(span.servers.values())).metrics() if span.servers else ():
            full = f"server_{name}"
            servers = total.servers if full in _COUNTERS else span.servers
            lines += self._family(full, [({"server": url}, each.metrics()[name]) for url, each in servers.items()])
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with self._warning():
            try:
                temporary.unlink(missing_ok=True)  # the folder may be shared: do not write through another user's link
                with temporary.open("x", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
                temporary.replace(self._path)
            except OSError:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise

    def _family(self, name: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
        """Yield the lines of one metric: its values, each with its further labels."""
        is_counter = name in _COUNTERS
        full = f"mpload_{name}_total" if is_counter else f"mpload_{name}"
        yield f"# HELP {full} {_HELP[name]}"
        yield f"# TYPE {full} {'counter' if is_counter else 'gauge'}"
        for further, value in values:
            pairs = ",".join(f'{label}="{_escaped(str(each))}"' for label, each in {**self._labels, **further}.items())
            yield f"{full}{pairs and f'{{{pairs}}}'} {value:.17g}"


def _escaped(value: str) -> str:
    """Return the value of a label as the text format writes it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


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
