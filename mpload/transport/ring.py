"""The ring: all slots, in one anonymous shared mapping, and the lifetime of the slots lent to the user."""

import contextlib
import mmap
import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.transport.limits import os_errors_as_refused, shared_memory
from mpload.transport.own_pages import share_again, take_own_pages
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import Field, Part, RaggedField, SlotLayout
from mpload.units import MIB, format_bytes

__all__ = ["UNLENT_SLOTS", "SlotArrays", "SlotRing", "blank", "without_lent"]

SlotArrays = dict[str, Any]
"""Arrays of a slot by field name: an array [B, *shape], or a RaggedArray of B values."""


UNLENT_SLOTS = 2
"""Slots that are never lent, so that workers can still write when the user holds all others."""
_NOTICE_BYTES = 4 * MIB
"""Address space after the slots, in which the owner describes further layouts to the workers."""
_MAP_NORESERVE = 0x4000
"""Of Linux; Python 3.11's `mmap` lacks it."""
_MAX_ADOPTED = 16
_ENDS_BYTES = (_MAX_ADOPTED + 1) * 8
"""The notices begin with the offsets at which the description of each layout ends, int64."""


class SlotRing:
    """`num_slots` slots. Each is free, being filled, or lent to the user.

    All slots have one layout at first. The owner may `adopt` others, which apply to the slots that are taken later.

    A lent slot becomes free when the last array that refers to it dies, including views, slices and tensors made with
    `torch.from_numpy`. So a batch never changes while it is in use, not even in a child that the user has forked.

    Memory: at most `num_slots * layout.slot_bytes`, allocated page by page on first write. It is anonymous shared
    memory (`memfd`), which the kernel frees with the last process that maps it, and does not count against `/dev/shm`.
    It is one contiguous, page-aligned mapping, so a device layer can register slots as pinned memory.
    Process: pass `fd` to other processes, which `attach` to it. Only the owner lends slots.
    """

    def __init__(self, *, num_slots: int, layout: SlotLayout, huge_pages: bool = False) -> None:
        if num_slots < 1:
            raise ArgumentError(f"num_slots must be at least 1, got {num_slots}")
        fd = shared_memory("mpload-ring", num_slots * layout.slot_bytes + _NOTICE_BYTES)
        try:
            self._open(fd, num_slots=num_slots, layout=layout, huge_pages=huge_pages)
        except BaseException:
            os.close(fd)
            raise
        _owned.add(self)

    @classmethod
    def attach(cls, fd: int, *, num_slots: int, layout: SlotLayout, huge_pages: bool = False) -> "SlotRing":
        """Map a ring that another process owns. This object takes ownership of `fd`."""
        ring = cls.__new__(cls)
        ring._open(fd, num_slots=num_slots, layout=layout, huge_pages=huge_pages)  # noqa: SLF001  a second constructor
        return ring

    def _open(self, fd: int, *, num_slots: int, layout: SlotLayout, huge_pages: bool) -> None:
        num_bytes = num_slots * layout.slot_bytes + _NOTICE_BYTES
        with os_errors_as_refused(f"cannot reserve {format_bytes(num_bytes)} of address space for {num_slots} slots"):
            self._map = mmap.mmap(fd, num_bytes)
        self._has_huge_pages = huge_pages
        self._advise(0, num_bytes)
        self._fd = fd
        self.num_slots = num_slots
        self.layout = layout
        """The first layout, which decides how much address space a slot has."""
        self._layouts = [layout]
        self._asked = layout  # the one that was to be adopted last
        self._number_of: dict[int, int] = {}  # by slot: the number of its layout, if it is not 0
        self._free = deque(range(num_slots))
        self._locked: dict[int, int] = {}  # by slot: size of the part that stays in place
        self._returned: deque[_Lent] = deque()  # appended to by finalizers, in any thread
        self._lent: dict[int, _Lent] = {}
        self._unshared: set[int] = set()  # lent slots whose pages only this process has
        self._changing = threading.RLock()  # held while slots change hands, since another thread may fork

    @property
    def fd(self) -> int:
        """Descriptor of the shared memory, to pass to other processes."""
        return self._fd

    @property
    def used_bytes(self) -> int:
        """Memory that the ring uses now; none in a process that it does not belong to."""
        return 0 if self._fd < 0 else os.fstat(self._fd).st_blocks * 512

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

    def adopt(self, layout: SlotLayout) -> bool:
        """Use another layout for the slots that are taken from now on; return False if it cannot be used.

        It must need no more memory than the first one. A device that reads slots directly rules out some layouts.
        """
        if layout is self._asked:
            return layout is self._layouts[-1]
        self._asked = layout
        number, described = len(self._layouts), pickle.dumps(layout)
        ends = self._ends()
        start = max(_ENDS_BYTES, int(ends[number - 1]))
        if (
            number > _MAX_ADOPTED
            or start + len(described) > _NOTICE_BYTES
            or layout.num_samples != self.layout.num_samples
            or layout.slot_bytes > self.layout.slot_bytes
            or any(layout.fixed_bytes != locked_bytes for locked_bytes in self._locked.values())
        ):
            return False
        first = self.num_slots * self.layout.slot_bytes + start
        self._map[first : first + len(described)] = described
        ends[number] = start + len(described)
        self._layouts.append(layout)
        return True

    def layout_at(self, number: int) -> SlotLayout:
        """Return layout `number`: 0 is the first one. A worker reads what the owner has adopted."""
        first = self.num_slots * self.layout.slot_bytes
        while len(self._layouts) <= number:
            start, end = (max(_ENDS_BYTES, int(end)) for end in self._ends()[len(self._layouts) - 1 :][:2])
            self._layouts.append(pickle.loads(self._map[first + start : first + end]))  # noqa: S301  the owner's
        return self._layouts[number]

    @property
    def newest_layout(self) -> SlotLayout:
        """The layout of the slots that are taken from now on."""
        return self._layouts[-1]

    def number_of(self, slot: int) -> int:
        """Return the number of a taken slot's layout."""
        return self._number_of.get(slot, 0)

    def _ends(self) -> NDArray[np.int64]:
        return np.ndarray((_MAX_ADOPTED + 1,), np.int64, self._map, self.num_slots * self.layout.slot_bytes)

    def take(self) -> int | None:
        """Take a free slot, to be filled, and return it. Return None if no slot is free."""
        if self._returned:
            self._collect()
        if not self._free:
            return None
        slot = self._free.popleft()
        if len(self._layouts) > 1:
            self._number_of[slot] = len(self._layouts) - 1
        return slot

    def give_back(self, slot: int) -> None:
        """Make a taken slot free again."""
        # Last in, first out: the slot used last is still in the CPU caches, and surplus slots stay untouched.
        self._free.appendleft(slot)

    def views(self, slot: int, number: int = 0) -> SlotArrays:
        """Return the arrays of a slot, in layout `number`, to be filled. They do not keep the slot alive."""
        layout = self.layout_at(number)
        return _arrays(layout, self._map, slot * self.layout.slot_bytes, layout.num_samples)

    def private_views(self, slot: int, number: int = 0) -> SlotArrays:
        """Return the same as `views`, but what is written to them stays in this process. Whole fields are shared.

        So is everything if the system refuses the address space.
        """
        layout, views, num_bytes = self.layout_at(number), self.views(slot, number), self.layout.slot_bytes
        # Without MAP_NORESERVE the kernel would count the address space, which is far more than there is memory.
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        try:
            private = mmap.mmap(self._fd, num_bytes, flags=flags, offset=slot * num_bytes)
        except OSError:
            return views
        whole = {field.name for field in layout.fields if isinstance(field, RaggedField) and field.is_whole}
        unshared = _arrays(layout, private, 0, layout.num_samples)
        return {name: views[name] if name in whole else array for name, array in unshared.items()}

    def write_input(self, slot: int, data: bytes) -> None:
        """Write the input of a task to a taken slot."""
        for array in self.views(slot, self.number_of(slot)).values():
            if isinstance(array, RaggedArray) and array.field.is_input:
                array.begin(0, 1)
                array.put(0, data)

    def lend(self, slot: int, num_samples: int) -> SlotArrays:
        """Lend the first `num_samples` samples of a taken slot, which becomes free when the last view has died."""
        owner = _Lease((self.layout.slot_bytes,), np.uint8, self._map, slot * self.layout.slot_bytes)
        self._lent[slot] = _Lent(owner, self._returned.append)
        self._lent[slot].slot = slot
        return _arrays(self.layout_at(self.number_of(slot)), owner, 0, num_samples)

    def hand_over(self, slot: int, num_samples: int) -> tuple[SlotArrays, bool]:
        """Lend a taken slot, or, if the user holds nearly all others, copy it out; return whether it is a copy."""
        num_unlent = min(UNLENT_SLOTS, max(1, self.num_slots - 1))
        if self.num_lent + num_unlent < self.num_slots:
            return self.lend(slot, num_samples), False
        return self.copy_out(slot, num_samples), True

    def copy_out(self, slot: int, num_samples: int) -> SlotArrays:
        """Return a copy of the first `num_samples` samples of a taken slot, and make the slot free again."""
        layout = self.layout_at(self.number_of(slot))
        arrays = _arrays(layout, self._map, slot * self.layout.slot_bytes, num_samples)
        copies = {name: array.copy() for name, array in arrays.items()}
        self.give_back(slot)
        return copies

    def lock(self, address: int) -> NDArray[np.uint8] | None:
        """Return the part with fixed shapes of the slot that contains `address`, or None if `address` lies elsewhere.

        From now on that part is never returned to the kernel, because a device may read it. It is the same part in all
        later layouts. In a slot whose layout has another such part than the newest one, nothing can be locked; nor in
        a slot that was lent when this process forked.
        """
        slot, offset = divmod(address - self._place_of(0)[0], self.layout.slot_bytes)
        if not 0 <= slot < self.num_slots:
            return None
        fixed_bytes = self.layout_at(self.number_of(slot)).fixed_bytes
        if offset >= fixed_bytes or fixed_bytes != self.newest_layout.fixed_bytes:
            return None
        with self._changing:
            if slot in self._unshared:
                return None
            self._locked[slot] = fixed_bytes
        return np.ndarray((fixed_bytes,), np.uint8, self._map, slot * self.layout.slot_bytes)

    def keep_lent(self) -> None:
        """Take lent slots out of the shared memory, before a fork: see `mpload.transport.own_pages`.

        Not those with a locked part, which a device reads by its address.
        """
        with self._changing:
            self._collect()
            if self._fd < 0:  # nothing writes to the slots any more
                return
            for slot in self._lent.keys() - self._unshared - self._locked.keys():
                with contextlib.suppress(OSError):  # of address space: then the child's batch may change
                    take_own_pages(*self._place_of(slot))
                    self._unshared.add(slot)

    def _place_of(self, slot: int) -> tuple[int, int, int, int]:
        """Return the address of a slot, the descriptor, and its offset and size there."""
        start, num_bytes = slot * self.layout.slot_bytes, self.layout.slot_bytes
        return np.ndarray((0,), np.uint8, self._map).ctypes.data + start, self._fd, start, num_bytes

    def drop_free_memory(self) -> None:
        """Return the memory of all free slots to the kernel. They allocate new memory when they are filled again."""
        self._collect()
        for slot in self._free:
            # A device would still read the old pages of a locked part.
            kept_bytes = self._locked.get(slot, 0)
            start, num_bytes = slot * self.layout.slot_bytes + kept_bytes, self.layout.slot_bytes - kept_bytes
            if num_bytes:
                self._map.madvise(mmap.MADV_REMOVE, start, num_bytes)

    def close(self) -> None:
        """Release the memory. Arrays that are still lent keep it until they die. May be called again."""
        with self._changing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                # Never `self._map.close()`: NumPy only holds a reference to the map, which would not prevent it from
                # being closed under a lent array. Without our reference the map is closed when its last view dies.
                del self._map

    def _collect(self) -> None:
        with self._changing:
            while self._returned:
                slot = self._returned[0].slot
                if slot in self._unshared and self._fd >= 0:
                    self._share_again(slot)
                self._returned.popleft()
                del self._lent[slot]
                self._free.appendleft(slot)

    def _share_again(self, slot: int) -> None:
        share_again(*self._place_of(slot))
        self._unshared.discard(slot)
        self._advise(slot * self.layout.slot_bytes, self.layout.slot_bytes)

    def _advise(self, start: int, num_bytes: int) -> None:
        if self._has_huge_pages:
            with contextlib.suppress(OSError):  # optional: a kernel may not offer them for shared memory
                self._map.madvise(mmap.MADV_HUGEPAGE, start, num_bytes)


