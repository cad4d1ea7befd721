"""Queues of chunks in shared memory: the parent posts at the tail, workers take at the head, and reserve in between.

The parent takes no lock, else a worker that is stopped with it would stop the parent. So order is all that keeps a
worker from what is half written, and each `Fence` here has one on the other side:

    the parent posts      writes the entry          fence   moves the tail
    a worker takes        reads the tail            fence   reads the entry, and the generation
    a worker takes        writes its row            fence   takes the entry out
    the parent looks      reads the entries         fence   reads the rows

What workers do to a queue is ordered among them by the lock under which they do it. The parent writes over an entry
when it has seen the head move past it: a store waits for the comparison that it depends on, on every processor.

Reservations cost a look at each entry once, however many wait: all entries before the cell `fresh` are taken or
reserved, and each worker remembers its own. `fresh` moves after an entry is reserved, and back before one is given up,
so that a worker killed in between leaves it too far back at worst.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from mpload.transport.fence import Fence

__all__ = ["ENTRY_CELLS", "HEADER_CELLS", "MAX_TASK_NUMBERS", "READER", "TASK", "ChunkQueue"]

MAX_TASK_NUMBERS = 10
"""Integers that may describe a batch."""

HEADER_CELLS = 40
_HEADS, _TAILS = (8, 16), (24, 32)  # of the urgent and the plain queue, each in a cache line of its own
_FRESH, _FRESH_GENERATION = 1, 2  # behind a head: where to look for what nobody has reserved, and when that was right

_SERIAL, _GENERATION = 0, 1  # of an entry
READER = 6
"""Cell of an entry: the number of the worker that reads ahead for it, plus one; 0: nobody."""
TASK = 7
"""Cell of an entry: the first of the numbers that describe the batch."""
ENTRY_CELLS = TASK + MAX_TASK_NUMBERS


class ChunkQueue:
    """One process's side of a queue. An entry that was taken from the middle has 0 in place of its serial number."""

    def __init__(
        self, cells: "memoryview[int]", fence: Fence, *, number: int, first_cell: int, num_entries: int
    ) -> None:
        self._cells = cells
        self._fence = fence
        self._head, self._tail = _HEADS[number], _TAILS[number]
        self._fresh, self._fresh_generation = self._head + _FRESH, self._head + _FRESH_GENERATION
        self._first = first_cell
        self._num_entries = num_entries
        self._end = 0  # the tail, up to which a worker may read entries: it was read before a fence
        self._mine: deque[tuple[int, int]] | None = None  # positions and serial numbers that this process has reserved

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return self._cells[self._tail] <= self._cells[self._head]

    def post(self, entry: Sequence[int]) -> bool:
        """Put `entry` at the tail; return False where the queue is full until a worker takes something."""
        tail = self._cells[self._tail]
        if tail - self._cells[self._head] >= self._num_entries:
            return False
        place = self._place(tail)
        self._cells[place : place + len(entry)] = memoryview(array("q", entry))
        self._fence()
        self._cells[self._tail] = tail + 1
        return True

    def serials(self) -> Iterator[int]:
        """Yield the serial numbers of what waits."""
        for position in range(self._cells[self._head], self._cells[self._tail]):
            if serial := self._cells[self._place(position)]:
                yield serial

    def first_for(self, reader: int, *, generation: int) -> int | None:
        """Return the position of the first entry that no other than `reader` reads ahead for, else of the first."""
        if not self._begin(generation):
            return None
        mine = self._own(reader)
        while mine and self._cells[self._place(mine[0][0])] != mine[0][1]:  # taken, by others at times
            mine.popleft()
        end = min(self._end, mine[0][0]) if mine else self._end
        fresh = self._cells[self._fresh]
        while fresh < end and not self._is_anybodys(fresh, generation):
            fresh += 1
        self._cells[self._fresh] = fresh
        if fresh < end:
            return fresh
        return mine[0][0] if mine else self._cells[self._head]

    def peek(self, position: int) -> list[int]:
        """Return the entry at `position`."""
        place = self._place(position)
        return self._cells[place : place + ENTRY_CELLS].tolist()

    def drop(self, position: int) -> None:
        """Take out the entry at `position`."""
        self._cells[self._place(position)] = 0
        self._skip_taken()

    def reserve(self, reader: int, *, generation: int, num_entries: int) -> list[list[int]]:
        """Return the first `num_entries` entries that `reader` reads ahead for, with new ones where they are fewer."""
        if not self._begin(generation):
            return []
        cells, mine, reserved = self._cells, deque[tuple[int, int]](), list[int]()
        for position, serial in self._own(reader):
            place = self._place(position)
            if cells[place] == serial:  # nobody else has taken it
                mine.append((position, serial))
                if cells[place + _GENERATION] == generation:
                    reserved.append(position)
        position, is_behind = cells[self._fresh], False
        while position < self._end and len(reserved) < num_entries:
            if self._is_anybodys(position, generation):
                place = self._place(position)
                if cells[place + _GENERATION] == generation:
                    cells[place + READER] = reader
                    mine.append((position, cells[place]))
                    reserved.append(position)
                else:
                    is_behind = True  # it was cancelled: whoever comes takes it
            position += 1
            if not is_behind:
                cells[self._fresh] = position
        self._mine = mine
        return [self.peek(position) for position in reserved[:num_entries]]

    def free(self, reader: int, *, generation: int) -> None:
        """Reserve nothing for `reader` any more."""
        self._begin(generation)
        for position, serial in self._own(reader):
            if self._cells[self._place(position)] == serial:
                self._cells[self._fresh] = min(self._cells[self._fresh], position)
                self._cells[self._place(position) + READER] = 0
        self._mine = None

    def _begin(self, generation: int) -> bool:
        """Find the entries that may be read now; return whether there are any."""
        self._end = self._cells[self._tail]
        self._fence()
        self._skip_taken()
        head = self._cells[self._head]
        if head >= self._end:
            return False
        if self._cells[self._fresh_generation] != generation:  # what was reserved before is anybody's
            self._cells[self._fresh] = head
            self._cells[self._fresh_generation] = generation
        elif self._cells[self._fresh] < head:
            self._cells[self._fresh] = head
        return True

    def _own(self, reader: int) -> deque[tuple[int, int]]:
        """Return what is reserved for `reader`. A new worker looks once what one of its number has left."""
        if self._mine is None:
            positions = range(self._cells[self._head], self._end)
            entries = ((position, self._place(position)) for position in positions)
            self._mine = deque(
                (position, self._cells[place])
                for position, place in entries
                if self._cells[place] and self._cells[place + READER] == reader
            )
        return self._mine

    def _is_anybodys(self, position: int, generation: int) -> bool:
        place = self._place(position)
        cells = self._cells
        return cells[place] != 0 and (cells[place + READER] == 0 or cells[place + _GENERATION] != generation)

    def _skip_taken(self) -> None:
        head = self._cells[self._head]
        while head < self._end and not self._cells[self._place(head)]:
            head += 1
        self._cells[self._head] = head

    def _place(self, position: int) -> int:
        return self._first + position % self._num_entries * ENTRY_CELLS
