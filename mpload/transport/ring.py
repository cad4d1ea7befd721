"""The ring: all slots, in one anonymous shared mapping, and the lifetime of the slots lent to the user."""

import contextlib
import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.transport.limits import os_errors_as_refused, shared_memory
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import Field, Part, SlotLayout
from mpload.units import format_bytes

__all__ = ["SlotArrays", "SlotRing", "blank"]

SlotArrays = dict[str, Any]
"""Arrays of a slot by field name: an array [B, *shape], or a RaggedArray of B values."""


class SlotRing:
    """`num_slots` slots of one layout. Each is free, being filled, or lent to the user.

    A lent slot becomes free when the last array that refers to it dies, including views, slices and tensors made with
    `torch.from_numpy`. So a batch never changes while it is in use.

    Memory: at most `num_slots * layout.slot_bytes`, allocated page by page on first write. It is anonymous shared
    memory (`memfd`), which the kernel frees with the last process that maps it, and does not count against `/dev/shm`.
    It is one contiguous, page-aligned mapping, so a device layer can register slots as pinned memory.
    Process: pass `fd` to other processes, which `attach` to it. Only the owner lends slots.
    """

    def __init__(self, *, num_slots: int, layout: SlotLayout, huge_pages: bool = False) -> None:
        if num_slots < 1:
            raise ArgumentError(f"num_slots must be at least 1, got {num_slots}")
        fd = shared_memory("mpload-ring", num_slots * layout.slot_bytes)
        try:
            self._open(fd, num_slots=num_slots, layout=layout, huge_pages=huge_pages)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, *, num_slots: int, layout: SlotLayout, huge_pages: bool = False) -> "SlotRing":
        """Map a ring that another process owns. This object takes ownership of `fd`."""
        ring = cls.__new__(cls)
        ring._open(fd, num_slots=num_slots, layout=layout, huge_pages=huge_pages)  # noqa: SLF001  a second constructor
        return ring

    def _open(self, fd: int, *, num_slots: int, layout: SlotLayout, huge_pages: bool) -> None:
        num_bytes = num_slots * layout.slot_bytes
        with os_errors_as_refused(f"cannot reserve {format_bytes(num_bytes)} of address space for {num_slots} slots"):
            self._map = mmap.mmap(fd, num_bytes)
        if huge_pages:
            with contextlib.suppress(OSError):  # optional: a kernel may not offer them for shared memory
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._fd = fd
        self.num_slots = num_slots
        self.layout = layout
        self._free = deque(range(num_slots))
        self._locked: set[int] = set()
        self._returned: deque[int] = deque()  # appended to by finalizers, in any thread
        self._lent: dict[int, weakref.ref[_Lease]] = {}

    @property
    def fd(self) -> int:
        """Descriptor of the shared memory, to pass to other processes."""
        return self._fd

    @property
    def used_bytes(self) -> int:
        """Memory that the ring uses now."""
        return os.fstat(self._fd).st_blocks * 512

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        if self._returned:
            self._collect()
        return len(self._free)

    @property
    def num_lent(self) -> int:
        """Number of slots that the user still holds."""
        if self._returned:
            self._collect()
        return len(self._lent)

    def take(self) -> int | None:
        """Take a free slot, to be filled, and return it. Return None if no slot is free."""
        if self._returned:
            self._collect()
        return self._free.popleft() if self._free else None

    def give_back(self, slot: int) -> None:
        """Make a taken slot free again."""
        # Last in, first out: the slot used last is still in the CPU caches, and surplus slots stay untouched.
        self._free.appendleft(slot)

    def views(self, slot: int) -> SlotArrays:
        """Return the arrays of a slot, to be filled. They do not keep the slot alive."""
        return self._arrays(self._map, slot * self.layout.slot_bytes, self.layout.num_samples)

    def write_input(self, slot: int, data: bytes) -> None:
        """Write the input of a task to a taken slot."""
        for array in self.views(slot).values():
            if isinstance(array, RaggedArray) and array.field.is_input:
                array.begin(0, 1)
                array.put(0, data)

    def lend(self, slot: int, num_samples: int) -> SlotArrays:
        """Lend the first `num_samples` samples of a taken slot, which becomes free when the last view has died."""
        owner = _Lease((self.layout.slot_bytes,), np.uint8, self._map, slot * self.layout.slot_bytes)
        returned = self._returned
        self._lent[slot] = weakref.ref(owner, lambda _: returned.append(slot))
        return self._arrays(owner, 0, num_samples)

    def copy_out(self, slot: int, num_samples: int) -> SlotArrays:
        """Return a copy of the first `num_samples` samples of a taken slot, and make the slot free again."""
        arrays = self._arrays(self._map, slot * self.layout.slot_bytes, num_samples)
        copies = {name: array.copy() for name, array in arrays.items()}
        self.give_back(slot)
        return copies

    def lock(self, address: int) -> NDArray[np.uint8] | None:
        """Return the part with fixed shapes of the slot that contains `address`, or None if `address` lies elsewhere.

        From now on that part is never returned to the kernel, because a device may read it.
        """
        start = np.ndarray((0,), np.uint8, self._map).ctypes.data
        slot, offset = divmod(address - start, self.layout.slot_bytes)
        if not 0 <= slot < self.num_slots or offset >= self.layout.fixed_bytes:
            return None
        self._locked.add(slot)
        return np.ndarray((self.layout.fixed_bytes,), np.uint8, self._map, slot * self.layout.slot_bytes)

    def drop_free_memory(self) -> None:
        """Return the memory of all free slots to the kernel. They allocate new memory when they are filled again."""
        self._collect()
        for slot in self._free:
            # A device would still read the old pages of a locked part.
            kept_bytes = self.layout.fixed_bytes if slot in self._locked else 0
            start, num_bytes = slot * self.layout.slot_bytes + kept_bytes, self.layout.slot_bytes - kept_bytes
            if num_bytes:
                self._map.madvise(mmap.MADV_REMOVE, start, num_bytes)

    def close(self) -> None:
        """Release the memory. Arrays that are still lent keep it until they die. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            # Never `self._map.close()`: NumPy only holds a reference to the map, which would not prevent it from being
            # closed under a lent array. Without our reference the map is closed when its last view dies.
            del self._map

    def _collect(self) -> None:
        while self._returned:
            slot = self._returned.popleft()
            del self._lent[slot]
            self._free.appendleft(slot)

    def _arrays(self, buffer: Any, base_bytes: int, num_samples: int) -> SlotArrays:
        arrays: SlotArrays = {}
        for field in self.layout.fields:
            parts = self.layout.parts[field.name]
            if isinstance(field, Field):
                arrays[field.name] = _array(buffer, base_bytes, parts[0])[:num_samples]
            else:
                starts, shapes, area = (_array(buffer, base_bytes, part) for part in parts)
                arrays[field.name] = RaggedArray(
                    field, starts=starts[:num_samples], shapes=shapes[:num_samples], area=area
                )
        return arrays


class _Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A lent slot. NumPy shortens a view's chain of bases only within one type, so every view keeps its lease alive."""


def blank(arrays: SlotArrays, sample: int) -> None:
    """Set a failed sample to zero, so that a batch does not depend on what its slot held before."""
    for array in arrays.values():
        if isinstance(array, RaggedArray):
            if not array.field.is_input:
                array.begin(sample, sample + 1)
        else:
            array[sample] = np.zeros((), array.dtype)


def _array(buffer: Any, base_bytes: int, part: Part) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ndarray(part.shape, part.dtype, buffer, base_bytes + part.offset_bytes)
