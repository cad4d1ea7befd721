"""Whether a server accepts connections is found out without waiting."""

import socket
import time

import pytest

from mpload.client.probing import Probe
from tests.support.raw_server import dropping, raw_server
from tests.support.transport_works import wait_until


def test_machine_that_drops_packets_is_not_waited_for() -> None:
    with dropping() as url:
        began = time.monotonic()
        probe = Probe(url, until=began + 60)
        assert not probe.is_done(began + 59)
        assert time.monotonic() - began < 1
        assert probe.is_done(began + 61)
        assert not probe.is_reached
        assert probe.problem == "does not answer within the time limit"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_server_that_accepts_connections_is_reached(host: str) -> None:
    with raw_server(lambda *_: True, host=host) as url:
        probe = Probe(url, until=float("inf"))
        assert wait_until(lambda: probe.is_done(0.0))
        assert probe.is_reached


def test_refused_connection_and_unknown_name_are_problems() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for each, problem in (
        (url, "ConnectionRefusedError: Connection refused"),
        ("http://nowhere.invalid:1", "gaierror"),
    ):
        probe = Probe(each, until=float("inf"))
        assert wait_until(lambda: probe.is_done(0.0))  # noqa: B023  called at once
        assert not probe.is_reached
        assert problem in probe.problem


def test_socket_file_needs_no_probe() -> None:
    probe = Probe("unix:///tmp/s", until=0.0)
    assert probe.is_done(0.0)
    assert probe.is_reached
