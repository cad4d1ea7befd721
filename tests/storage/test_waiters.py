"""While no thread waits for an answer, answers and new requests gather. As soon as one does, they move on."""

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mpload.storage import transfers
from mpload.storage.ranges import ByteRange
from mpload.storage.read_ahead import ReadAhead
from mpload.storage.transfers import Answer, Transfers
from mpload.storage.waiters import WAITERS, Waiters
from tests.support.begun_reads import WAIT_SECONDS, Paths, objects_at, usual
from tests.support.raw_server import raw_server

pytestmark = pytest.mark.processes

SHORTLY = 0.3
EXIT_CODE = 7


class Held:
    """A server that answers each request as soon as it is let, and requests to it."""

    def __init__(self, through: Transfers) -> None:
        self._through = through
        self._may_answer = {f"/{name}": threading.Event() for name in "ab"}
        self.requested = queue.Queue[str]()
        self.answered = queue.Queue[Answer | int]()

    def __call__(self, connection: socket.socket, path: str) -> bool:
        self.requested.put(path)
        self._may_answer[path].wait(WAIT_SECONDS)
        connection.sendall(usual(path.encode()))
        return True

    def answer(self, path: str) -> None:
        self._may_answer[path].set()

    def begin(self, url: str, path: str) -> None:
        assert self._through.begin(
            url + path,
            headers=[],
            max_bytes=99,
            until=time.monotonic() + 60,
            connect_seconds=WAIT_SECONDS,
            done=self.answered.put,
        )

    def next_answer(self) -> bytes | int:
        answer = self.answered.get(timeout=WAIT_SECONDS)
        return answer if isinstance(answer, int) else answer.body


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Held, Transfers, str]]:
    """A server with a request, and transfers that let its answer gather for ever."""
    monkeypatch.setattr(transfers, "_GATHERED_MS", 10_000 * WAIT_SECONDS)
    ours = Transfers()
    held = Held(ours)
    with raw_server(held) as url:
        with WAITERS.waiting():
            held.begin(url, "/a")
            assert held.requested.get(timeout=WAIT_SECONDS) == "/a"
        ours._wake()
        while ours._sockets.select(0) or not ours._is_gathering:  # in this order: it may have gathered before
            time.sleep(0.01)
        yield held, ours, url
        ours.end()


def test_answers_and_requests_gather_until_a_thread_waits(held: tuple[Held, Transfers, str]) -> None:
    server, _, url = held
    server.answer("/a")
    server.begin(url, "/b")
    with pytest.raises(queue.Empty):
        server.answered.get(timeout=SHORTLY)
    assert server.requested.empty()
    with WAITERS.waiting():
        assert server.next_answer() == b"/a"
        assert server.requested.get(timeout=WAIT_SECONDS) == "/b"
        server.answer("/b")
        assert server.next_answer() == b"/b"
    assert not WAITERS


def test_transfers_that_end_wait_for_nothing_that_gathers(held: tuple[Held, Transfers, str]) -> None:
    server, ours, url = held
    server.begin(url, "/b")
    ours.end()
    assert not ours._thread.is_alive()
    assert not ours.begin(
        url, headers=[], max_bytes=9, until=time.monotonic() + 60, connect_seconds=1, done=server.answered.put
    )


def test_a_sample_that_is_requested_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_GATHERED_MS", 10_000 * WAIT_SECONDS)
    wanted = {number: [ByteRange(f"{number}.bin")] for number in range(50)}
    found = list[bytes]()

    def read() -> None:
        ahead.plan(wanted)
        for number, ranges in wanted.items():
            found.extend(ahead.read(number, ranges))

    with objects_at(Paths(usual)) as objects:
        ahead = ReadAhead(objects)
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        reading.join(WAIT_SECONDS)
        assert found == [f"/{number}.bin".encode() for number in wanted]
    monkeypatch.undo()
    with WAITERS.waiting():  # what still gathers, such as a late read that was made a second time
        pass


def test_nothing_gathers_if_a_thread_waits_since_a_moment_ago(held: tuple[Held, Transfers, str]) -> None:
    _, ours, _ = held
    with WAITERS.waiting():
        gathering = threading.Thread(target=ours._gather, daemon=True)
        gathering.start()
        gathering.join(WAIT_SECONDS)
        assert not gathering.is_alive()


def test_large_answers_do_not_gather(held: tuple[Held, Transfers, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server, ours, url = held
    monkeypatch.setattr(transfers, "_LARGE_BYTES", 0.1)
    with WAITERS.waiting():
        server.answer("/a")
        assert server.next_answer() == b"/a"
    assert not ours._is_gathering
    server.answer("/b")
    server.begin(url, "/b")
    assert server.next_answer() == b"/b"


def test_each_thread_that_begins_to_wait_calls_those_who_receive() -> None:
    waiters, calls = Waiters(), list[str]()
    with waiters.waiting():
        assert waiters
    with waiters.called(lambda: calls.append("hurry")):
        for _ in range(2):
            with waiters.waiting():
                pass
    with pytest.raises(KeyboardInterrupt), waiters.waiting():
        raise KeyboardInterrupt
    assert not waiters
    assert calls == ["hurry", "hurry"]


def test_no_thread_of_the_parent_waits_in_a_forked_child() -> None:
    with WAITERS.waiting():
        if not (child := os.fork()):
            os._exit(EXIT_CODE if not WAITERS else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EXIT_CODE
        assert WAITERS
