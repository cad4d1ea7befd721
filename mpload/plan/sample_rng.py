"""Random numbers that belong to a sample."""

import hashlib
from typing import Any

import numpy as np

from mpload.errors import ArgumentError

__all__ = ["SampleRng"]

_VERSION = b"mpload rng 1"
_MAX_WORD = (1 << 64) - 1


class SampleRng:
    """Random numbers of each sample in one epoch: a pure function of (seed, epoch, sample_id, stream).

    One Philox generator is moved to the sample's own part of its 2^256 counters: word 1 is the sample_id, word 2 the
    stream, word 0 counts. So generators of two samples or two streams never overlap, and to move takes no longer than
    drawing a few numbers, where a new generator would take twenty times that. The key is a BLAKE2b hash of (seed,
    epoch): seed 1 epoch 0 and seed 0 epoch 1 have nothing in common.

    Args:
        seed: Any integer.
        epoch: Any integer.

    Process:
        May be pickled and forked; has no state that a sample could leave behind. One thread at a time.
    """

    __slots__ = ("_bits", "_counter", "_generator", "_state", "epoch", "seed")

    def __init__(self, *, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        digest = hashlib.blake2b(b"%d %d" % (seed, epoch), digest_size=16, person=_VERSION).digest()
        key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")]
        self._bits = np.random.Philox(0)
        self._generator = np.random.Generator(self._bits)
        self._counter = [0, 0, 0, 0]
        # Plain lists, though they are typed as arrays: NumPy takes them up three times as fast.
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": key},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,  # nothing left in the buffer
            "has_uint32": 0,
            "uinteger": 0,
        }

    def for_sample(self, sample_id: int, *, stream: int = 0) -> np.random.Generator:
        """Return the generator, moved to the start of a sample's stream.

        It is the same object each time: draw what the sample needs before asking for the next one.

        Args:
            sample_id: The sample's row in the index.
            stream: Numbers that must not shift when another part of the pipeline draws more or fewer have a stream of
                their own: 0 is the decoder's, 1 the transform's.

        Raises:
            ArgumentError: A number is negative or above 2^64 - 1.
        """
        if not (0 <= sample_id <= _MAX_WORD and 0 <= stream <= _MAX_WORD):
            raise ArgumentError(f"sample_id and stream must be in [0, 2^64), got {sample_id} and {stream}")
        self._counter[1] = int(sample_id)
        self._counter[2] = int(stream)
        self._bits.state = self._state
        return self._generator

    def __reduce__(self) -> tuple[object, ...]:
        return _sample_rng, (self.seed, self.epoch)

    def __repr__(self) -> str:
        return f"SampleRng(seed={self.seed}, epoch={self.epoch})"


def _sample_rng(seed: int, epoch: int) -> SampleRng:
    return SampleRng(seed=seed, epoch=epoch)
