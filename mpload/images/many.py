"""Decodes the samples of a whole chunk with one native call, for the decoders that can.

A call declines any sample that is unusual, and never raises because of one. The decoder itself then makes that sample,
or raises its error. The values that a call makes equal those of the decoder to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DecodeMany", "EncodedSamples", "many_decoder", "row_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedSamples:
    """The encoded samples of a chunk, side by side in one area."""

    data: NDArray[np.uint8]
    """uint8 [num_bytes]: the area."""
    starts: NDArray[np.int64]
    """int64 [n]: where each sample starts in `data`."""
    lengths: NDArray[np.int64]
    """int64 [n]: the number of bytes of each sample; -1 for a sample to leave out."""
    sample_ids: NDArray[np.int64]
    """int64 [n]: the second word of the counter of each sample's random numbers, see `SampleRng`."""
    key: tuple[int, int]
    """The Philox key of the samples' random numbers."""
    first: int
    """Position of the first sample in its batch: sample `i` is number `first + i`."""
    at: "memoryview[int] | None"
    """One int64, to which the number of the sample that is next is written before each sample; None for nowhere."""


DecodeMany = Callable[[EncodedSamples, NDArray[np.uint8]], NDArray[np.uint8]]
"""Decodes the samples into the rows of an array [n, *output_shape] and returns, as uint8 [n], 1 for each that was made.

A row whose sample was declined holds anything.
"""


def many_decoder(decode: Callable[..., Any]) -> DecodeMany | None:
    """Return what decodes many samples as `decode` does, into rows of its `output_shape`; None if nothing can."""
    del decode  # no decoder can yet
    return None


def row_bytes(decode: Callable[..., Any]) -> int | None:
    """Return the size of every sample if its bytes can be read straight into a row of the batch; None otherwise."""
    del decode  # no decoder can yet
    return None
