"""The board: a shared-memory queue of chunks. Each worker takes chunks from it and records its progress on it.

The parent posts chunks. Any free worker takes the next one without the parent's help, so prefetching continues while
the parent is busy with a training step. A worker may be killed at any instruction, because:

- A worker takes a chunk only while it holds a record lock on the board's file. The kernel releases the lock when its
  holder dies.
- While it holds the lock, a worker first records the chunk in its own row, then removes it from the queue. A worker
  killed in between leaves the chunk in both places, which the parent can detect. A chunk is never in neither place.
- A worker that finds the queues empty marks its row as sleeping, checks the queues once more, and then blocks reading
  from a pipe. The parent writes one byte into the pipe for each sleeping worker that it has a chunk for, so busy
  workers cost it no system call. If a worker dies after reading a byte, the parent writes another; an extra byte only
  causes a spurious wake-up. A `Fence` separates the worker's mark from its last check, and the parent's post from its
  check for sleeping workers. Without these fences each side could miss the other's write, on every processor.

There are two queues. `urgent` holds chunks that are retried after a death. In the plain queue such a chunk would wait
behind later batches, and delay its own.

A worker that reads ahead from slow storage reserves the chunks that it will fill next. They stay in the queue, so a
death needs no cleanup. Chunks of batches that have no slot yet are announced, so that workers can reserve them too.
Other workers take reserved chunks last, but do take them rather than be idle: at once if their reads have not begun,
which each worker records in its row, and else after 20 ms. A chunk taken from the middle of the queue leaves a 0 in
place of its serial number.

A worker that is about to allocate much memory waits for its turn: a second record lock on the board's file, which one
worker at a time holds until its next sample. A worker that waits for its turn says so in its row, so that the parent
does not consider it stuck.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import termios
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mpload.transport.chunks import Chunk
from mpload.transport.fence import Fence
from mpload.transport.kernel import trim_heap
from mpload.transport.limits import shared_memory
from mpload.transport.queue import ENTRY_CELLS, HEADER_CELLS, READER, TASK, ChunkQueue

__all__ = ["MAX_WORKERS", "BoardFds", "ParentBoard", "WorkerBoard", "WorkerRow"]

MAX_WORKERS = 256

# The board is an array of int64 cells: a header, one row per worker, and the entries of both queues.
_CELL_BYTES = 8
_GENERATION = 0
_ROWS = HEADER_CELLS
_ROW_CELLS = 8
_SERIAL, _SAMPLE, _SLEEPS, _WAITS, _STARTED, _BEGUN = 0, 1, 2, 3, 4, 5  # cells of a row
_ENTRIES = _ROWS + MAX_WORKERS * _ROW_CELLS
_URGENT, _PLAIN = 0, 1
_URGENT_ENTRIES = 256

_IDLE, _OPENING, _STOPPED = 0, -1, -2  # states of a row, in place of a chunk's serial number
_STOP = -3  # entry that tells a worker to exit, in place of a chunk's serial number
_NO_SAMPLE = -1
_TAKING, _TURN = 0, 1  # bytes of the file on which the two record locks are held
_GRACE_MS = 20
"""How long a worker without work leaves a chunk to another one that has begun to read it."""


def _map(fd: int, num_plain_entries: int) -> mmap.mmap:
    return mmap.mmap(fd, _num_cells(num_plain_entries) * _CELL_BYTES)


def _cells_of(
    shared: mmap.mmap, fence: Fence, num_plain_entries: int
) -> "tuple[memoryview[int], ChunkQueue, ChunkQueue]":
    cells = memoryview(shared).cast("q")
    plain_first = _ENTRIES + _URGENT_ENTRIES * ENTRY_CELLS
    urgent = ChunkQueue(cells, fence, number=_URGENT, first_cell=_ENTRIES, num_entries=_URGENT_ENTRIES)
    plain = ChunkQueue(cells, fence, number=_PLAIN, first_cell=plain_first, num_entries=num_plain_entries)
    return cells, urgent, plain


def _num_cells(num_plain_entries: int) -> int:
    return _ENTRIES + (_URGENT_ENTRIES + num_plain_entries) * ENTRY_CELLS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """The state that a worker records on the board."""

    serial: int
    """Serial number of the chunk that the worker is filling; 0 or negative while it fills none."""
    sample: int | None
    """Position in the batch of the sample that it is making."""
    waits_for_turn: bool = False
    """Whether it waits until another worker has finished with much memory."""
    num_started: int = 0
    """Samples that it has begun. One that is begun anew, with a substitute, counts again."""

    @property
    def is_filling(self) -> bool:
        """Whether it is filling a chunk."""
        return self.serial > 0

    @property
    def is_opening(self) -> bool:
        """Whether it is starting: `Work.open` has not returned yet."""
        return self.serial == _OPENING

    @property
    def has_stopped(self) -> bool:
        """Whether it exits because the parent asked it to."""
        return self.serial == _STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFds:
    """What another process needs to map a board and use it."""

    board: int
    tokens: int
    num_plain_entries: int


class ParentBoard:
    """The owner's side: posts chunks and reads the workers' progress."""

    def __init__(self, *, num_plain_entries: int) -> None:
        with contextlib.ExitStack() as made:
            self._fd = shared_memory("mpload-board", _num_cells(num_plain_entries) * _CELL_BYTES)
            made.callback(os.close, self._fd)
            self._map = _map(self._fd, num_plain_entries)
            made.callback(self._map.close)
            self._token_reader, self._token_writer = os.pipe2(os.O_CLOEXEC)
            made.pop_all()
        os.set_blocking(self._token_writer, False)
        self._fence = Fence()
        self._cells, self._urgent, self._plain = _cells_of(self._map, self._fence, num_plain_entries)
        self._num_rows = 0
        self.fds = BoardFds(board=self._fd, tokens=self._token_reader, num_plain_entries=num_plain_entries)

    def post(self, serial: int, chunk: Chunk, *, urgent: bool = False) -> bool:
        """Queue `chunk` for the next free worker; return False if the queue is full."""
        return (self._urgent if urgent else self._plain).post(self._entry_of(serial, chunk))

    def announce(self, chunks: Mapping[int, Chunk], *, num_workers: int) -> bool:
        """Let workers reserve chunks, by serial number, that are posted later; return False if there is no room.

        They must be posted in this order, before any other chunk that is not urgent. `cancel` withdraws them.
        """
        entries = [self._entry_of(serial, chunk) for serial, chunk in chunks.items()]
        return self._plain.announce(entries, num_readers=num_workers)

    def _entry_of(self, serial: int, chunk: Chunk) -> tuple[int, ...]:
        where = (self._cells[_GENERATION], chunk.slot, chunk.first, chunk.last, chunk.layout)
        return (serial, *where, len(chunk.task), 0, *chunk.task)

    def post_stop(self) -> bool:
        """Ask one worker, the next one that is free, to exit; return False if the queue is full."""
        return self._urgent.post((_STOP, *[0] * (TASK - 1)))

    def wake(self, num_workers: int) -> None:
        """Wake up to `num_workers` sleeping workers. Call it after posting, with the number of chunks posted."""
        self._fence()  # a worker that did not see the post had marked itself as sleeping before this
        num_asleep = sum(self._cells[_ROWS + _SLEEPS : _ROWS + self._num_rows * _ROW_CELLS : _ROW_CELLS])
        if not num_asleep:
            return
        unread = array("i", [0])
        fcntl.ioctl(self._token_reader, termios.FIONREAD, unread)
        if (num_bytes := min(num_workers, num_asleep - unread[0])) > 0:
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes every worker anyway
                os.write(self._token_writer, bytes(num_bytes))

    def cancel(self) -> None:
        """Cancel all chunks posted so far: workers answer them without filling them. Withdraw the announced ones."""
        self._cells[_GENERATION] += 1
        self._plain.withdraw()

    @property
    def has_untaken(self) -> bool:
        """Whether any posted chunk still waits for a worker."""
        return not (self._urgent.is_empty and self._plain.is_empty)

    def queued_serials(self) -> set[int]:
        """Return the serial numbers of all queued chunks. Rows read afterwards show who has taken any other chunk."""
        serials = {*self._urgent.serials(), *self._plain.serials()}
        self._fence()
        return serials

    def row(self, worker: int) -> WorkerRow:
        """Return the recorded state of worker number `worker`."""
        place = _ROWS + worker * _ROW_CELLS
        sample = self._cells[place + _SAMPLE]
        return WorkerRow(
            serial=self._cells[place + _SERIAL],
            sample=None if sample == _NO_SAMPLE else sample,
            waits_for_turn=bool(self._cells[place + _WAITS]),
            num_started=self._cells[place + _STARTED],
        )

    def prepare_row(self, worker: int) -> None:
        """Reset the row of a worker that is about to start."""
        place = _ROWS + worker * _ROW_CELLS
        self._cells[place + _SLEEPS] = self._cells[place + _WAITS] = self._cells[place + _BEGUN] = 0
        self._cells[place + _SAMPLE] = _NO_SAMPLE
        self._cells[place + _SERIAL] = _OPENING
        self._num_rows = max(self._num_rows, worker + 1)

    def close(self) -> None:
        """Release the board. Workers exit when they next ask for a chunk. May be called again."""
        if self._fd >= 0:
            for fd in (self._fd, self._token_reader, self._token_writer):
                os.close(fd)
            self._fd = -1
            self._cells.release()
            self._map.close()


class WorkerBoard:
    """A worker's side: takes chunks and records its progress. Each object serves one worker process."""

    def __init__(self, fds: BoardFds) -> None:
        self._fd = fds.board
        self._token_reader = fds.tokens
        self._fence = Fence()
        self._cells, self._urgent, self._plain = _cells_of(
            _map(fds.board, fds.num_plain_entries), self._fence, fds.num_plain_entries
        )
        self._row = _ROWS
        self._reader = 1
        self._has_turn = False
        self._num_started = 0  # samples and chunks so far
        self._reserved: list[int] = []  # serial numbers
        self._pid = 0

    def use_row(self, worker: int) -> None:
        """Record progress in row `worker` from now on."""
        self._pid = os.getpid()
        self._row = _ROWS + worker * _ROW_CELLS
        self._reader = worker + 1

    @property
    def sample(self) -> "memoryview[int]":
        """The cell that `at` sets."""
        return self._cells[self._row + _SAMPLE : self._row + _SAMPLE + 1]

    def take(self) -> tuple[int, "Chunk | None"] | None:
        """Wait for a chunk and return its serial number and the chunk, or None for the chunk if it was cancelled.

        Return None alone if the worker is to exit, because it was asked to or because the pool is closed.
        """
        self._cells[self._row + _SERIAL] = _IDLE
        self._num_started += 1  # first: a thread that acquires the turn too late for `end_turn` sees the new number
        self.end_turn()
        num_left = _GRACE_MS
        while True:
            is_idle = self._urgent.is_empty and self._plain.is_empty
            self._cells[self._row + _SLEEPS] = is_idle  # set before the last check: later posts send a byte
            self._fence()
            entry = self._take_with_lock(takes_begun=not num_left)
            if entry is None and is_idle and not os.read(self._token_reader, 1):
                return None
            if entry is None and num_left and self._urgent.is_empty and not self._plain.is_empty:
                time.sleep(0.001)
                num_left -= 1
            self._cells[self._row + _SLEEPS] = 0
            if entry is not None:
                break
        if entry[0] == _STOP:
            return None
        return entry[0], _chunk_of(entry) if entry[1] == self._cells[_GENERATION] else None

    def reserve(self, num_chunks: int) -> list[Chunk]:
        """Reserve and return, in order, up to `num_chunks` chunks that this worker will most likely take next."""
        self._lock(_TAKING)
        try:
            entries = self._plain.reserve(self._reader, generation=self._cells[_GENERATION], num_entries=num_chunks)
        finally:
            self._unlock(_TAKING)
        self._reserved = [entry[0] for entry in entries]
        return [_chunk_of(entry) for entry in entries]

    def begin(self, num_chunks: int) -> None:
        """Record that so many of the chunks that `reserve` last returned are being read. Others leave them alone."""
        if begun := self._reserved[:num_chunks]:
            self._cells[self._row + _BEGUN] = begun[-1]

    def _take_with_lock(self, *, takes_begun: bool) -> list[int] | None:
        self._lock(_TAKING)
        try:
            return self._take(may_take=_always if takes_begun else self._is_free)
        finally:
            self._unlock(_TAKING)

    def _is_free(self, reader: int, serial: int) -> bool:
        """Return whether a reader has not begun to read a chunk that it has reserved."""
        return self._cells[_ROWS + (reader - 1) * _ROW_CELLS + _BEGUN] < serial

    def _take(self, *, may_take: Callable[[int, int], bool]) -> list[int] | None:
        for queue in (self._urgent, self._plain):
            position = queue.first_for(self._reader, generation=self._cells[_GENERATION], may_take=may_take)
            if position is not None:
                break
        else:
            return None
        entry = queue.peek(position)
        # The order keeps a chunk from being lost: it enters this row before it leaves the queue.
        self._cells[self._row + _SAMPLE] = _NO_SAMPLE
        self._cells[self._row + _SERIAL] = entry[0] if entry[0] != _STOP else _STOPPED
        self._fence()
        queue.drop(position)
        if entry[0] == _STOP:
            self._plain.release(self._reader, generation=self._cells[_GENERATION])
        return entry

    def at(self, sample: int) -> None:
        """Record that sample `sample` of the batch is next."""
        self._cells[self._row + _SAMPLE] = sample
        self._num_started += 1
        self._cells[self._row + _STARTED] = self._num_started
        if self._has_turn:
            self.end_turn()

    def wait_for_turn(self) -> None:
        """Wait for this worker's turn, and keep it until its next sample or chunk. One worker has its turn at a time.

        In a process that user code has forked this does nothing, because the parent does not watch that process.
        """
        if self._has_turn or os.getpid() != self._pid:
            return
        num_started = self._num_started
        self._cells[self._row + _WAITS] = 1
        try:
            self._lock(_TURN)  # no time limit: the parent watches the holder, whose death releases the lock
            self._has_turn = True
        except BaseException as error:  # a signal handler may raise at any instruction
            self._has_turn = False
            self._unlock(_TURN)
            # EDEADLK: user code here holds a record lock that the worker with the turn is waiting for.
            if not isinstance(error, OSError) or error.errno != errno.EDEADLK:
                raise
        finally:
            self._cells[self._row + _WAITS] = 0
        if self._num_started != num_started or self._cells[self._row + _SERIAL] <= 0:
            self.end_turn()  # called by a user's thread that has outlived its sample

    def end_turn(self) -> None:
        """End this worker's turn, if it has it, and give the memory of its large sample back."""
        if self._has_turn:
            trim_heap()
            self._unlock(_TURN)
            self._has_turn = False

    def _lock(self, byte: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)


def _always(_reader: int, _serial: int) -> bool:
    return True


def _chunk_of(entry: Sequence[int]) -> Chunk:
    _, _, slot, first, last, layout, num_numbers = entry[:READER]
    task = tuple(entry[TASK : TASK + num_numbers])
    return Chunk(batch=0, slot=slot, first=first, last=last, task=task, layout=layout)
