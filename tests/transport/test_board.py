"""The board: each chunk is taken once and in order, and no chunk is lost, whenever the worker that takes it dies."""

import fcntl
import os
import sys
import termios
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpload.transport.board import ParentBoard, WorkerBoard
from mpload.transport.chunks import Chunk
from mpload.transport.queue import ChunkQueue
from tests.support.transport_works import wait_until


def chunk(first: int) -> Chunk:
    return Chunk(batch=0, slot=3, first=first, last=first + 2, task=(first, -7))


@pytest.fixture
def board(request: pytest.FixtureRequest) -> Iterator[ParentBoard]:
    with closing(ParentBoard(num_plain_entries=getattr(request, "param", 4))) as board:
        yield board


def worker_of(board: ParentBoard, number: int) -> WorkerBoard:
    worker = WorkerBoard(board.fds)
    worker.use_row(number)
    return worker


def before_each_instruction(run: Callable[[], object], inspect: Callable[[], object]) -> int:
    """Call `inspect` before each instruction of the transport that `run` executes; return the number of instructions.

    `inspect` sees what another process might see at that moment, and what a SIGKILL would leave behind.
    """
    num_instructions = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal num_instructions
        if not frame.f_globals["__name__"].startswith("mpload.transport."):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            num_instructions += 1
            sys.settrace(None)  # do not trace the calls of `inspect`
            inspect()
            sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return num_instructions


def test_chunks_are_taken_in_order_and_urgent_ones_first(board: ParentBoard) -> None:
    workers = [worker_of(board, 0), worker_of(board, 255)]
    for serial in (1, 2, 3):
        assert board.post(serial, chunk(serial))
    assert board.post(9, chunk(9), urgent=True)
    assert board.queued_serials() == {1, 2, 3, 9}
    board.wake(4)
    taken = [workers[turn % 2].take() for turn in range(4)]
    assert taken == [(9, chunk(9)), (1, chunk(1)), (2, chunk(2)), (3, chunk(3))]
    assert not board.has_untaken
    assert [board.row(number).serial for number in (0, 255)] == [2, 3]


def test_a_full_queue_refuses_a_chunk_and_wraps_around(board: ParentBoard) -> None:
    worker = worker_of(board, 0)
    for serial in range(1, 5):
        assert board.post(serial, chunk(serial))
    assert not board.post(5, chunk(5))
    board.wake(10)  # extra bytes only cause spurious wake-ups
    for serial in range(1, 30):
        assert worker.take() == (serial, chunk(serial))
        assert board.post(serial + 4, chunk(serial + 4))
        board.wake(1)


