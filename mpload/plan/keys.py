"""The keys of permutations and draws: unrelated for different purposes, seeds and epochs."""

import hashlib

__all__ = ["round_keys"]

_VERSION = 1
_NUM_ROUNDS = 8  # the fewest for which each of the 120 orders of five samples is within about 5 % of equally likely


def round_keys(purpose: str, seed: int, epoch: int) -> tuple[int, ...]:
    """Return the keys of the rounds of a `Permutation`, which are unrelated for different (purpose, seed, epoch)."""
    digest = hashlib.blake2b(
        seed.to_bytes(8, "little") + epoch.to_bytes(8, "little"),
        digest_size=8 * _NUM_ROUNDS,
        person=f"mpload.{purpose}.{_VERSION}".encode(),
    ).digest()
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8))
