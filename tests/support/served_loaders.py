"""A dataset of numbers, and loaders of it whose samples are made by servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpload import MPDataset, MPLoader, Servers
from tests.support.batches import numbers
from tests.support.sample_servers import SampleServer, sample_server

__all__ = ["NUM_SAMPLES", "cut_off", "dataset", "loading", "server_in"]

NUM_SAMPLES = 600


def dataset(folder: Path, **options: Any) -> MPDataset[Any]:
    return numbers(folder, NUM_SAMPLES, **{"batch_size": 16, **options})


@contextmanager
def loading(folder: Path, *urls: str, num_workers: int = 2, on_error: Any = "raise", **options: Any) -> Iterator[Any]:
    """Yield a loader whose samples are made by the servers at `urls`."""
    limits: dict[str, Any] = {"request_timeout_seconds": 2.0, "connect_timeout_seconds": 2.0, "retry_seconds": 60.0}
    servers = Servers(urls=urls, **limits | options)
    with MPLoader(dataset(folder, on_error=on_error), servers=servers, num_workers=num_workers) as loader:
        yield loader


def cut_off(folder: Path, num_samples: int) -> None:
    """Leave a folder only so many samples. A server there has the same index as before."""
    with (folder / f"{NUM_SAMPLES}.bin").open("r+b") as file:
        file.truncate(8 * num_samples)


@contextmanager
def server_in(folder: Path, **options: Any) -> Iterator[SampleServer]:
    """Start a server with an index and samples of its own."""
    folder.mkdir()
    with sample_server(dataset(folder, **options)) as server:
        yield server
