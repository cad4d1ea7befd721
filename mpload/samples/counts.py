"""What works count, by its place in `Tally.counts`; telemetry reads them in the same order, by the same names."""

__all__ = ["CACHE_HITS", "CACHE_MISSES", "DECODE_NS", "READ_NS", "TRANSFORM_NS"]

READ_NS, DECODE_NS, TRANSFORM_NS, CACHE_HITS, CACHE_MISSES = range(5)
