"""A server bounds what slow clients, long queues and kept samples cost, and finishes what it has begun."""

import http.client
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from mpload import MPDataset, RandomResizedCrop, Topology
from mpload.client.protocol import DATASET_HEADER
from mpload.servers import serving
from mpload.servers.limits import ServerLimits
from tests.support.batches import numbers, numbers_index
from tests.support.decoders import large_number
from tests.support.running_servers import asked, asking, running_server, wanted

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]
_SECONDS = 60.0


def _gated(folder: Path) -> Callable[[bytes], NDArray[np.int64]]:
    """Return a decoder that makes the samples from 90 once there is a file named `open`."""

    def decode(data: bytes) -> NDArray[np.int64]:
        number = np.frombuffer(data, np.int64)
        deadline = time.monotonic() + _SECONDS
        while number[0] >= 90 and not (folder / "open").exists():
            time.sleep(0.01)
            assert time.monotonic() < deadline
        return number

    return decode


def _gated_dataset(folder: Path) -> MPDataset[Any]:
    made = numbers(folder, 100)
    made._run.pipeline.maker.decode = _gated(folder)
    return made


def test_a_slow_request_delays_no_other(tmp_path: Path) -> None:
    with running_server(_gated_dataset(tmp_path)) as url, ExitStack() as stack:
        slow, fast = (stack.enter_context(asking(_gated_dataset(tmp_path), url)) for _ in range(2))
        with ThreadPoolExecutor(1) as thread:
            late = thread.submit(slow.labels, wanted([93]))
            for first in range(10, 60, 5):
                assert fast.labels(wanted(range(first, first + 5))) == [*range(first, first + 5)]
            assert not late.done()
            (tmp_path / "open").touch()
            assert late.result() == [93]


def test_a_server_that_stops_finishes_the_requests_under_way(tmp_path: Path) -> None:
    def open_once_no_more_clients_are_accepted(port: int) -> None:
        deadline = time.monotonic() + _SECONDS
        while any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port
            for each in psutil.Process().net_connections("tcp")
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (tmp_path / "open").touch()

    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        url = stack.enter_context(running_server(_gated_dataset(tmp_path)))
        with asking(_gated_dataset(tmp_path), url) as slow, asking(_gated_dataset(tmp_path), url) as watch:
            late = threads.submit(slow.labels, wanted([93]))
            watch.await_metric("requests_under_way", 1)
            threads.submit(open_once_no_more_clients_are_accepted, watch.connection.port)
            stack.close()  # stops the server
            assert late.result() == [93]


def test_a_queue_that_is_too_long_is_refused_and_the_rest_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_MAX_SLOTS", 6)
    num_at_once, num_waiting, num_refused = 4, 2, 3
    limits = ServerLimits(max_waiting=num_waiting)
    with ExitStack() as stack:
        asker = stack.enter_context(asked(lambda: _gated_dataset(tmp_path), num_workers=1, limits=limits))
        clients = [
            stack.enter_context(closing(http.client.HTTPConnection(asker.address, timeout=_SECONDS)))
            for _ in range(num_at_once + num_waiting + num_refused)
        ]
        for number, client in enumerate(clients):
            client.request("POST", "/v1/samples", wanted([90 + number]).encode(), asker.headers())
        deadline = time.monotonic() + _SECONDS
        while f'requests_total{{status="503"}} {num_refused}\n' not in asker.get("/metrics")[1].decode():
            assert time.monotonic() < deadline
        assert asker.metric("waiting_requests") == num_waiting
        (tmp_path / "open").touch()
        responses = [client.getresponse() for client in clients]
        assert sum(response.status == 200 for response in responses) == num_at_once + num_waiting
        assert {response.headers["Retry-After"] for response in responses if response.status == 503} == {"1"}


def test_a_client_that_never_reads_is_cut_off_and_its_slot_is_used_again(photos: Path) -> None:
    def dataset() -> MPDataset[Any]:
        return MPDataset(photos, decode=RandomResizedCrop(224), batch_size=4, topology=Topology())

    with running_server(dataset(), limits=ServerLimits(client_seconds=1.0)) as url, ExitStack() as stack:
        asker = stack.enter_context(asking(dataset(), url))
        idle = stack.enter_context(closing(socket.socket()))
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect((asker.connection.host, asker.connection.port))
        body = wanted(np.arange(256) % 24).encode()
        head = f"POST /v1/samples HTTP/1.1\r\n{DATASET_HEADER}: {asker.description.digest}\r\nHost: x\r\n"
        idle.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        asker.await_metric("cut_off_total", 1)  # asked for on one connection, which is not idle
        assert asker.get("/healthz")[0] == 200


@contextmanager
def _asking_without_reading(address: str, *, num_clients: int) -> Iterator[None]:
    """Send requests that need no token over some connections, until they are full of answers that nobody reads."""
    host, port = address.split(":")
    with ExitStack() as stack:
        for _ in range(num_clients):
            client = stack.enter_context(closing(socket.socket()))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            client.connect((host, int(port)))
            client.settimeout(0.5)
            with suppress(OSError):
                while True:
                    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        yield


