"""The sample_ids of samples that come several times in an epoch.

Random numbers, such as those of a crop, depend on seed, epoch and sample_id. So that a sample gets others each time it
comes, its sample_id is greater each time by a multiple of N, the number of samples. Modulo N, it says which sample it
is.
"""

import numpy as np
from numpy.typing import NDArray

from mpload.plan.ranges import MAX_NUM_SAMPLES

__all__ = ["repeated"]


def repeated(rows: NDArray[np.int64], repeats: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """Return sample_ids, int64 [n], that differ if their rows or their repeats do.

    Repeats that differ by a multiple of 2^62 // num_rows give the same sample_id. If they are positions of an epoch
    that is as long as the index, this cannot happen with up to 2^31 samples. With more of them, two draws of the same
    sample have the same random numbers about once in 2^62 // num_rows cases.

    Args:
        rows: int64 [n]: numbers of samples, in [0, num_rows).
        repeats: int64 [n]: for instance positions, or how often all samples have come before.
        num_rows: the number of samples.
    """
    return rows + repeats % (MAX_NUM_SAMPLES // max(1, num_rows)) * num_rows
