"""Reads without a thread for each request: the same bytes, and everything unusual is left to the other client."""

import itertools
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, RawBytes
from mpload.errors import IndexChangedError, StorageError
from mpload.storage import clients, quick_reads, transfers
from mpload.storage.in_flight import InFlight
from mpload.storage.quick_reads import is_direct
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.read_ahead import ReadAhead
from mpload.storage.remote import RemoteObjects
from mpload.storage.transfers import Transfers
from tests.support.begun_reads import WAIT_SECONDS, Paths, objects_at, quick_reads_of, read_begun, usual
from tests.support.raw_server import head, raw_server

pytestmark = pytest.mark.processes


def chunked(path: bytes) -> bytes:
    return head("200 OK", "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(path), path)


def test_many_objects_are_read_ahead_without_a_thread_for_each() -> None:
    paths = Paths(usual)
    with objects_at(paths) as objects:
        ahead = ReadAhead(objects)
        wanted = {number: [ByteRange(f"{number}.bin")] for number in range(200)}
        ahead.plan(wanted)
        for number, ranges in wanted.items():
            assert ahead.read(number, ranges) == [f"/{number}.bin".encode()]
        threads = ahead._threads
        assert isinstance(threads, InFlight)
        assert threads._threads.num_started == 0
    assert 200 <= paths.num_requests <= 204  # a few may be late, and are hedged


def test_a_server_that_is_unusual_is_soon_left_to_the_other_client() -> None:
    paths = Paths(chunked)
    with objects_at(paths) as objects:
        names = [f"{number}.bin" for number in range(20)]
        assert read_begun(objects, [ByteRange(name) for name in names]) == [f"/{name}".encode() for name in names]
    assert paths.num_requests == 20 + 3


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Encoding: identity"],
        ["Content-Type: text/html"],
        ["Content-Length: 6"],
        ["Trailer: X"],
        ["ETag: a", "ETag: b"],
    ],
)
def test_unusual_headers_are_left_to_the_other_client(lines: list[str]) -> None:
    paths = Paths(lambda path: head("200 OK", *lines, length=len(path)) + path)
    with objects_at(paths) as objects:
        assert read_begun(objects, [ByteRange("a.bin")]) == [b"/a.bin"]
    assert paths.num_requests == 2


@pytest.mark.parametrize("status", ["203 Other", "204 No Content", "206 Partial Content", "404 Not Found", "500 Oh"])
def test_an_answer_that_is_no_success_is_never_taken_for_the_object(status: str) -> None:
    with objects_at(Paths(lambda path: head(status, length=len(path)) + path)) as objects, pytest.raises(StorageError):
        read_begun(objects, [ByteRange("a.bin")])


@pytest.mark.parametrize(
    ("range_line", "body"),
    [
        ("bytes 2-4/9", b"cde"),
        ("bytes 1-3/9", b"bcd"),
        ("bytes 2-5/9", b"cde"),
        ("bytes 2-4/9", b"cd"),
        ("bytes 2-4/*", b"cde"),
        ("bytes 2-4/nine", b"cde"),
        ("pages 2-4/9", b"cde"),
        ("", b"cde"),
    ],
)
def test_a_span_is_exactly_what_was_requested(range_line: str, body: bytes) -> None:
    lines = [f"Content-Range: {range_line}"] * bool(range_line)
    paths = Paths(lambda _: head("206 Partial Content", *lines, length=len(body)) + body)
    with objects_at(paths) as objects:
        try:
            assert read_begun(objects, [Span("a.tar", 2, 3)]) == [b"cde"]
        except StorageError:
            assert (range_line, body) != ("bytes 2-4/9", b"cde")
    assert (paths.num_requests == 1) == ((range_line, body) == ("bytes 2-4/9", b"cde"))


def test_a_shard_that_was_replaced_is_noticed() -> None:
    versions = iter(["one", "one", "two", "two", "two"])

    def answer(_: bytes) -> bytes:
        lines = f'ETag: "{next(versions)}"', "Content-Range: bytes 2-4/9"
        return head("206 Partial Content", *lines, length=3) + b"cde"

    with objects_at(Paths(answer)) as objects:
        assert read_begun(objects, [Span("a.tar", 2, 3)] * 2) == [b"cde"] * 2
        with pytest.raises(IndexChangedError, match="was replaced"):
            read_begun(objects, [Span("a.tar", 2, 3)])


