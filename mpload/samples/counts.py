"""Positions of the workers' counters in `Tally.counts`; telemetry reads them in this order, under the same names."""

__all__ = [
    "CACHE_HITS",
    "CACHE_MISSES",
    "DECODE_NS",
    "HEDGES",
    "READ_NS",
    "SERVED_BYTES",
    "SERVED_SAMPLES",
    "TRANSFORM_NS",
]

READ_NS, DECODE_NS, TRANSFORM_NS, CACHE_HITS, CACHE_MISSES, HEDGES, SERVED_SAMPLES, SERVED_BYTES = range(8)
