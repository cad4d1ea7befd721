"""What answers in place of a machine that shares a cache may be wrong, late or missing, and no sample changes."""

import itertools
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import MploadWarning
from mpload.samples.cache.entries import make_head
from tests.support.cache_machines import epochs, load_ids, machines


@contextmanager
def silent() -> Iterator[int]:
    """Yield the port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:  # the kernel accepts them
        yield listener.getsockname()[1]


@contextmanager
def answering(body: bytes, *statuses: str) -> Iterator[int]:
    """Yield the port of a server that gives these answers in turn."""
    heads = itertools.cycle(f"HTTP/1.1 {each}\r\nContent-Length: {len(body)}\r\n\r\n".encode() for each in statuses)

    def converse(connection: socket.socket) -> None:
        with connection:
            while connection.recv(65536):
                connection.sendall(next(heads) + body)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=converse, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (os.urandom(300), "200 OK", "answer is no entry"),
        (b"", "200 OK", "answer is no entry"),
        (b"<html>", "404 Not Found", "shares no cache"),
        (b"", "401 Unauthorized", "wants another token"),
        (b"", "409 Conflict", "another index, another #root or form of the cache, or another list"),
        (b"", "302 Found", "is not read: status 302. Meanwhile"),
    ],
)
def test_a_wrong_answer_changes_no_sample(tmp_path: Path, body: bytes, status: str, message: str) -> None:
    with machines(tmp_path, 2) as made, answering(body, status) as port:
        made.urls[1] = f"http://127.0.0.1:{port}"
        loader, load = epochs(made, 0)
        with pytest.warns(MploadWarning, match=message):
            assert load() == {number: made.source.files[number] for number in load_ids(made)}
        loader.close()


def test_a_machine_that_says_nothing_is_left_out_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpload.samples.cache.elsewhere._REQUEST_SECONDS", 0.5)
    with machines(tmp_path, 2) as made, silent() as port:
        made.urls[1] = f"http://127.0.0.1:{port}"
        loader, load = epochs(made, 0)
        with pytest.warns(MploadWarning, match=r"no answer in time: none from 127.0.0.1:\d+ within 0.5 s"):
            assert load() == {number: made.source.files[number] for number in load_ids(made)}
        loader.close()


class Liar(BaseHTTPRequestHandler):
    """Answers with the entry that is asked for, after `lie` has changed it."""

    lie: Callable[[bytes, int, int, int], bytes]

    def do_GET(self) -> None:
        key, sample_id, part = self.path.rsplit("/", 3)[1:]
        body = type(self).lie(bytes(500), int(key, 16), int(sample_id), int(part))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def entry(data: bytes, key: int, sample_id: int, part: int) -> bytes:
    return make_head(data, num_parts=1, sample_id=sample_id, stamp=part, key=key) + data


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (lambda data, key, row, part: entry(data, key, row, part)[:-1] + b"x", "its checksum is wrong"),
        (lambda data, key, row, part: entry(data, key, row, part)[:-1], "longer or shorter than it says"),
        (lambda data, key, row, part: entry(data, key, row, part) + b"x", "longer or shorter than it says"),
        (lambda data, key, row, part: entry(data, key, row + 1, part), "answer is no entry"),
        (lambda data, key, row, part: entry(data, key, row, part + 1), "answer is no entry"),
        (lambda data, key, row, part: entry(data, key + 1, row, part), "answer is no entry"),
    ],
    ids=["damaged", "short", "long", "another sample", "another part", "another data set"],
)
def test_an_entry_that_is_not_the_wanted_one_changes_no_sample(tmp_path: Path, lie: Any, message: str) -> None:
    handler = type("Handler", (Liar,), {"lie": staticmethod(lie)})
    with machines(tmp_path, 2) as made, ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        made.urls[1] = f"http://127.0.0.1:{server.server_address[1]}"
        loader, load = epochs(made, 0)
        with pytest.warns(MploadWarning, match=message):
            assert load() == {number: made.source.files[number] for number in load_ids(made)}
        loader.close()
        server.shutdown()


def test_a_machine_that_fails_now_and_then_leads_to_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SHORTEST_PAUSE_SECONDS", "_LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(f"mpload.samples.cache.elsewhere.{name}", 0.0)
    with machines(tmp_path, 2) as made, answering(b"", "500 Internal Server Error", "204 No Content") as port:
        made.urls[1] = f"http://127.0.0.1:{port}"
        loader, load = epochs(made, 0)
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always", MploadWarning)
            for _ in range(3):
                load()
        loader.close()
    assert len([each for each in shown if "the cache of this machine" in str(each.message)]) == 1
