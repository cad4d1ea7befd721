"""Host memory that the CUDA driver copies from directly, without a copy of its own on the way."""

import weakref
from contextlib import suppress
from typing import Any

import torch
from numpy.typing import NDArray

__all__ = ["PinnedMemory"]

_PORTABLE = 1  # pinned for all devices


class PinnedMemory:
    """Registers memory with the driver, once, so that tensors anywhere in it are pinned.

    Keeps the memory alive, and takes it for real, all of it, until `release`.

    Args:
        memory: an array of bytes, page-aligned.

    Raises:
        RuntimeError: the driver refuses.
    """

    def __init__(self, memory: NDArray[Any]) -> None:
        self._memory: NDArray[Any] | None = memory
        address = memory.ctypes.data
        _check(_driver().cudaHostRegister(address, memory.nbytes, _PORTABLE))
        # The driver must hear of it before the memory goes, also when nobody calls `release`.
        self._finalizer = weakref.finalize(self, _unregister, address, memory)

    def is_of(self, memory: NDArray[Any]) -> bool:
        """Say whether it is this memory that is registered."""
        return self._memory is not None and self._memory.ctypes.data == memory.ctypes.data

    def release(self) -> None:
        """Let go of the memory. Nothing may copy from it any more. May be called again."""
        self._finalizer()
        self._memory = None


def _unregister(address: int, memory: NDArray[Any]) -> None:
    del memory  # an argument only to be alive until now
    _check(_driver().cudaHostUnregister(address))


def _check(error: Any) -> None:
    if int(error):
        with suppress(RuntimeError):  # torch would blame the next kernel for it
            torch.zeros((), device="cuda")
        raise RuntimeError(f"the driver says {_driver().cudaGetErrorString(error)}")


def _driver() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
