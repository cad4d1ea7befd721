"""One worker's requests: how long it waits, and for whom."""

import time
from typing import Any

import pytest

from mpload import Servers
from mpload.client.asking import Asking
from mpload.client.protocol import Description
from mpload.client.requests import Piece
from mpload.errors import ServerError
from mpload.storage.notices import Notice
from tests.support.raw_server import head, raw_server

_DESCRIPTION = Description(index="index", pipeline="pipeline", fields=())


def _asking(servers: Servers, notices: list[Notice]) -> Asking:
    return Asking(servers, _DESCRIPTION, notify=notices.append)


def test_server_that_has_failed_gets_little_time_to_show_that_it_is_back() -> None:
    for fallback, limit_seconds in (("local", 1.0), ("raise", 30.0)):
        servers = Servers(urls=["http://127.0.0.1:1"], fallback=fallback)  # type: ignore[arg-type]
        asking = _asking(servers, [])
        assert asking._limit_seconds(0) == 30.0
        asking._choice.failed(0, 0.0, "fails")
        assert asking._limit_seconds(0) == limit_seconds


def test_worker_that_can_make_samples_itself_waits_little_for_servers() -> None:
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
    assert len(lives) >= 5


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


def _never(*_: object) -> Any:
    raise AssertionError(head("200 OK"))