def test_an_answer_that_never_ends_is_cut_off() -> None:
    """Neither its length, which exceeds the span, nor its bytes without a length fill the memory."""
    sent = []

    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("206 Partial Content", "Content-Range: bytes 0-3/9"))
        for _ in range(1000):
            connection.sendall(bytes(1 << 20))
            sent.append(1)
        return False

    with objects_at(answer) as objects:
        assert read_begun(objects, [Span("a.tar", 0, 4)]) == [bytes(4)]
    assert len(sent) < 500


def test_a_connection_that_was_closed_is_made_anew() -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(usual(path.encode()))
        return False  # it is closed, though the answer does not say so

    with objects_at(answer) as objects:
        for number in range(5):
            assert read_begun(objects, [ByteRange(f"{number}.bin")]) == [f"/{number}.bin".encode()]
            time.sleep(0.02)


def test_a_forked_process_and_its_parent_go_on_reading() -> None:
    with objects_at(Paths(usual)) as objects:
        assert read_begun(objects, [ByteRange("a.bin")]) == [b"/a.bin"]
        pid = os.fork()
        if not pid:
            status = 1
            try:
                status = read_begun(objects, [ByteRange("b.bin")] * 3) != [b"/b.bin"] * 3
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert read_begun(objects, [ByteRange("c.bin")] * 3) == [b"/c.bin"] * 3