def test_a_worker_killed_while_it_takes_a_chunk_leaves_it_in_the_queue(
    board: ParentBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(_: ChunkQueue, position: int) -> None:
        raise Killed

    assert board.post(1, chunk(1))
    board.wake(1)
    with monkeypatch.context() as patch:
        patch.setattr(ChunkQueue, "drop", killed)
        with pytest.raises(Killed):
            worker_of(board, 0).take()
    assert board.row(0).serial == 1  # the parent sees that the worker had it
    assert board.queued_serials() == {1}  # and that the next worker can take it
    board.wake(1)
    assert worker_of(board, 1).take() == (1, chunk(1))
    assert board.queued_serials() == set()


def test_a_worker_killed_at_any_instruction_of_taking_loses_no_chunk_and_blames_no_earlier_sample(
    board: ParentBoard,
) -> None:
    worker, other = worker_of(board, 0), worker_of(board, 1)
    for serial in (1, 2, 3, 4):
        assert board.post(serial, chunk(serial))
    other.reserve(1)
    assert worker.take() == (2, chunk(2))  # from the middle
    worker.at(3)

    def inspect() -> None:
        row = board.row(0)
        assert board.queued_serials() >= {1, 3, 4} - {row.serial}
        assert row.sample is None or row.serial != 3

    assert before_each_instruction(worker.take, inspect) > 50
    assert board.row(0).serial == 3


def test_a_half_written_entry_is_visible_at_no_instruction_of_posting(board: ParentBoard) -> None:
    worker = worker_of(board, 0)
    for serial in range(1, 5):  # so that the cells hold old entries
        board.post(serial, chunk(serial))
        assert worker.take() == (serial, chunk(serial))

    def inspect() -> None:
        visible = [worker._plain.peek(4)[:2]] if not worker._plain.is_empty else []
        assert visible in ([], [[9, 0]])
        assert worker._plain.is_empty or worker._plain.peek(4)[2:6] == [3, 7, 9, 2]

    assert before_each_instruction(lambda: board.post(9, chunk(7)), inspect) > 20
    assert worker.take() == (9, chunk(7))


def test_a_worker_gets_a_chunk_that_is_posted_at_any_instruction_of_its_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Post:
        """Posts a chunk before instruction `at` of a worker, or when the worker blocks if it has fewer instructions."""

        def __init__(self, at: int) -> None:
            self.at = at
            self.num_instructions = 0
            self.board = ParentBoard(num_plain_entries=4)
            self.board.prepare_row(0)
            self.is_posted = self.was_posted_last = False

        def count(self) -> None:
            self.num_instructions += 1
            if self.num_instructions == self.at and not self.is_posted:
                self.post()

        def post(self) -> None:
            self.is_posted = True
            assert self.board.post(1, chunk(1))
            self.board.wake(1)

        def read(self, fd: int, num_bytes: int) -> bytes:
            if not self.is_posted:
                self.was_posted_last = True
                self.post()
            assert num_unread(self.board), f"posted before instruction {self.at}, but the worker sleeps forever"
            return read(fd, num_bytes)

    read, at, was_posted_last = os.read, 0, False
    while not was_posted_last:
        at += 1
        post = Post(at)
        monkeypatch.setattr(os, "read", post.read)
        worker = worker_of(post.board, 0)
        taken: list[object] = []
        before_each_instruction(lambda worker=worker, taken=taken: taken.append(worker.take()), post.count)  # type: ignore[misc]
        assert taken == [(1, chunk(1))]
        assert not worker._cells[worker._row + 2]  # it is not marked as sleeping while it works
        was_posted_last = post.was_posted_last
        post.board.close()
    assert at > 50


def test_cancelled_chunks_are_taken_but_not_filled(board: ParentBoard) -> None:
    worker = worker_of(board, 0)
    board.post(1, chunk(1))
    board.cancel()
    board.post(2, chunk(2))
    board.wake(2)
    assert worker.take() == (1, None)
    assert worker.take() == (2, chunk(2))


@pytest.mark.parametrize("board", [8], indirect=True)
def test_reserved_chunks_are_taken_by_their_reader_first_and_by_others_last(board: ParentBoard) -> None:
    reader, other = worker_of(board, 0), worker_of(board, 1)
    for serial in range(1, 7):
        assert board.post(serial, chunk(serial))
    assert reader.reserve(2) == [chunk(1), chunk(2)]
    assert other.reserve(1) == [chunk(3)]
    assert reader.reserve(3) == [chunk(1), chunk(2), chunk(4)]
    board.wake(10)
    assert [taken[0] for taken in (other.take(), other.take(), other.take()) if taken] == [3, 5, 6]
    assert reader.take() == (1, chunk(1))
    assert board.queued_serials() == {2, 4}
    assert other.take() == (2, chunk(2))  # rather than be idle
    assert reader.take() == (4, chunk(4))
    assert not board.has_untaken
    for serial in range(10, 18):  # entries freed in the middle can be used again
        assert board.post(serial, chunk(serial))
    assert not board.post(18, chunk(18))


def test_a_worker_killed_while_it_takes_a_chunk_from_the_middle_loses_no_chunk(board: ParentBoard) -> None:
    dying, other = worker_of(board, 0), worker_of(board, 1)
    for serial in (1, 2, 3):
        assert board.post(serial, chunk(serial))
    other.reserve(1)
    board.wake(9)
    assert dying.take() == (2, chunk(2))
    position = dying._plain.first_for(1, generation=0)
    assert position == 2
    dying._cells[dying._plain._cell_of(position)] = 0  # killed before the head has advanced
    assert board.queued_serials() == {1}
    assert other.take() == (1, chunk(1))
    assert not board.has_untaken
    board.post(4, chunk(4))
    assert other.take() == (4, chunk(4))


def test_reservations_of_cancelled_chunks_are_void(board: ParentBoard) -> None:
    reader, other = worker_of(board, 0), worker_of(board, 1)
    board.post(1, chunk(1))
    assert reader.reserve(1) == [chunk(1)]
    board.cancel()
    board.post(2, chunk(2))
    assert reader.reserve(2) == [chunk(2)]
    board.wake(2)
    assert other.take() == (1, None)


def test_cancelled_chunks_are_taken_first_even_if_another_worker_reserved_them(board: ParentBoard) -> None:
    reader, other = worker_of(board, 0), worker_of(board, 1)
    board.post(1, chunk(1))
    assert reader.reserve(1) == [chunk(1)]
    board.cancel()
    board.post(2, chunk(2))
    assert [other.take(), other.take()] == [(1, None), (2, chunk(2))]


def test_a_worker_that_exits_releases_its_reservations(board: ParentBoard) -> None:
    leaving, other = worker_of(board, 0), worker_of(board, 1)
    for serial in (1, 2):
        board.post(serial, chunk(serial))
    leaving.reserve(1)
    board.post_stop()
    board.wake(3)
    assert leaving.take() is None
    assert other.take() == (1, chunk(1))


def test_rows_show_the_state_of_each_worker(board: ParentBoard) -> None:
    board.prepare_row(4)
    assert board.row(4).is_opening
    worker = worker_of(board, 4)
    board.post(1, chunk(1))
    board.post_stop()
    board.wake(2)
    assert worker.take() is None  # the request to exit is urgent
    assert board.row(4).has_stopped
    assert worker.take() == (1, chunk(1))
    assert (board.row(4).is_filling, board.row(4).sample) == (True, None)
    worker.at(2)
    assert board.row(4).sample == 2


def test_workers_exit_when_the_board_is_closed(board: ParentBoard) -> None:
    worker = WorkerBoard(board.fds)
    worker._token_reader, worker._fd = os.dup(worker._token_reader), os.dup(worker._fd)
    board.close()
    board.close()
    assert worker.take() is None
    os.close(worker._token_reader)
    os.close(worker._fd)


def num_unread(board: ParentBoard) -> int:
    count = array("i", [0])
    fcntl.ioctl(board.fds.tokens, termios.FIONREAD, count)
    return count[0]


def test_a_byte_is_written_for_a_sleeping_worker_and_none_for_a_busy_one(board: ParentBoard) -> None:
    board.prepare_row(3)
    worker = worker_of(board, 3)
    board.post(1, chunk(1))
    board.wake(1)
    assert num_unread(board) == 0
    assert worker.take() == (1, chunk(1))
    worker._cells[worker._row + 2] = 1  # it sleeps
    for serial in (2, 3):
        board.post(serial, chunk(serial))
        board.wake(1)
        assert num_unread(board) == 1
    assert [worker.take(), worker.take()] == [(2, chunk(2)), (3, chunk(3))]


def test_a_worker_that_died_while_sleeping_is_not_woken(board: ParentBoard) -> None:
    for number in (5, 3):  # rows after the latest one are checked too
        board.prepare_row(number)
    worker = worker_of(board, 5)
    worker._cells[worker._row + 2] = 1  # it sleeps
    board.prepare_row(5)
    board.wake(2)
    assert num_unread(board) == 0
    worker._cells[worker._row + 2] = 1
    board.wake(2)
    assert num_unread(board) == 1


def test_a_sleeping_worker_is_woken(board: ParentBoard) -> None:
    board.prepare_row(0)
    worker = worker_of(board, 0)
    for serial in range(1, 50):
        taken: list[object] = []
        thread = threading.Thread(target=lambda found: found.append(worker.take()), args=(taken,), daemon=True)
        thread.start()
        if serial % 2:
            assert wait_until(lambda: bool(worker._cells[worker._row + 2]))
        board.post(serial, chunk(serial))
        board.wake(1)
        thread.join(60)
        assert taken == [(serial, chunk(serial))]


class Counted:
    """Cells that count how often they are read."""

    def __init__(self, cells: "memoryview[int]") -> None:
        self.cells, self.num_reads = cells, 0

    def __getitem__(self, key: Any) -> Any:
        self.num_reads += 1
        return self.cells[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.cells[key] = value


def num_reads_per_chunk(num_workers: int, *, num_ahead: int) -> float:
    """Return how many cells a worker reads on average to reserve chunks and take one, while all workers read ahead."""
    serial = num_waiting = num_workers * (num_ahead + 2)
    board = ParentBoard(num_plain_entries=4 * num_waiting)
    workers = [worker_of(board, number) for number in range(num_workers)]
    for each in range(1, num_waiting + 1):
        assert board.post(each, chunk(each))
    counted = [Counted(worker._cells) for worker in workers]
    for worker, cells in zip(workers, counted, strict=True):
        worker._plain._cells = cells  # type: ignore[assignment]
    for turn in range(6 * num_workers):
        if turn == 3 * num_workers:  # by now every worker has its reservations
            for cells in counted:
                cells.num_reads = 0
        worker = workers[turn % num_workers]
        assert len(worker.reserve(num_ahead)) == num_ahead
        assert worker.take() is not None
        serial += 1
        assert board.post(serial, chunk(serial))
    board.close()
    return sum(cells.num_reads for cells in counted) / (3 * num_workers)


def test_taking_a_chunk_costs_the_same_however_many_workers_read_ahead() -> None:
    few, many = num_reads_per_chunk(4, num_ahead=8), num_reads_per_chunk(256, num_ahead=8)
    assert many < 1.2 * few


class ModelBoard:
    """A reference model of the board, which searches all waiting chunks each time."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.generations: dict[int, int] = {}
        self.readers: dict[int, int] = {}  # by serial number
        self.generation = 0

    def take(self, reader: int) -> int:
        def is_free(serial: int) -> bool:
            return self.generations[serial] != self.generation or self.readers.get(serial, reader) == reader

        serial = next(filter(is_free, self.waiting), self.waiting[0])
        self.waiting.remove(serial)
        return serial

    def reserve(self, reader: int, num_chunks: int) -> list[int]:
        current = [serial for serial in self.waiting if self.generations[serial] == self.generation]
        available = [serial for serial in current if self.readers.get(serial, reader) == reader]
        reserved = [serial for serial in available if serial in self.readers]
        unreserved = [serial for serial in available if serial not in self.readers]
        chosen = sorted(reserved + unreserved[: max(0, num_chunks - len(reserved))])
        self.readers.update(dict.fromkeys(chosen, reader))
        return chosen[:num_chunks]

    def release(self, reader: int) -> None:
        self.readers = {serial: each for serial, each in self.readers.items() if each != reader}


WORKERS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("post"), st.integers(1, 4)),
    st.tuples(st.just("take"), WORKERS),
    st.tuples(st.just("reserve"), WORKERS, st.integers(1, 5)),
    st.tuples(st.sampled_from(["cancel"])),
    st.tuples(st.sampled_from(["replace", "exit"]), WORKERS),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=60))
@example([("post", 4), ("reserve", 0, 2), ("replace", 0), ("exit", 0), ("take", 1)])
@example([("post", 4), ("reserve", 0, 2), ("replace", 0), ("reserve", 1, 5), ("take", 0)])
@example([("post", 4), ("reserve", 0, 4), ("cancel",), ("post", 2), ("reserve", 1, 2), ("take", 0), ("take", 1)])
def test_workers_take_and_reserve_the_same_chunks_as_a_model_that_searches_the_whole_queue(
    steps: list[tuple[Any, ...]],
) -> None:
    board, model, serial = ParentBoard(num_plain_entries=16), ModelBoard(), 0
    workers = [worker_of(board, number) for number in range(4)]
    for what, *numbers in steps:
        if what == "post":
            for _ in range(numbers[0]):
                if board.post(serial + 1, chunk(serial + 1)):
                    serial += 1
                    model.waiting.append(serial)
                    model.generations[serial] = model.generation
        elif what == "cancel":
            board.cancel()
            model.generation += 1
        elif what == "replace":  # it was killed, and a new worker has its number
            workers[numbers[0]] = worker_of(board, numbers[0])
        elif what == "exit":
            board.post_stop()
            assert workers[numbers[0]].take() is None
            model.release(numbers[0])
        elif what == "reserve":
            reserved = workers[numbers[0]].reserve(numbers[1])
            assert reserved == [chunk(each) for each in model.reserve(*numbers)]
        elif model.waiting:
            expected = model.take(numbers[0])
            is_current = model.generations[expected] == model.generation
            assert workers[numbers[0]].take() == (expected, chunk(expected) if is_current else None)
        assert board.queued_serials() == set(model.waiting)
    board.close()
