"""Which answers are compared with samples made here, and what a difference means for the next ones."""

from typing import Any

import numpy as np
import pytest

from mpload import Servers
from mpload.client.comparing import Comparing, new_count
from mpload.client.connection import Connection
from mpload.client.protocol import AnswerHead
from mpload.client.requests import Answered, Piece
from mpload.errors import DecodeError, ServerError
from mpload.plan.batch_number import BatchNumber
from mpload.plan.topology import Topology
from mpload.transport.messages import Tally
from mpload.transport.worker import ChunkReport

_URL = "http://node1:8000"
_PIECE = Piece(BatchNumber(seed=0, epoch=0, start=0, batch=0, topology=Topology()).numbers, 0, 16)


class _Numbers:
    """Makes samples that are their numbers, unless they are bad."""

    def __init__(self) -> None:
        self.is_bad = False
        self.bad = set[int]()
        self.num_made = 0

    def fill(self, task: object, arrays: dict[str, Any], first: int, last: int, report: object) -> None:
        del task, report
        self.num_made += last - first
        if self.is_bad or not self.bad.isdisjoint(range(first, last)):
            raise DecodeError("bad")
        arrays["number"][first:last] = np.arange(first, last)

    def unpacked(self, number: object, arrays: dict[str, Any]) -> dict[str, Any]:
        del number
        return arrays

    def sample_ids(self, number: object, first: int, last: int) -> Any:
        del number
        return np.arange(first, last)


class _Worker:
    def __init__(self, num_differences: Any) -> None:
        self.work = _Numbers()
        work: Any = self.work
        self.comparing = Comparing(work, ["number"], num_differences)

    def check(self, connection: Connection, *, wrong: int | None = None) -> None:
        """Receive an answer in which one sample may be wrong."""
        theirs = np.arange(16)
        if wrong is not None:
            theirs[wrong] += 1
        report = ChunkReport(private_arrays=lambda: {"number": np.zeros(16, np.int64)})
        answered = Answered(url=_URL, head=AnswerHead(tally=Tally()), num_bytes=0, connection=connection)
        self.comparing.check(answered, _PIECE, {"number": theirs}, report)


def _connection() -> Connection:
    return Connection(_URL, Servers(urls=[_URL]), None)


def test_two_samples_of_the_first_answer_over_each_connection_are_compared() -> None:
    worker, connection = _Worker(new_count()), _connection()
    for _ in range(3):
        worker.check(connection)
    assert worker.work.num_made == 2
    worker.check(_connection())
    assert worker.work.num_made == 4


def test_difference_is_an_error_each_time_until_a_comparison_has_succeeded() -> None:
    worker, connection = _Worker(new_count()), _connection()
    for _ in range(10):
        with pytest.raises(ServerError, match=r"'number' of sample_id 1 differs"):
            worker.check(connection, wrong=1)
    worker.check(connection)
    num_made = worker.work.num_made
    worker.check(connection)
    assert worker.work.num_made == num_made


def test_all_workers_compare_whole_answers_after_one_has_found_a_difference() -> None:
    shared = new_count()
    first, second = _Worker(shared), _Worker(shared)
    connection = _connection()
    second.check(connection)
    second.check(connection, wrong=9)  # nobody knows
    with pytest.raises(ServerError):
        first.check(_connection(), wrong=0)
    with pytest.raises(ServerError, match="sample_id 9"):
        second.check(connection, wrong=9)


def test_samples_that_cannot_be_compared_are_tried_a_few_times_only() -> None:
    worker = _Worker(new_count())
    worker.work.is_bad = True
    for _ in range(3):
        connection = _connection()
        for _ in range(4):
            worker.check(connection, wrong=0)
    assert worker.work.num_made == 4 * 2


def test_new_connection_is_compared_even_if_an_earlier_one_could_not_be() -> None:
    worker = _Worker(new_count())
    worker.check(_connection())
    worker.work.is_bad = True
    connection = _connection()
    for _ in range(9):
        worker.check(connection)
    assert worker.work.num_made == 2 + 4 * 2
    worker.work.is_bad = False
    with pytest.raises(ServerError):
        worker.check(_connection(), wrong=0)


@pytest.mark.parametrize("bad", [0, 1, 5])
def test_a_sample_that_cannot_be_made_here_does_not_hide_others(bad: int) -> None:
    worker, connection = _Worker(new_count()), _connection()
    worker.work.bad = {bad}
    for wrong in (1 - min(bad, 1), 7):  # then all samples are compared
        with pytest.raises(ServerError, match=f"of sample_id {wrong} differs"):
            worker.check(connection, wrong=wrong)


def test_answers_that_cannot_be_compared_are_refused_once_samples_have_differed() -> None:
    worker, connection = _Worker(new_count()), _connection()
    with pytest.raises(ServerError, match="differs"):
        worker.check(connection, wrong=0)
    worker.work.is_bad = True
    for _ in range(10):
        with pytest.raises(ServerError, match="none of this answer can be made here"):
            worker.check(_connection())
    worker.work.is_bad = False
    worker.check(connection)
