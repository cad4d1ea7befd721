"""Measures the cost of lookups in an index that does not fit into memory."""

import numpy as np

from mpload.index.index import Index
from mpload.index.parts import file_sizes
from mpload.judgement.facts import Cost
from mpload.tools.doctor.stopwatch import Stopwatch

__all__ = ["lookup_cost"]

_CHUNK_SAMPLES = 64
_NUM_CHUNKS = 16


def lookup_cost(index: Index, *, memory_bytes: int, seed: int) -> Cost:
    """Return the cost to look up a random sample, or none if text and sidecar fit into `memory_bytes`.

    Samples are looked up a chunk at a time, as workers do.
    """
    if sum(file_sizes(index)) <= memory_bytes:
        return Cost()
    records = Stopwatch(index.records)
    for sample_ids in np.random.default_rng(seed).integers(len(index), size=(_NUM_CHUNKS, _CHUNK_SAMPLES)):
        records(sample_ids)
    return records.cost(_NUM_CHUNKS * _CHUNK_SAMPLES)
