"""How often a thread has waited, as the kernel counts it."""

import resource
import sys
import time

__all__ = ["num_waits_of_thread"]

_COUNTS_WAITS = sys.platform == "linux"


def num_waits_of_thread() -> int:
    """Return how often this thread has given up its core voluntarily, to wait for a disk, the network or a lock."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if _COUNTS_WAITS else time.perf_counter_ns()