@pytest.mark.slow
def test_clients_that_never_read_what_needs_no_token_are_cut_off_once(dataset: Callable[[], MPDataset[Any]]) -> None:
    num_clients = 4
    with asked(dataset, limits=ServerLimits(client_seconds=1.0)) as asker:
        before = len(psutil.Process().net_connections("tcp"))
        with _asking_without_reading(asker.address, num_clients=num_clients):
            asker.await_metric("cut_off_total", num_clients)
            deadline = time.monotonic() + _SECONDS
            while len(psutil.Process().net_connections("tcp")) > before + num_clients:  # those of the clients are here
                assert time.monotonic() < deadline
                asker.await_metric("cut_off_total", num_clients)
            assert asker.metric("cut_off_total") == num_clients


@pytest.mark.slow
def test_clients_that_never_read_do_not_delay_the_stop(
    dataset: Callable[[], MPDataset[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    limits = ServerLimits(client_seconds=60.0, stop_seconds=3.0)
    with ExitStack() as clients, ExitStack() as server:
        url = server.enter_context(running_server(dataset(), limits=limits))
        clients.enter_context(_asking_without_reading(urlsplit(url).netloc, num_clients=3))
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < limits.stop_seconds + 2.0
    assert not caplog.text


@pytest.mark.slow
def test_a_request_that_takes_longer_than_the_time_to_stop_is_given_up(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack, ExitStack() as server:
        url = server.enter_context(running_server(_gated_dataset(tmp_path), limits=ServerLimits(stop_seconds=1.0)))
        slow, watch = (stack.enter_context(asking(_gated_dataset(tmp_path), url)) for _ in range(2))
        late = thread.submit(slow.labels, wanted([93]))
        watch.await_metric("requests_under_way", 1)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 8.0
        assert isinstance(late.exception(), (http.client.HTTPException, ConnectionError))


def test_clients_that_hang_up_are_counted_as_such(tmp_path: Path) -> None:
    with asked(lambda: _gated_dataset(tmp_path)) as asker:
        with closing(http.client.HTTPConnection(asker.address, timeout=_SECONDS)) as client:
            client.request("POST", "/v1/samples", wanted([93]).encode(), asker.headers())
            asker.await_metric("requests_under_way", 1)
        (tmp_path / "open").touch()
        deadline = time.monotonic() + _SECONDS
        while 'requests_total{status="499"} 1\n' not in (found := asker.get("/metrics")[1].decode()):
            assert time.monotonic() < deadline
        assert 'status="408"' not in found


def test_requests_that_are_no_http_are_counted_and_not_written_down(
    dataset: Callable[[], MPDataset[Any]], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sent = [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(600),
    ]
    with asked(dataset) as asker:
        host, port = asker.address.split(":")
        for head in sent:
            with socket.create_connection((host, int(port)), timeout=_SECONDS) as client:
                client.sendall(head)
                assert b" 400 " in client.recv(1024)
        asker.await_metric("malformed_total", len(sent))
        with socket.create_connection((host, int(port)), timeout=_SECONDS) as client:
            begun = f"POST /v1/samples HTTP/1.1\r\nHost: x\r\n{DATASET_HEADER}: {asker.description.digest}\r\n"
            client.sendall(f"{begun}Transfer-Encoding: chunked\r\n\r\nno size\r\n".encode())
            assert b" 400 " in client.recv(1024)
    assert "Traceback" not in capfd.readouterr().err + caplog.text


@pytest.mark.parametrize("start", ["", "POST /v1/sam", "POST /v1/samples HTTP/1.1\r\nHost: x\r\nX: "])
def test_a_client_that_sends_its_request_byte_by_byte_is_cut_off(
    dataset: Callable[[], MPDataset[Any]], start: str
) -> None:
    with running_server(dataset(), limits=ServerLimits(client_seconds=0.5)) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=0.05) as slow:
            slow.sendall(start.encode())
            deadline = time.monotonic() + _SECONDS
            while True:
                assert time.monotonic() < deadline
                try:
                    slow.sendall(b"x" * bool(start))
                    if not slow.recv(1024):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break


def test_a_body_that_never_ends_is_refused(dataset: Callable[[], MPDataset[Any]]) -> None:
    with asked(dataset, limits=ServerLimits(client_seconds=0.5)) as asker:
        asker.connection.putrequest("POST", "/v1/samples")
        asker.connection.putheader(DATASET_HEADER, asker.description.digest)
        asker.connection.putheader("Content-Length", "100")
        asker.connection.endheaders(b"\x01\0")
        assert asker.connection.getresponse().status == 408


@pytest.mark.slow
def test_kept_samples_stay_within_the_memory_of_the_server(tmp_path: Path) -> None:
    def dataset() -> MPDataset[Any]:
        return MPDataset(numbers_index(tmp_path, 100), decode=large_number, batch_size=4, topology=Topology())

    budget_mib = 320
    with asked(dataset, num_workers=1, memory_budget=f"{budget_mib}MiB") as asker:
        for epoch in range(20):
            assert asker.labels(wanted(range(16), epoch=epoch)) == [*range(16)]
            assert asker.metric("slots_bytes") <= budget_mib << 20
        assert asker.metric("kept_answers") >= 2
