"""The web server of benchmarks: it delays as many requests as it was told, and counts what it sent."""

import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = [pytest.mark.processes, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from object_server import compile_server

        yield compile_server(tmp_path_factory.mktemp("program"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a b.bin").write_bytes(bytes(range(256)))
    (tmp_path / "bucket" / "large.bin").write_bytes(b"x" * 1_000_000)
    return tmp_path


def get(url: str, **headers: str) -> Any:
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read()


def test_a_client_that_leaves_in_the_middle_of_an_answer_does_not_end_the_server(files: Path, program: Path) -> None:
    from object_server import Delays, serving

    (files / "bucket" / "huge.bin").write_bytes(bytes(64 << 20))
    with serving(files, Delays(), program=program) as server:
        for _ in range(20):
            parts = urlsplit(server.url)
            with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as client:
                client.sendall(b"GET /bucket/huge.bin HTTP/1.1\r\nHost: x\r\n\r\n")
                client.recv(1000)
        assert get(f"{server.url}/bucket/a%20b.bin")[0] == 200


def test_the_server_sends_files_and_ranges_and_counts_them(files: Path, program: Path) -> None:
    from object_server import Delays, serving

    data = bytes(range(256))
    with serving(files, Delays(), program=program) as server:
        url = f"{server.url}/bucket/a%20b.bin"
        assert get(url) == (200, data)
        for wanted, part in {"5-9": data[5:10], "250-": data[250:], "-3": data[-3:], "250-999": data[250:]}.items():
            assert get(url, Range=f"bytes={wanted}") == (206, part)
        for wrong in ("/bucket/none", "/bucket/../bucket/large.bin"):
            assert get(server.url + wrong)[0] == 404
        assert get(url, Range="bytes=256-300")[0] == 416
        counts = server.counts()
    assert (counts.requests, counts.bytes) == (8, 256 + 5 + 6 + 3 + 6)


def test_a_connection_stays_open_and_takes_requests_ahead_of_their_answers(files: Path, program: Path) -> None:
    from object_server import Delays, serving

    with serving(files, Delays(), program=program) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
            connection.sendall(b"GET /bucket/large.bin HTTP/1.1\r\n\r\nHEAD /bucket/large.bin HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as answers:  # ends, since HTTP/1.0 closes the connection
                first, _, second = answers.read().partition(b"\r\n\r\n" + b"x" * 1_000_000)
        for head in (first, second):
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\nContent-Length: 1000000\r\n" in head
        assert server.counts().connections == 2  # the second one asks for the counts


def test_requests_wait_as_long_as_was_asked(files: Path, program: Path) -> None:
    from object_server import Delays, serving

    delays = Delays(delay_ms=20, slow_fraction=0.5, slow_ms=60, bytes_per_second=10_000_000)
    with serving(files, delays, program=program) as server:
        seconds = []
        for _ in range(8):
            start = time.perf_counter()
            get(f"{server.url}/bucket/a%20b.bin")
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        get(f"{server.url}/bucket/large.bin")
        assert time.perf_counter() - start > 0.1
        num_slow = server.counts().slow
    assert min(seconds) >= 0.02
    assert 0 < num_slow < 9
    assert sum(each >= 0.08 for each in seconds) >= num_slow - 1
