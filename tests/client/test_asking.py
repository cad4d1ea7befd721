"""One worker's requests: how long it waits, and for whom."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpload import Servers
from mpload.client.asking import Asking
from mpload.client.protocol import Description
from mpload.client.requests import Piece
from mpload.errors import ServerError
from mpload.storage.notices import Notice
from tests.support.raw_server import dropping, head, raw_server

_DESCRIPTION = Description(index="index", pipeline="pipeline", fields=())


def _asking(servers: Servers, notices: list[Notice]) -> Asking:
    return Asking(servers, _DESCRIPTION, notify=notices.append)


def test_server_that_has_failed_gets_little_time_to_show_that_it_is_back() -> None:
    for fallback, limit_seconds in (("local", 1.0), ("raise", 30.0)):
        servers = Servers(urls=["http://127.0.0.1:1"], fallback=fallback)  # type: ignore[arg-type]
        asking = _asking(servers, [])
        assert asking._patience.answer_seconds(0, 0.0) == 30.0
        asking._choice.failed(0, 0.0, "fails")
        assert asking._patience.answer_seconds(0, 0.0) == limit_seconds


def test_worker_that_can_make_samples_itself_waits_for_no_server_that_has_failed() -> None:
    notices: list[Notice] = []
    lives: list[None] = []

    def answer(connection: object, path: str) -> bool:
        return False

    with raw_server(answer) as url:
        asking = _asking(Servers(urls=[url, "http://127.0.0.1:1"]), notices)
        piece = Piece((0, 0), 0, 4)
        for _ in range(3):
            found = asking.answer(piece, lambda: b"", _never, live=lambda: lives.append(None))
            assert found is None
    assert [notice.is_outage for notice in notices] == [True, True]
    assert len(lives) == 4  # both servers are asked for the first piece


@pytest.mark.slow
def test_many_servers_that_drop_packets_cost_a_worker_one_time_limit() -> None:
    notices: list[Notice] = []
    with ExitStack() as stack:
        urls = [stack.enter_context(dropping()) for _ in range(8)]
        asking = _asking(Servers(urls=urls, connect_timeout_seconds=0.5), notices)
        began, num_answers = time.monotonic(), 0
        while time.monotonic() < began + 5:
            piece = Piece((0, num_answers), 0, 4)
            asking.ask_ahead({piece: lambda: b""})
            assert asking.answer(piece, lambda: b"", _never, live=lambda: None) is None
            num_answers += 1
            time.sleep(0.01)  # makes the samples
        assert num_answers > 0.7 * 5 / 0.012
    assert len(notices) == len(urls)


@pytest.mark.parametrize("num_servers", [1, 3])
@pytest.mark.parametrize("kind", ["drops", "silent"])
def test_wait_for_servers_ends_when_it_should_and_the_error_gives_its_length(kind: str, num_servers: int) -> None:
    with ExitStack() as stack:
        made = dropping if kind == "drops" else partial(raw_server, lambda *_: True)
        urls = [stack.enter_context(made()) for _ in range(num_servers)]
        asking, piece = _asking(Servers(urls=urls, fallback="raise", retry_seconds=0.8), []), Piece((0, 0), 0, 4)
        began = time.monotonic()
        asking.ask_ahead({piece: lambda: b""})
        with pytest.raises(ServerError, match=r"for (?:0\.8\d*|0\.9\d*|8\d\d m|9\d\d m) ?s: .*http"):
            asking.answer(piece, lambda: b"", _never, live=lambda: None)
        assert time.monotonic() - began < 1.2 * 0.8


@pytest.mark.parametrize("kind", ["drops", "silent"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_that_uses_up_the_time_leaves_some_for_others(kind: str, is_first: bool) -> None:
    asked: list[str] = []

    def refuse(connection: object, path: str) -> bool:
        asked.append(path)
        return False

    with ExitStack() as stack:
        bad = stack.enter_context(dropping() if kind == "drops" else raw_server(lambda *_: True))
        good = stack.enter_context(raw_server(refuse))
        urls = [bad, good] if is_first else [good, bad]
        asking = _asking(Servers(urls=urls, fallback="raise", retry_seconds=0.8), [])
        with pytest.raises(ServerError, match="no server has made samples"):
            asking.answer(Piece((0, 0), 0, 4), lambda: b"", _never, live=lambda: None)
    assert asked


def test_what_is_needed_now_takes_the_place_of_what_was_asked_for_ahead_of_a_server_that_may_be_back() -> None:
    """Such a server gets one request at a time, and an answer made ahead is read only after what is needed now."""

    def stay_silent(connection: object, path: str) -> bool:
        return True

    with raw_server(stay_silent) as url:
        servers = Servers(urls=[url], fallback="raise", request_timeout_seconds=1.0, retry_seconds=3.0)
        asking = _asking(servers, [])
        asking._choice.failed(0, time.monotonic() - 60, "was killed")
        asking.ask_ahead({Piece((0, 1), 0, 4): lambda: b""})
        assert len(asking._open) == 1
        with pytest.raises(ServerError, match="has not answered for"):  # so it was asked
            asking.answer(Piece((0, 0), 0, 4), lambda: b"", _never, live=lambda: None)


_LISTEN = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("listens", flush=True)
    while True:
        with listening.accept()[0] as connected:
            connected.recv(65536)
            connected.sendall(b"HTTP/1.1 503 Busy\\r\\nRetry-After: 1\\r\\nContent-Length: 0\\r\\n\\r\\n")
"""


@contextmanager
def _listening_at(path: Path, user: int) -> Iterator[str]:
    """Listen at a Unix socket as a user, and yield its URL."""
    with subprocess.Popen([sys.executable, "-c", _LISTEN, path, str(user)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listens\n"
            yield f"unix://{path}"
        finally:
            process.kill()


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_socket_of_another_user_is_refused_unless_the_loader_has_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    user, piece = 12_345, Piece((0, 0), 0, 4)

    def ask(url: str, **options: Any) -> object:
        asking = _asking(Servers(urls=[url], **options), [])
        asking.ask_ahead({piece: lambda: b""})
        return asking.answer(piece, lambda: b"", _never, live=lambda: None)

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        shared = Path(name)
        shared.chmod(0o1777)
        url = stack.enter_context(_listening_at(shared / "s", user))
        with pytest.raises(ServerError, match=rf"unix://.*/s is a server of user {user}, .* pass token="):
            ask(url)
        assert ask(url, token="secret") is None  # it is asked, and busy
        monkeypatch.setattr(os, "geteuid", lambda: user)
        assert ask(url) is None
        assert ask(stack.enter_context(_listening_at(shared / "root", 0))) is None


def _never(*_: object) -> Any:
    raise AssertionError(head("200 OK"))
