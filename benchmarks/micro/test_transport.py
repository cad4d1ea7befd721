"""Hand-over: chunks through the board and back, and a batch through a pool whose worker writes nothing."""

import socket
from collections.abc import Mapping
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mpload.transport.batches import BatchTask
from mpload.transport.board import ParentBoard, WorkerBoard
from mpload.transport.chunks import Chunk
from mpload.transport.inbox import Inbox
from mpload.transport.messages import Answer
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, SlotLayout

pytestmark = pytest.mark.benchmark(group="transport")

BATCH_SAMPLES = 256


class Nothing:
    """A work that writes nothing."""

    def open(self, worker: int) -> None:
        pass

    def fill(self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: Any) -> None:
        pass


def test_chunk_posted_taken_answered_and_read(benchmark: BenchmarkFixture) -> None:
    """Both sides in this process, so that the time includes the worker's."""
    serials = count(1)
    chunk = Chunk(batch=1, slot=0, first=0, last=16, task=(0,) * 7)
    with closing(ParentBoard(num_plain_entries=64)) as board, closing(Inbox()) as inbox:
        worker = WorkerBoard(board.fds)
        worker.use_row(0)
        with socket.fromfd(inbox.fd, socket.AF_UNIX, socket.SOCK_SEQPACKET) as answers:

            def hand_over() -> Answer | None:
                board.post(next(serials), chunk)
                board.wake(1)
                taken = worker.take()
                assert taken is not None
                answers.send(Answer(worker=0, serial=taken[0]).encode())
                return inbox.read()

            assert benchmark(hand_over) is not None


def test_batch_of_a_pool(benchmark: BenchmarkFixture) -> None:
    """The time of the training process alone: cut, post, wait, read the answers, lend the slot."""
    layout = SlotLayout(num_samples=BATCH_SAMPLES, fields=(Field(name="label", dtype="int64"),))
    with WorkerPool(Nothing(), layout, num_slots=4, num_workers=1) as pool:
        batches = pool.stream(BatchTask(numbers=(0,) * 7, num_samples=BATCH_SAMPLES) for _ in count())
        batch = benchmark.pedantic(next, (batches,), rounds=500, warmup_rounds=20)  # type: ignore[no-untyped-call]
        assert len(batch.arrays["label"]) == BATCH_SAMPLES
        batches.close()
