"""Large batches in slots of shared memory, like those of an `MPLoader`, but filled by the test itself."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mpload.transport.ring import SlotRing
from mpload.transport.slots import Field, SlotLayout
from tests.support.large_batches import SHAPE, large

__all__ = ["NUM_SLOTS", "SlottedBatches"]

NUM_SLOTS = 5
_FIELDS = (
    Field(name="images", shape=(*SHAPE[2:], SHAPE[1]), dtype="uint8"),
    Field(name="numbers", dtype="int64"),
)


def _new_ring() -> SlotRing:
    return SlotRing(num_slots=NUM_SLOTS, layout=SlotLayout(num_samples=SHAPE[0], fields=_FIELDS))


class SlottedBatches:
    """A loader that yields batches (images, numbers) in slots. Free slots are overwritten before each batch."""

    def __init__(self, num: int = 8) -> None:
        self.pixels = [large(number).permute(0, 2, 3, 1).numpy() for number in range(num)]
        self.ring = _new_ring()

    def renew(self) -> None:
        """Use new slots from now on."""
        self.ring.close()
        self.ring = _new_ring()

    def _lock_slot(self, address: int) -> NDArray[np.uint8] | None:
        return self.ring.lock(address)

    def are_pinned(self) -> list[bool]:
        """Return for each slot whether torch considers it pinned."""
        return [torch.from_numpy(self.ring.views(slot)["images"]).is_pinned() for slot in range(NUM_SLOTS)]

    def __iter__(self) -> Iterator[Any]:
        for number, pixels in enumerate(self.pixels):
            free = []
            while (slot := self.ring.take()) is not None:
                free.append(slot)
                self.ring.views(slot)["images"][:] = 255
            assert free, "more host batches are held than there are slots"
            for other in free[1:][::-1]:
                self.ring.give_back(other)
            views = self.ring.views(free[0])
            views["images"][:] = pixels
            views["numbers"][:] = number
            arrays = self.ring.lend(free[0], SHAPE[0])
            del views
            yield torch.from_numpy(arrays.pop("images")).permute(0, 3, 1, 2), torch.from_numpy(arrays.pop("numbers"))
