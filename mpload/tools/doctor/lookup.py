"""Measures the cost of lookups in an index that does not fit into memory."""

import time

import numpy as np

from mpload.index.index import Index, sidecar_of
from mpload.judgement.facts import Cost

__all__ = ["lookup_cost"]

_CHUNK_SAMPLES = 64
_NUM_CHUNKS = 16


def lookup_cost(index: Index, *, memory_bytes: int, seed: int) -> Cost:
    """Return the cost to look up a random sample, or none if text and sidecar fit into `memory_bytes`.

    Samples are looked up a chunk at a time, as workers do.
    """
    if index.path.stat().st_size + sidecar_of(index).file_bytes <= memory_bytes:
        return Cost()
    chunks = np.random.default_rng(seed).integers(len(index), size=(_NUM_CHUNKS, _CHUNK_SAMPLES))
    start, cpu_start = time.perf_counter(), time.thread_time()
    for sample_ids in chunks:
        index.records(sample_ids)
    cpu_seconds = (time.thread_time() - cpu_start) / chunks.size
    seconds = (time.perf_counter() - start) / chunks.size
    return Cost(cpu_seconds=cpu_seconds, wait_seconds=max(0.0, seconds - cpu_seconds))
