"""The board: shared memory from which workers take chunks, and on which each says where it is.

The parent posts chunks; whichever worker is free takes the next one without the parent's help, so prefetching goes on
while the parent is busy with a training step. What makes this safe to kill at any instruction:

- Taking is guarded by a record lock on the board's file, which the kernel drops when its holder dies.
- Under the lock a worker first writes what it takes into its own row, then moves the queue on. A worker killed in
  between leaves a chunk that is both in a row and in the queue, which the parent can see. None is ever in neither.
- A worker that finds nothing says in its row that it sleeps, looks once more, and then reads from a pipe, into which
  the parent writes a byte for each sleeper that it has work for: busy workers cost it no system call. A byte that dies
  with its reader is put back by the parent; one too many only wakes a worker for nothing. Between saying and looking,
  and between posting and looking who sleeps, is a `Fence`: else, on every processor, each could miss the other.

There are two queues: `urgent` for what is done again after a death, else a batch would wait behind the ones after it.

A worker that reads ahead from slow storage reserves the chunks that it will fill next. They stay in the queue, and so
need nothing after a death: other workers take them last, but they do take them rather than be idle. A chunk that is
taken out of the middle of the queue leaves a 0 in place of its serial number.

A worker that is about to take much memory waits for its turn: a second record lock on the board's file, which one
worker at a time holds until its next sample. A worker that waits says so in its row, and is not stuck.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import termios
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from mpload.transport.chunks import Chunk
from mpload.transport.fence import Fence
from mpload.transport.limits import shared_memory
from mpload.transport.queue import ENTRY_CELLS, HEADER_CELLS, READER, TASK, ChunkQueue

__all__ = ["MAX_WORKERS", "BoardFds", "ParentBoard", "WorkerBoard", "WorkerRow"]

MAX_WORKERS = 256

# The board is an array of int64 cells: a header, a row a worker, and the entries of two queues.
_CELL_BYTES = 8
_GENERATION = 0
_ROWS = HEADER_CELLS
_ROW_CELLS = 8
_SERIAL, _SAMPLE, _SLEEPS, _WAITS = 0, 1, 2, 3  # of a row
_ENTRIES = _ROWS + MAX_WORKERS * _ROW_CELLS
_URGENT, _PLAIN = 0, 1
_URGENT_ENTRIES = 256

_IDLE, _OPENING, _STOPPED = 0, -1, -2  # in place of a chunk's serial number
_STOP = -3
_NO_SAMPLE = -1
_TAKING, _TURN = 0, 1  # bytes of the file: one record lock each


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
    """What a worker says about itself."""

    serial: int
    """Serial number of the chunk that it is filling; not positive while it fills none."""
    sample: int | None
    """The sample that it is at, counted in the batch."""
    waits_for_turn: bool = False
    """Whether it waits for another worker that takes much memory."""

    @property
    def is_filling(self) -> bool:
        """Whether it has a chunk."""
        return self.serial > 0

    @property
    def is_opening(self) -> bool:
        """Whether it has not yet opened what it works with."""
        return self.serial == _OPENING

    @property
    def has_stopped(self) -> bool:
        """Whether it leaves because it was told to."""
        return self.serial == _STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFds:
    """What another process needs to take part in a board."""

    board: int
    tokens: int
    num_plain_entries: int


class ParentBoard:
    """The owner's side: posts chunks and reads where workers are."""

    def __init__(self, *, num_plain_entries: int) -> None:
        with contextlib.ExitStack() as made:
            self._fd = shared_memory("mpload-board", _num_cells(num_plain_entries) * _CELL_BYTES)
            made.callback(os.close, self._fd)
            self._map = _map(self._fd, num_plain_entries)
            self._tokens, self._posted = os.pipe2(os.O_CLOEXEC)
            made.pop_all()
        os.set_blocking(self._posted, False)
        self._fence = Fence()
        self._cells, self._urgent, self._plain = _cells_of(self._map, self._fence, num_plain_entries)
        self._num_rows = 0
        self.fds = BoardFds(board=self._fd, tokens=self._tokens, num_plain_entries=num_plain_entries)

    def post(self, serial: int, chunk: Chunk, *, urgent: bool = False) -> bool:
        """Hand out `chunk` to whichever worker comes first; return False where the queue is full."""
        queue = self._urgent if urgent else self._plain
        where = (self._cells[_GENERATION], chunk.slot, chunk.first, chunk.last)
        return queue.post((serial, *where, len(chunk.task), 0, *chunk.task))

    def post_stop(self) -> bool:
        """Tell one worker, whichever comes first, to leave; return False where the queue is full."""
        return self._urgent.post((_STOP, *[0] * (TASK - 1)))

    def wake(self, num_workers: int) -> None:
        """Wake as many workers, one for each chunk posted, where so many sleep."""
        self._fence()  # who does not see what was posted has said before that it sleeps
        num_asleep = sum(self._cells[_ROWS + _SLEEPS : _ROWS + self._num_rows * _ROW_CELLS : _ROW_CELLS])
        if not num_asleep:
            return
        unread = array("i", [0])
        fcntl.ioctl(self._tokens, termios.FIONREAD, unread)
        if (num_bytes := min(num_workers, num_asleep - unread[0])) > 0:
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes everybody anyway
                os.write(self._posted, bytes(num_bytes))

    def cancel(self) -> None:
        """Make workers answer all chunks posted so far without filling them."""
        self._cells[_GENERATION] += 1

    @property
    def has_untaken(self) -> bool:
        """Whether a posted chunk waits for a worker."""
        return not (self._urgent.is_empty and self._plain.is_empty)

    def queued_serials(self) -> set[int]:
        """Return the serial numbers of all chunks that wait for a worker; the row of one who took any is seen then."""
        serials = {*self._urgent.serials(), *self._plain.serials()}
        self._fence()
        return serials

    def row(self, worker: int) -> WorkerRow:
        """Return where worker number `worker` is."""
        place = _ROWS + worker * _ROW_CELLS
        sample = self._cells[place + _SAMPLE]
        return WorkerRow(
            serial=self._cells[place + _SERIAL],
            sample=None if sample == _NO_SAMPLE else sample,
            waits_for_turn=bool(self._cells[place + _WAITS]),
        )

    def expect(self, worker: int) -> None:
        """Prepare the row of a worker that is about to start."""
        place = _ROWS + worker * _ROW_CELLS
        self._cells[place + _SLEEPS] = self._cells[place + _WAITS] = 0
        self._cells[place + _SAMPLE] = _NO_SAMPLE
        self._cells[place + _SERIAL] = _OPENING
        self._num_rows = max(self._num_rows, worker + 1)

    def close(self) -> None:
        """Let go of the board; workers leave when they next want a chunk. May be called again."""
        if self._fd >= 0:
            for fd in (self._fd, self._tokens, self._posted):
                os.close(fd)
            self._fd = -1
            self._cells.release()
            self._map.close()


