"""Queues of chunks in shared memory. The parent posts at the tail; workers take at the head and reserve in between.

The parent may also announce chunks behind the tail, whose slots are not known yet. Workers reserve those too, and take
them once they are posted.

The parent takes no lock: a worker that was stopped while holding it would block the parent. Only the order of accesses
keeps a worker from reading a half-written entry. Each `Fence` here has a counterpart on the other side:

    the parent posts      writes the entry          fence   advances the tail
    the parent announces  writes the entry          fence   advances the end
    a worker takes        reads the tail            fence   reads the entry and the generation
    a worker reserves     reads the tail and end    fence   reads the entry and the generation
    a worker takes        writes its row            fence   removes the entry
    the parent checks     reads the entries         fence   reads the rows

Workers change a queue only while they hold the lock, which orders their accesses among themselves. The parent reuses an
entry only after it has seen the head move past it. That needs no fence, because on every processor a store waits for
the branch that it depends on.

Each entry is examined for a reservation once, however many entries wait: all entries before position `unreserved` are
taken or reserved, and each worker remembers its own reservations. `unreserved` advances after an entry is reserved, and
moves back before a reservation is released, so a worker killed in between leaves it too far back at worst.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from mpload.transport.fence import Fence

__all__ = ["ENTRY_CELLS", "HEADER_CELLS", "MAX_TASK_NUMBERS", "READER", "TASK", "ChunkQueue"]

MAX_TASK_NUMBERS = 10
"""Maximum number of integers that describe a batch."""

HEADER_CELLS = 40
_HEADS, _TAILS = (8, 16), (24, 32)  # of the urgent and the plain queue; each cell has a cache line of its own
# Cells after a head: the first position that may hold an unreserved entry, and the generation for which that holds.
_UNRESERVED, _UNRESERVED_GENERATION = 1, 2
# Cells after a tail: the position after the last announced entry, unless the tail has passed it, and the number of
# workers.
_END, _NUM_READERS = 1, 2

_SERIAL, _GENERATION, _SLOT, _LAYOUT = 0, 1, 2, 5  # cells of an entry
READER = 7
"""Cell of an entry: the number of the worker that reserved it, plus one, or 0 if no worker has."""
TASK = 8
"""Cell of an entry: the first of the numbers that describe the batch."""
ENTRY_CELLS = TASK + MAX_TASK_NUMBERS


class ChunkQueue:
    """One process's side of a queue. An entry taken from the middle has 0 for its serial number."""

    def __init__(
        self, cells: "memoryview[int]", fence: Fence, *, number: int, first_cell: int, num_entries: int
    ) -> None:
        self._cells = cells
        self._fence = fence
        self._head, self._tail = _HEADS[number], _TAILS[number]
        self._unreserved, self._unreserved_generation = self._head + _UNRESERVED, self._head + _UNRESERVED_GENERATION
        self._first = first_cell
        self._num_entries = num_entries
        self._readable_end = 0  # the tail as read before the latest fence: a worker may take entries up to it
        self._announced_end = 0  # the same for entries that a worker may reserve
        self._reserved: deque[tuple[int, int]] | None = None  # this process's: position and serial number

    @property
    def is_empty(self) -> bool:
        """Whether no entry is left to take."""
        return self._cells[self._tail] <= self._cells[self._head]

    def post(self, entry: Sequence[int]) -> bool:
        """Append `entry` at the tail; return False if the queue is full.

        If entries are announced, it must be the first of these. Only its slot and layout may have changed.
        """
        tail = self._cells[self._tail]
        if self._end_of_announced > tail:
            cell = self._cell_of(tail)
            self._cells[cell + _SLOT], self._cells[cell + _LAYOUT] = entry[_SLOT], entry[_LAYOUT]
        elif not self._write(tail, entry):
            return False
        self._fence()
        self._cells[self._tail] = tail + 1
        return True

    def announce(self, entries: Sequence[Sequence[int]], *, num_readers: int) -> bool:
        """Append `entries` behind the tail; return False if there is no room for all of them.

        Each of `num_readers` workers reserves about every `num_readers`-th of them, so that all have work at any time.
        """
        end = self._end_of_announced
        if end + len(entries) - self._cells[self._head] > self._num_entries:
            return False
        for position, entry in enumerate(entries, end):
            self._write(position, entry)
        self._cells[self._tail + _NUM_READERS] = num_readers
        self._fence()
        self._cells[self._tail + _END] = end + len(entries)
        return True

    def withdraw(self) -> None:
        """Remove the entries that are announced and not posted."""
        end = self._end_of_announced
        for position in range(self._cells[self._tail], end):
            self._cells[self._cell_of(position)] = 0
        self._fence()
        self._cells[self._tail] = end

    @property
    def _end_of_announced(self) -> int:
        return max(self._cells[self._tail], self._cells[self._tail + _END])

    def _write(self, position: int, entry: Sequence[int]) -> bool:
        if position - self._cells[self._head] >= self._num_entries:
            return False
        cell = self._cell_of(position)
        self._cells[cell : cell + len(entry)] = memoryview(array("q", entry))
        return True

    def serials(self) -> Iterator[int]:
        """Yield the serial numbers of all waiting entries."""
        for position in range(self._cells[self._head], self._cells[self._tail]):
            if serial := self._cells[self._cell_of(position)]:
                yield serial

    def first_for(
        self, reader: int, *, generation: int, may_take: Callable[[int, int], bool] = lambda _reader, _serial: True
    ) -> int | None:
        """Return the position of the first entry that no other reader has reserved, or else of one that has.

        `may_take` tells whether an entry may be taken from the reader that has reserved it, given the reader and the
        serial number. None means that no entry may be taken.
        """
        self._begin(generation)
        head = self._cells[self._head]
        if head >= self._readable_end:
            return None
        mine = self._reservations_of(reader)
        while mine and self._cells[self._cell_of(mine[0][0])] != mine[0][1]:  # it was taken, by this worker or another
            mine.popleft()
        end = min(self._readable_end, mine[0][0]) if mine else self._readable_end
        unreserved = self._cells[self._unreserved]
        while unreserved < end and not self._is_unreserved(unreserved, generation):
            unreserved += 1
        self._cells[self._unreserved] = unreserved
        if unreserved < end:
            return unreserved
        if mine and mine[0][0] < self._readable_end:
            return mine[0][0]
        cells = ((position, self._cell_of(position)) for position in range(head, self._readable_end))
        serials = ((position, self._cells[cell + READER], self._cells[cell]) for position, cell in cells)
        return next((position for position, other, serial in serials if serial and may_take(other, serial)), None)

    def peek(self, position: int) -> list[int]:
        """Return the entry at `position`."""
        cell = self._cell_of(position)
        return self._cells[cell : cell + ENTRY_CELLS].tolist()

    def drop(self, position: int) -> None:
        """Remove the entry at `position`."""
        self._cells[self._cell_of(position)] = 0
        self._skip_taken()

    def reserve(self, reader: int, *, generation: int, num_entries: int) -> list[list[int]]:
        """Return the first `num_entries` entries reserved for `reader`, and reserve more if there are fewer."""
        self._begin(generation)
        cells, mine, reserved = self._cells, deque[tuple[int, int]](), list[int]()
        for position, serial in self._reservations_of(reader):
            cell = self._cell_of(position)
            if cells[cell] == serial:  # no other worker has taken it
                mine.append((position, serial))
                if cells[cell + _GENERATION] == generation:
                    reserved.append(position)
        position, is_held_back = cells[self._unreserved], False
        while position < self._readable_end and len(reserved) < num_entries:
            if self._is_unreserved(position, generation):
                cell = self._cell_of(position)
                if cells[cell + _GENERATION] == generation:
                    cells[cell + READER] = reader
                    mine.append((position, cells[cell]))
                    reserved.append(position)
                else:
                    is_held_back = True  # it is cancelled, and stays for any worker to take
            position += 1
            if not is_held_back:
                cells[self._unreserved] = position
        if len(reserved) < num_entries and self._announced_end > self._readable_end:
            announced = self._reserve_announced(reader, last=max(mine)[0] if mine else None)
            for position in islice(announced, num_entries - len(reserved)):
                mine.append((position, cells[self._cell_of(position)]))
                reserved.append(position)
        # An entry that another reader has released may lie before those that this reader had reserved.
        self._reserved = deque(sorted(mine))
        return [self.peek(position) for position in sorted(reserved)[:num_entries]]

    def _reserve_announced(self, reader: int, *, last: int | None) -> Iterator[int]:
        """Reserve announced entries after position `last`, at such distances that the other workers get as many."""
        num_readers = max(1, self._cells[self._tail + _NUM_READERS])
        first = self._readable_end + (reader - 1) % num_readers
        position = first if last is None else max(self._readable_end, last + num_readers)
        while position < self._announced_end:
            cell = self._cell_of(position)
            if self._cells[cell] and not self._cells[cell + READER]:
                self._cells[cell + READER] = reader
                yield position
                position += num_readers
            else:
                position += 1

    def release(self, reader: int, *, generation: int) -> None:
        """Release all reservations of `reader`."""
        self._begin(generation)
        for position, serial in self._reservations_of(reader):
            if self._cells[self._cell_of(position)] == serial:
                self._cells[self._unreserved] = min(self._cells[self._unreserved], position)
                self._cells[self._cell_of(position) + READER] = 0
        self._reserved = None

    def _begin(self, generation: int) -> None:
        """Find the entries that may be read now."""
        self._readable_end = self._cells[self._tail]
        self._announced_end = max(self._readable_end, self._cells[self._tail + _END])
        self._fence()
        self._skip_taken()
        head = self._cells[self._head]
        if self._cells[self._unreserved_generation] != generation:  # older reservations are void
            self._cells[self._unreserved] = head
            self._cells[self._unreserved_generation] = generation
        elif self._cells[self._unreserved] < head:
            self._cells[self._unreserved] = head

    def _reservations_of(self, reader: int) -> deque[tuple[int, int]]:
        """Return the reservations of `reader`. A new worker inherits those of the dead worker with its number."""
        if self._reserved is None:
            positions = range(self._cells[self._head], self._announced_end)
            entries = ((position, self._cell_of(position)) for position in positions)
            self._reserved = deque(
                (position, self._cells[cell])
                for position, cell in entries
                if self._cells[cell] and self._cells[cell + READER] == reader
            )
        return self._reserved

    def _is_unreserved(self, position: int, generation: int) -> bool:
        cell = self._cell_of(position)
        cells = self._cells
        return cells[cell] != 0 and (cells[cell + READER] == 0 or cells[cell + _GENERATION] != generation)

    def _skip_taken(self) -> None:
        head = self._cells[self._head]
        while head < self._readable_end and not self._cells[self._cell_of(head)]:
            head += 1
        self._cells[self._head] = head

    def _cell_of(self, position: int) -> int:
        return self._first + position % self._num_entries * ENTRY_CELLS
