"""Pinned memory, as far as it can be tested without a driver."""

import os
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mpload.device.pinning import Pinner
from mpload.errors import MploadWarning

SLOT_BYTES = 4096


class Driver:
    """A stand-in for the CUDA runtime that records the registered addresses."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.registered: list[int] = []
        self.refuses = refuses

    def __call__(self) -> SimpleNamespace:
        return SimpleNamespace(
            cudaHostRegister=self.register,
            cudaHostUnregister=self.unregister,
            cudaGetErrorString=lambda error: f"error {error}",
        )

    def register(self, address: int, num_bytes: int, flags: int) -> int:
        if not self.refuses:
            self.registered.append(address)
        return int(self.refuses)

    def unregister(self, address: int) -> int:
        self.registered.remove(address)
        return 0


class Slots:
    """The memory of two slots of a loader."""

    def __init__(self) -> None:
        self.memory = np.zeros(2 * SLOT_BYTES, np.uint8)

    def tensor(self, slot: int) -> torch.Tensor:
        return torch.from_numpy(self.memory[slot * SLOT_BYTES + 64 :][:64])

    def address(self, slot: int) -> int:
        return self.memory.ctypes.data + slot * SLOT_BYTES

    def lock(self, address: int) -> NDArray[np.uint8] | None:
        slot = (address - self.memory.ctypes.data) // SLOT_BYTES
        return self.memory[slot * SLOT_BYTES :][:SLOT_BYTES] if 0 <= slot < 2 else None


def test_slots_are_pinned_on_first_use_and_unregistered_before_they_are_freed() -> None:
    driver, slots, others = Driver(), Slots(), Slots()
    pinner = Pinner(torch.device("cpu"), cudart=driver)
    assert pinner.pin(slots.tensor(1), slots.lock)
    assert driver.registered == [slots.address(1)]
    assert pinner.pin(slots.tensor(0), slots.lock)
    assert driver.registered == [slots.address(1), slots.address(0)]
    assert not pinner.pin(torch.zeros(3), slots.lock)
    assert pinner.pin(others.tensor(0), others.lock)
    assert driver.registered == [others.address(0)]  # the old slots of the loader are unregistered
    pinner.release()
    pinner.release()
    assert driver.registered == []
    assert pinner.pin(slots.tensor(0), slots.lock)
    alive = weakref.ref(slots.memory)
    del slots
    assert alive() is not None
    del pinner
    assert driver.registered == []
    assert alive() is None


def test_registration_is_tried_only_once_if_the_driver_refuses() -> None:
    slots = Slots()
    pinner = Pinner(torch.device("cpu"), cudart=Driver(refuses=True))
    with pytest.warns(MploadWarning, match="each batch is copied once more on the host: the driver reports error 1"):
        assert not pinner.pin(slots.tensor(0), slots.lock)
    assert not pinner.pin(slots.tensor(0), slots.lock)


@pytest.mark.processes
def test_a_forked_child_does_not_use_the_driver_of_its_parent() -> None:
    driver, slots = Driver(), Slots()
    pinner = Pinner(torch.device("cpu"), cudart=driver)
    pinner.pin(slots.tensor(0), slots.lock)
    child = os.fork()
    if child == 0:
        pinner.release()
        del pinner
        os._exit(len(driver.registered))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    pinner.release()
    assert driver.registered == []
