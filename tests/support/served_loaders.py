"""A dataset of numbers, and loaders of it whose samples are made by servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpload import MPDataset, MPLoader, Servers
from tests.support.batches import numbers

__all__ = ["NUM_SAMPLES", "dataset", "loading"]

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
