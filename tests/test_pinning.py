"""Pinned memory, as far as it can be seen without a driver."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from mpload.device.pinning import PinnedMemory


def test_the_driver_hears_of_pinned_memory_once_and_again_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[int] = []

    def register(address: int, num_bytes: int, flags: int) -> int:
        registered.append(address)
        return 0

    def unregister(address: int) -> int:
        registered.remove(address)
        return 0

    driver = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    monkeypatch.setattr("mpload.device.pinning._driver", lambda: driver)
    first, second = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
    one, other = PinnedMemory(first), PinnedMemory(second)
    assert one.is_of(first[:])
    assert not one.is_of(second)
    assert registered == [first.ctypes.data, second.ctypes.data]
    one.release()
    one.release()
    assert registered == [second.ctypes.data]
    alive = weakref.ref(second)
    del second
    assert alive() is not None
    del other
    assert registered == []
    assert alive() is None
