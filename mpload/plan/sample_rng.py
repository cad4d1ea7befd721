"""Random numbers that depend only on the seed, the epoch and the sample."""

import hashlib
from typing import Any

import numpy as np

from mpload.errors import ArgumentError

__all__ = ["SampleRng"]

_VERSION = b"mpload rng 1"
_MAX_WORD = (1 << 64) - 1
_MAX_HALF = (1 << 32) - 1


class SampleRng:
    """Gives each sample of an epoch its own random numbers: a pure function of (seed, epoch, sample_id, stream).

    There is one Philox generator. For each sample it jumps to a separate part of its 256-bit counter: word 1 is the
    sample_id, word 2 is the stream, and word 0 counts. Samples and streams therefore never overlap. A jump takes about
    as long as drawing a few numbers; making a new generator takes twenty times longer. The key is a BLAKE2b hash of
    (seed, epoch), so seed 1 epoch 0 and seed 0 epoch 1 are unrelated.

    Args:
        seed: Any integer.
        epoch: Any integer.

    Process:
        May be pickled and forked. No state carries over from one sample to the next. Use it in one thread at a time.
    """

    __slots__ = ("_bits", "_counter", "_generator", "_state", "epoch", "key", "seed")

    def __init__(self, *, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        digest = hashlib.blake2b(b"%d %d" % (seed, epoch), digest_size=16, person=_VERSION).digest()
        self.key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
        """The key of the Philox generator."""
        self._bits = np.random.Philox(0)
        self._generator = np.random.Generator(self._bits)
        self._counter = [0, 0, 0, 0]
        # Typed as arrays, but NumPy reads plain lists three times as fast.
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": list(self.key)},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,  # the buffer is empty
            "has_uint32": 0,
            "uinteger": 0,
        }

    def for_sample(self, sample_id: int, *, stream: int = 0) -> np.random.Generator:
        """Return the generator, positioned at the start of a sample's stream.

        Every call returns the same object, so draw all numbers for one sample before calling this for the next.

        Args:
            sample_id: The sample's row in the index.
            stream: Number of the stream. Each part of the pipeline has its own stream, so that its numbers do not
                change if another part draws more or fewer. The decoder uses 0 and the transform uses 1.

        Raises:
            ArgumentError: A number is negative or greater than 2^64 - 1.
        """
        if not (0 <= sample_id <= _MAX_WORD and 0 <= stream <= _MAX_WORD):
            raise ArgumentError(f"sample_id and stream must be in [0, 2^64), got {sample_id} and {stream}")
        self._counter[1] = int(sample_id)
        self._counter[2] = int(stream)
        self._bits.state = self._state
        return self._generator

    def words_for(self, sample_id: int, *, stream: int = 0) -> tuple[int, int, int]:
        """Return the same as `for_sample(sample_id, stream=stream).integers(0, 1 << 32, size=3)`, ten times as fast.

        Call `for_sample` again before the generator is used for something else.
        """
        self.for_sample(sample_id, stream=stream)
        first, second = self._bits.random_raw(2).tolist()
        return first & _MAX_HALF, first >> 32, second & _MAX_HALF

    def __reduce__(self) -> tuple[object, ...]:
        return _sample_rng, (self.seed, self.epoch)

    def __repr__(self) -> str:
        return f"SampleRng(seed={self.seed}, epoch={self.epoch})"


def _sample_rng(seed: int, epoch: int) -> SampleRng:
    return SampleRng(seed=seed, epoch=epoch)