@pytest.mark.parametrize("function", ["_set", "_new_handle"])
def test_a_thread_that_dies_loses_no_read(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read that was begun goes on with the other client, and so do all later ones."""

    def die(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(transfers._Here, "transfers", None)
    with objects_at(Paths(usual)) as objects:
        if function == "_set":
            assert read_begun(objects, [ByteRange("a.bin")]) == [b"/a.bin"]
        monkeypatch.setattr(transfers, function, die)
        assert read_begun(objects, [ByteRange("b.bin")]) == [b"/b.bin"]
        ended = transfers._Here.transfers
        assert ended is not None
        ended._thread.join(WAIT_SECONDS)
        assert read_begun(objects, [ByteRange("c.bin")]) == [b"/c.bin"]


def test_a_system_that_refuses_the_thread_costs_speed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(transfers._Here, "transfers", None)
    monkeypatch.setattr(transfers._Here, "starts_at", 0.0)
    monkeypatch.setattr(Transfers, "__init__", refuse)
    with objects_at(Paths(usual)) as objects:
        assert read_begun(objects, [ByteRange("a.bin")]) == [b"/a.bin"]


def test_a_proxy_is_left_to_the_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_direct("http://data.example.com/a", is_bucket=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        with monkeypatch.context() as context:
            context.setenv(name, "http://127.0.0.1:3128")
            assert not is_direct("http://data.example.com/a", is_bucket=False)
            context.setenv("no_proxy", ".example.com")
            assert is_direct("http://data.example.com/a", is_bucket=False)


@pytest.mark.parametrize(
    "busy",
    [
        head("503 Busy", "Retry-After: 1", length=0),
        head("503 Busy", "retry-after: 1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    ],
)
def test_a_server_that_asks_to_wait_is_left_alone(busy: bytes) -> None:
    times = []

    def answer(path: bytes) -> bytes:
        times.append(time.monotonic())
        return busy if len(times) == 1 else usual(path)

    with objects_at(Paths(answer)) as objects:
        assert read_begun(objects, [ByteRange("a.bin")]) == [b"/a.bin"]
    assert len(times) == 2
    assert times[1] - times[0] > 0.9


def test_a_few_failures_do_not_end_this_way_of_reading() -> None:
    numbers = itertools.count()
    paths = Paths(lambda path: chunked(path) if next(numbers) % 40 == 0 else usual(path))
    with objects_at(paths) as objects:
        assert read_begun(objects, [ByteRange("a.bin")] * 200) == [b"/a.bin"] * 200
        (server,) = objects._servers.values()
        assert server._quick is not None
        assert server._quick.is_usual
    assert 200 < paths.num_requests < 210


def test_an_outage_counts_once_against_this_way_of_reading() -> None:
    quick = quick_reads_of(str)
    for _ in range(100):
        quick.refused(is_failure=True)
    assert quick.is_usual
    for _ in range(3):
        quick.refused(is_failure=False)
    assert not quick.is_usual


def test_large_objects_are_left_to_the_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_reads, "_MAX_BYTES", 10)
    with objects_at(Paths(usual)) as objects:
        for number in range(10, 20):
            assert read_begun(objects, [ByteRange(f"{number}-large.bin")]) == [f"/{number}-large.bin".encode()]
            assert read_begun(objects, [ByteRange(f"{number}.bin")]) == [f"/{number}.bin".encode()]
        (server,) = objects._servers.values()
        assert server._quick is not None
        assert server._quick.is_usual


def test_a_page_that_is_longer_than_the_span_is_an_answer() -> None:
    page = b"there is no such page" * 10
    with objects_at(Paths(lambda _: head("404 Not Found", length=len(page)) + page)) as objects:
        with pytest.raises(StorageError, match="no such object"):
            read_begun(objects, [Span("a.tar", 0, 4)])
        assert objects.may_read_again(Span("a.tar", 0, 4))


@pytest.mark.parametrize(
    "path", ["a/./b.bin", "./a.bin", "a/%2e/b", "a/%2E", "a//b", "a[1-3].bin", "a{b,c}", "a b#c?d"]
)
def test_a_path_is_requested_as_it_is_written(path: str) -> None:
    with objects_at(Paths(usual)) as objects:
        (found,) = read_begun(objects, [ByteRange(path)])
        (expected,) = RemoteObjects.read(objects, [ByteRange(path)])
        assert found.upper() == expected.upper(), "old versions of urllib3 write %2e as %2E"


@pytest.mark.parametrize("content_type", ["text/html", "Text/HTML; charset=utf-8"])
def test_a_login_page_is_no_photo(content_type: str) -> None:
    page = head("200 OK", f"Content-Type: {content_type}", length=5) + b"login"
    with objects_at(Paths(lambda _: page)) as objects, pytest.raises(StorageError, match="answer is a web page"):
        read_begun(objects, [ByteRange("a.jpg")])


def test_certificates_that_the_environment_excludes_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "none.pem").touch()
    for name, value, is_trusted in (
        ("SSL_CERT_FILE", str(tmp_path / "none.pem"), True),
        ("SSL_CERT_FILE", str(tmp_path / "missing.pem"), False),
        ("SSL_CERT_FILE", "/dev/null", False),
        ("SSL_CERT_DIR", str(tmp_path), True),
        ("SSL_CERT_DIR", f"{tmp_path}:{tmp_path}", False),
    ):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert is_direct("https://data.example.com/a", is_bucket=False) == is_trusted
            assert not is_direct("https://data.example.com/a", is_bucket=True), "obstore understands them otherwise"
            assert is_direct("http://data.example.com/a", is_bucket=False)


def test_names_below_localhost_are_left_to_the_other_client() -> None:
    assert is_direct("http://localhost:80/a", is_bucket=False)
    assert not is_direct("http://data.localhost:80/a", is_bucket=False)
    assert not is_direct("http://data.localhost.:80/a", is_bucket=False)


def test_workers_read_objects_in_this_way(tmp_path: Path) -> None:
    with raw_server(Paths(usual)) as url:
        lines = "".join(f"{number}.bin\n" for number in range(64))
        (tmp_path / "index.txt").write_text(f"#mpload 1\n#columns image:path\n#root {url}\n{lines}")
        dataset = MPDataset(tmp_path / "index.txt", decode=RawBytes(), batch_size=8)
        with MPLoader(dataset, num_workers=2) as loader:
            found = [each for batch in loader for each in batch]
    assert found == [f"/{number}.bin".encode() for number in range(64)]


def test_a_library_that_fails_when_imported_stops_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError(name)

    monkeypatch.setattr(clients, "import_module", fail)
    with objects_at(Paths(usual)) as objects:
        objects.share_files()
        assert objects.read([ByteRange("0.bin")]) == [b"/0.bin"]
