"""The board at each instruction of the parent or a worker: a kill or a post there loses no chunk and no wake-up."""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from mpload.transport.board import ParentBoard
from mpload.transport.queue import ChunkQueue
from tests.support.boards import chunk, num_unread, worker_of


def before_each_instruction(run: Callable[[], object], inspect: Callable[[], object]) -> int:
    """Call `inspect` before each instruction of the transport that `run` executes; return the number of instructions.

    `inspect` sees what another process might see at that moment, and what a SIGKILL would leave behind.
    """
    if sys.version_info[:2] == (3, 12):
        pytest.skip("Python 3.12 does not trace single instructions reliably")
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
        assert worker._plain.is_empty or worker._plain.peek(4)[2:7] == [3, 7, 9, 0, 2]

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
