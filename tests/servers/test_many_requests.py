"""A server in a process of its own answers any number of requests, and of clients, in the same memory."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest

from mpload import MPDataset
from mpload.client.protocol import DATASET_HEADER
from mpload.loader.index_source import IndexSource
from mpload.units import MIB
from tests.support.batches import numbers_index
from tests.support.decoders import number_in
from tests.support.running_servers import wanted
from tests.support.serve_processes import Process, serve_process

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
    pytest.mark.slow,
]
NUM_SAMPLES = 1000
NUM_CLIENTS = 8
_SECONDS = 120


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers_index(tmp_path_factory.mktemp("many"), NUM_SAMPLES)


@pytest.fixture(scope="module")
def headers(index: Path) -> dict[str, str]:
    source = IndexSource(MPDataset(index, decode=number_in, batch_size=1)._runs)
    return {DATASET_HEADER: source.describe(source.sample_fields()).digest}


@pytest.fixture(scope="module")
def server(index: Path) -> Iterator[Process]:
    with serve_process(
        index, "--no-token", "--host=127.0.0.1", "--memory=512MiB", "--decode=tests.support.decoders:number_in"
    ) as process:
        yield process


def ask(connection: HTTPConnection, headers: dict[str, str], number: int) -> None:
    """Ask for two samples, and check the answer."""
    sample_ids = [number % NUM_SAMPLES, number * 7 % NUM_SAMPLES]
    connection.request("POST", "/v1/samples", wanted(sample_ids, epoch=number).encode(), headers)
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    assert np.frombuffer(body[-16:], "<i8").tolist() == sample_ids


def ask_many(url: str, headers: dict[str, str], requests: range) -> None:
    """Send requests over one connection."""
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=_SECONDS)) as connection:
        for number in requests:
            ask(connection, headers, number)


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants that is not in files or shared memory."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    texts = [Path(f"/proc/{process.pid}/status").read_text() for process in family]
    return sum(1024 * int(text.split("RssAnon:")[1].split()[0]) for text in texts)


def test_memory_of_a_server_does_not_grow_over_a_hundred_thousand_requests(
    server: Process, headers: dict[str, str]
) -> None:
    used = []
    for first in range(0, 100_000, 10_000):
        requests = [range(first + client, first + 10_000, NUM_CLIENTS) for client in range(NUM_CLIENTS)]
        with ThreadPoolExecutor(NUM_CLIENTS) as threads:
            list(threads.map(lambda each: ask_many(server.url, headers, each), requests))
        used.append(anonymous_bytes(server.pid))
    assert used[-1] < used[1] + 4 * MIB, used  # 50 bytes for each request


def test_two_hundred_clients_at_once_are_all_answered(server: Process, headers: dict[str, str]) -> None:
    num_clients = 200
    connections = [HTTPConnection(urlsplit(server.url).netloc, timeout=_SECONDS) for _ in range(num_clients)]
    with ThreadPoolExecutor(num_clients) as threads:
        for turn in range(5):
            numbers = range(turn * num_clients, (turn + 1) * num_clients)
            list(threads.map(ask, connections, [headers] * num_clients, numbers))
    assert len({connection.sock.getsockname() for connection in connections}) == num_clients
    for connection in connections:
        connection.close()
