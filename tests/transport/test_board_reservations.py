"""Chunks that a worker reserves on the board to read ahead: it takes them first, and other workers take them last."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpload.transport.board import ParentBoard
from tests.support.boards import chunk, worker_of


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


def test_a_worker_without_work_first_leaves_a_reserved_chunk_to_its_reader(
    board: ParentBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, other = worker_of(board, 0), worker_of(board, 1)
    board.post(1, chunk(1))
    assert reader.reserve(1) == [chunk(1)]
    reader.begin(1)
    taken = []

    def meanwhile(_: float) -> None:
        taken.append(reader.take())
        board.post(2, chunk(2))

    monkeypatch.setattr("mpload.transport.board.time.sleep", meanwhile)
    assert other.take() == (2, chunk(2))
    assert taken == [(1, chunk(1))]


def test_a_worker_without_work_takes_at_once_what_its_reader_has_not_begun_to_read(
    board: ParentBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpload.transport.board.time.sleep", None)  # no wait
    reader, other = worker_of(board, 0), worker_of(board, 1)
    for serial in (1, 2, 3):
        board.post(serial, chunk(serial))
    assert reader.reserve(3) == [chunk(1), chunk(2), chunk(3)]
    reader.begin(1)
    assert other.take() == (2, chunk(2))
    assert reader.reserve(3) == [chunk(1), chunk(3)]
    reader.begin(1)
    assert other.take() == (3, chunk(3))
    assert reader.take() == (1, chunk(1))


def test_what_a_dead_worker_was_reading_is_free_once_another_has_its_number(
    board: ParentBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, other = worker_of(board, 0), worker_of(board, 1)
    board.post(1, chunk(1))
    assert dead.reserve(1) == [chunk(1)]
    dead.begin(1)
    board.prepare_row(0)
    monkeypatch.setattr("mpload.transport.board.time.sleep", None)  # no wait
    assert other.take() == (1, chunk(1))


def test_a_worker_that_does_not_come_back_loses_what_it_was_reading(board: ParentBoard) -> None:
    away, other = worker_of(board, 0), worker_of(board, 1)
    board.post(1, chunk(1))
    assert away.reserve(1) == [chunk(1)]
    away.begin(1)
    assert other.take() == (1, chunk(1))


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


@pytest.mark.parametrize("board", [16], indirect=True)
def test_announced_chunks_can_be_reserved_and_are_taken_once_they_are_posted(board: ParentBoard) -> None:
    reader, other = worker_of(board, 0), worker_of(board, 1)
    assert board.announce({serial: chunk(serial) for serial in range(1, 9)}, num_workers=2)
    assert not board.has_untaken
    assert board.queued_serials() == set()
    assert reader.reserve(2) == [chunk(1), chunk(3)]
    assert other.reserve(3) == [chunk(2), chunk(4), chunk(6)]
    assert reader.reserve(3) == [chunk(1), chunk(3), chunk(5)]
    for serial in (1, 2, 3):
        assert board.post(serial, replace(chunk(serial), slot=7, layout=2))
    assert board.queued_serials() == {1, 2, 3}
    assert other.take() == (2, replace(chunk(2), slot=7, layout=2))
    assert reader.take() == (1, replace(chunk(1), slot=7, layout=2))
    assert other.take() == (3, replace(chunk(3), slot=7, layout=2))  # its own one, 4, has no slot yet
    assert not board.has_untaken
    assert reader.reserve(2) == [chunk(5), chunk(7)]
    board.cancel()
    assert reader.reserve(2) == []
    board.post(20, chunk(20))
    assert reader.reserve(2) == [chunk(20)]
    assert other.take() == (20, chunk(20))


def test_chunks_for_which_there_is_no_room_are_not_announced(board: ParentBoard) -> None:
    board.post(1, chunk(1))
    assert not board.announce({serial: chunk(serial) for serial in range(2, 6)}, num_workers=1)
    assert board.announce({serial: chunk(serial) for serial in range(2, 5)}, num_workers=1)
    assert worker_of(board, 0).reserve(9) == [chunk(serial) for serial in range(1, 5)]


ANNOUNCING = st.one_of(
    st.tuples(st.just("announce"), st.integers(1, 4)),
    st.tuples(st.just("post"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["take", "replace", "exit"]), st.integers(0, 2)),
    st.tuples(st.just("reserve"), st.integers(0, 2), st.integers(1, 9)),
    st.tuples(st.sampled_from(["cancel"])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ANNOUNCING, max_size=60))
def test_each_posted_chunk_is_taken_once_and_no_other_however_many_are_announced(steps: list[tuple[Any, ...]]) -> None:
    board, serial = ParentBoard(num_plain_entries=16), 0
    workers = [worker_of(board, number) for number in range(3)]
    announced, waiting, cancelled = list[int](), set[int](), set[int]()
    held: dict[int, set[int]] = {number: set() for number in range(3)}
    for what, *numbers in steps:
        if what == "announce":
            new = range(serial + 1, serial + 1 + numbers[0])
            if board.announce({each: chunk(each) for each in new}, num_workers=3):
                announced += new
                serial += len(new)
        elif what == "post":
            for _ in range(numbers[0]):
                if not announced:
                    serial += 1
                each = announced.pop(0) if announced else serial
                if board.post(each, replace(chunk(each), slot=9)):
                    waiting.add(each)
        elif what == "cancel":
            board.cancel()
            cancelled |= waiting
            announced.clear()
            held = {number: set() for number in range(3)}
        elif what == "replace":
            workers[numbers[0]] = worker_of(board, numbers[0])
        elif what == "exit":
            board.post_stop()
            assert workers[numbers[0]].take() is None
            held[numbers[0]] = set()
        elif what == "reserve":
            found = [each.first for each in workers[numbers[0]].reserve(numbers[1])]
            workers[numbers[0]].begin(numbers[1] // 2)
            assert found == sorted(set(found))
            assert set(found) <= (waiting - cancelled) | set(announced)
            held[numbers[0]] |= set(found)
            assert not any(held[a] & held[b] & (waiting | set(announced)) for a, b in ((0, 1), (0, 2), (1, 2)))
        elif waiting:
            taken = workers[numbers[0]].take()
            assert taken is not None
            assert taken[1] == (None if taken[0] in cancelled else replace(chunk(taken[0]), slot=9))
            waiting.remove(taken[0])
        assert board.queued_serials() == waiting
    board.close()


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
@example([("post", 2), ("reserve", 2, 1), ("reserve", 0, 1), ("exit", 2), ("reserve", 0, 2)])
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
