"""Positions of the workers' counters in `Tally.counts`; telemetry reads them in this order, under the same names."""

__all__ = [
    "CACHE_HITS",
    "CACHE_MISSES",
    "DECODE_NS",
    "HEDGES",
    "READ_NS",
    "SERVED",
    "SERVED_BYTES",
    "TRANSFORM_NS",
]

READ_NS, DECODE_NS, TRANSFORM_NS, CACHE_HITS, CACHE_MISSES, HEDGES, SERVED, SERVED_BYTES = range(8)