_owned: "weakref.WeakSet[SlotRing]" = weakref.WeakSet()
"""The rings of this process that lend slots."""


_this_thread = threading.local()


@contextlib.contextmanager
def without_lent() -> Iterator[None]:
    """Let this thread fork a child that does not read the batches that the user holds."""
    _this_thread.needs_no_batches = True
    try:
        yield
    finally:
        _this_thread.needs_no_batches = False


def _before_fork() -> None:
    if not getattr(_this_thread, "needs_no_batches", False):
        for ring in list(_owned):
            ring.keep_lent()


def _in_child() -> None:
    """Let the child close rings of its parent. Another thread, which the child lacks, may have held their locks."""
    for ring in list(_owned):
        ring._changing = threading.RLock()  # noqa: SLF001  the same module
    _owned.clear()


if hasattr(os, "register_at_fork"):  # missing on Windows
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


class _Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A lent slot. NumPy shortens a view's chain of bases only within one type, so every view keeps its lease alive."""


class _Lent(weakref.ref[_Lease]):
    """A weak reference to a lease. Its callback is not Python code, in which Python would drop a Ctrl-C of the user."""

    __slots__ = ("slot",)

    slot: int


class _PackedArray(np.ndarray[tuple[int, ...], np.dtype[Any]]):
    """The samples of a packed field."""


def blank(arrays: SlotArrays, sample: int) -> None:
    """Set a failed sample to zero, so that a batch does not depend on what its slot held before."""
    for array in arrays.values():
        if isinstance(array, _PackedArray):
            continue  # where the sample lies depends on the batch
        if isinstance(array, RaggedArray):
            if not array.field.is_input:
                array.begin(sample, sample + 1)
        else:
            array[sample] = np.zeros((), array.dtype)


def _arrays(layout: SlotLayout, buffer: Any, base_bytes: int, num_samples: int) -> SlotArrays:
    arrays: SlotArrays = {}
    for field in layout.fields:
        parts = layout.parts[field.name]
        if isinstance(field, Field):
            array = _array(buffer, base_bytes, parts[0])[:num_samples]
            arrays[field.name] = array.view(_PackedArray) if field.is_packed else array
        else:
            starts, shapes, area = (_array(buffer, base_bytes, part) for part in parts)
            arrays[field.name] = RaggedArray(field, starts=starts[:num_samples], shapes=shapes[:num_samples], area=area)
    return arrays


def _array(buffer: Any, base_bytes: int, part: Part) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ndarray(part.shape, part.dtype, buffer, base_bytes + part.offset_bytes)
