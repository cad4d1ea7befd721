"""The board: each chunk is taken once and in order, and sleeping workers are woken for it."""

import os
import threading

from mpload.transport.board import ParentBoard, WorkerBoard
from tests.support.boards import chunk, num_unread, worker_of
from tests.support.transport_works import wait_until


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


def test_cancelled_chunks_are_taken_but_not_filled(board: ParentBoard) -> None:
    worker = worker_of(board, 0)
    board.post(1, chunk(1))
    board.cancel()
    board.post(2, chunk(2))
    board.wake(2)
    assert worker.take() == (1, None)
    assert worker.take() == (2, chunk(2))


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
    assert board.row(4).sample == worker.sample[0] == 2
    worker.sample[0] = 3  # as native code does
    assert board.row(4).sample == 3


def test_workers_exit_when_the_board_is_closed(board: ParentBoard) -> None:
    worker = WorkerBoard(board.fds)
    worker._token_reader, worker._fd = os.dup(worker._token_reader), os.dup(worker._fd)
    board.close()
    board.close()
    assert worker.take() is None
    os.close(worker._token_reader)
    os.close(worker._fd)


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
