"""The memory that the row groups of Parquet files need."""

from contextlib import suppress
from functools import partial

import numpy as np

from mpload.errors import MploadError, StorageError
from mpload.index.columns import range_of
from mpload.loader.forms import probe
from mpload.samples.pipeline import Pipeline
from mpload.storage.protocols import KeepingStorage
from mpload.storage.urls import is_url
from mpload.transport.batches import PoolOptions

__all__ = ["row_group_bytes"]

_NUM_SAMPLES = 8


def row_group_bytes(pipeline: Pipeline, options: PoolOptions) -> int:
    """Return the memory that a worker needs to read the largest of a few row groups; 0 if the index has none.

    If the files are at URLs, a separate process finds it out, which is run as `options` say: the client of buckets
    starts threads, which a stock DataLoader's workers, as forks of this process, would lack.
    """
    if not isinstance(pipeline.opened_storage, KeepingStorage) or not len(pipeline.index):
        return 0
    if not is_url(pipeline.index.root):
        return int(_largest(pipeline))
    with suppress(MploadError):  # a worker will report the error
        return int(
            probe(
                partial(_largest, pipeline),
                [(0,)],
                options,
                name=str(pipeline.index.path),
                max_read_seconds=_NUM_SAMPLES * pipeline.max_read_seconds,
            )
        )
    return 1


def _largest(pipeline: Pipeline, _: int = 0) -> bytes:
    """Return the number as text."""
    found = 1
    with suppress(StorageError):
        for record in pipeline.index.records(np.linspace(0, len(pipeline.index) - 1, num=_NUM_SAMPLES, dtype=np.int64)):
            for number in pipeline.sources:
                storage = pipeline.opened_storage
                assert isinstance(storage, KeepingStorage)
                found = max(found, storage.needed_bytes(range_of(record.cells[number])))
    return str(found).encode()
