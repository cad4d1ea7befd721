"""The native module `mpload.storage._files`, if it was built."""

from mmap import mmap
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from mpload.native import native_module

__all__ = ["NATIVE", "NativeShard"]

NativeShard = tuple[int, mmap | None, int, bytearray | None]
"""An open shard: its descriptor, and the fields of its `MappedShard`."""


class _Native(Protocol):
    def open_beneath(self, folder: int, path: str) -> tuple[int, int] | None: ...

    def distinct(self, names: bytes, bounds: NDArray[Any], which: NDArray[Any], firsts: NDArray[Any]) -> int: ...

    def read_many(
        self,
        names: bytes,
        bounds: NDArray[Any],
        offsets: NDArray[Any],
        lengths: NDArray[Any],
        numbers: NDArray[Any],
        shards: tuple[NativeShard, ...],
        area: NDArray[Any],
        starts: NDArray[Any],
        sizes: NDArray[Any],
        at: "memoryview[int] | None",
        folder: int,
        max_bytes: int,
        step_bytes: int,
        slow_ns: int,
        max_slow: int,
        first: int,
        num_before: int,
        num_samples: int,
        /,
    ) -> tuple[int, int, int]: ...


NATIVE: Final[_Native | None] = native_module("storage._files")