class WorkerBoard:
    """A worker's side: takes chunks and says where it is. Each is for the one process that works as `worker`."""

    def __init__(self, fds: BoardFds) -> None:
        self._fd = fds.board
        self._tokens = fds.tokens
        self._fence = Fence()
        self._cells, self._urgent, self._plain = _cells_of(
            _map(fds.board, fds.num_plain_entries), self._fence, fds.num_plain_entries
        )
        self._row = _ROWS
        self._reader = 1
        self._has_turn = False
        self._num_begun = 0  # samples and chunks
        self._pid = 0

    def sit_down(self, worker: int) -> None:
        """Write into row `worker` from now on."""
        self._pid = os.getpid()
        self._row = _ROWS + worker * _ROW_CELLS
        self._reader = worker + 1

    def take(self) -> tuple[int, "Chunk | None"] | None:
        """Wait for a chunk; return its serial number and it, or None in its place where it was cancelled.

        None alone says that the worker is to leave: it was told to, or the pool is closed.
        """
        self._cells[self._row + _SERIAL] = _IDLE
        self._num_begun += 1  # before a look at the turn: a thread that gets it now looks at this after that
        self.end_turn()
        while True:
            is_idle = self._urgent.is_empty and self._plain.is_empty
            self._cells[self._row + _SLEEPS] = is_idle  # before a last look: what is posted after it comes with a byte
            self._fence()
            entry = self._take_locked()
            if entry is None and is_idle and not os.read(self._tokens, 1):
                return None
            self._cells[self._row + _SLEEPS] = 0
            if entry is not None:
                break
        if entry[0] == _STOP:
            return None
        return entry[0], _chunk_of(entry) if entry[1] == self._cells[_GENERATION] else None

    def reserve(self, num_chunks: int) -> list[Chunk]:
        """Return chunks that this worker will most likely take next, in this order, `num_chunks` at most."""
        self._lock(_TAKING)
        try:
            entries = self._plain.reserve(self._reader, generation=self._cells[_GENERATION], num_entries=num_chunks)
        finally:
            self._unlock(_TAKING)
        return [_chunk_of(entry) for entry in entries]

    def _take_locked(self) -> list[int] | None:
        self._lock(_TAKING)
        try:
            return self._take()
        finally:
            self._unlock(_TAKING)

    def _take(self) -> list[int] | None:
        for queue in (self._urgent, self._plain):
            position = queue.first_for(self._reader, generation=self._cells[_GENERATION])
            if position is not None:
                break
        else:
            return None
        entry = queue.peek(position)
        # This order is what keeps a chunk from being lost: first it is mine, then it is gone.
        self._cells[self._row + _SAMPLE] = _NO_SAMPLE
        self._cells[self._row + _SERIAL] = entry[0] if entry[0] != _STOP else _STOPPED
        self._fence()
        queue.drop(position)
        if entry[0] == _STOP:
            self._plain.free(self._reader, generation=self._cells[_GENERATION])
        return entry

    def at(self, sample: int) -> None:
        """Say that sample `sample` of the batch is next."""
        self._cells[self._row + _SAMPLE] = sample
        self._num_begun += 1
        if self._has_turn:
            self.end_turn()

    def wait_for_turn(self) -> None:
        """Wait until no other worker has its turn, and have it until the next sample or chunk.

        A process that user code forked has no turns: nobody would watch it.
        """
        if self._has_turn or os.getpid() != self._pid:
            return
        num_begun = self._num_begun
        self._cells[self._row + _WAITS] = 1
        try:
            self._lock(_TURN)  # no limit: the parent watches whoever has it, and the kernel frees it at its death
            self._has_turn = True
        except BaseException as error:  # a signal handler may raise at any instruction
            self._has_turn = False
            self._unlock(_TURN)
            # EDEADLK: user code holds a record lock that the worker with the turn waits for.
            if not isinstance(error, OSError) or error.errno != errno.EDEADLK:
                raise
        finally:
            self._cells[self._row + _WAITS] = 0
        if self._num_begun != num_begun or self._cells[self._row + _SERIAL] <= 0:
            self.end_turn()  # a thread of the user's has outlived its sample

    def end_turn(self) -> None:
        """Let others have their turn."""
        if self._has_turn:
            self._unlock(_TURN)
            self._has_turn = False

    def _lock(self, byte: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)


def _chunk_of(entry: Sequence[int]) -> Chunk:
    _, _, slot, first, last, num_numbers = entry[:READER]
    return Chunk(batch=0, slot=slot, first=first, last=last, task=tuple(entry[TASK : TASK + num_numbers]))
