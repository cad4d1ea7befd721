"""Loaders and the servers that users start, in processes of their own: bit for bit the same, whatever is killed."""

import resource
import signal
import socket
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mpload import MPDataset, MPLoader, RandomResizedCrop, Servers, Topology, build_index
from mpload.errors import MploadWarning, ServerError
from tests.support.namespaces import Machine, can_make_machines, machine
from tests.support.serve_processes import Process, fault_proxy, serve_process
from tests.support.typed import comparable

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
    pytest.mark.slow,
]

TOKEN = "a secret of at least sixteen characters"


@pytest.fixture(scope="module")
def index(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("real.txt"))


@pytest.fixture
def servers(index: Path) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serve_process(index, "--token", TOKEN)) for _ in range(2)]


def dataset(index: Path, **options: Any) -> MPDataset[Any]:
    options = {"batch_size": 6, "shuffle": True, "topology": Topology(), **options}
    return MPDataset(index, decode=RandomResizedCrop(224), **options)


def loading(index: Path, *urls: str, token: str = TOKEN, **limits: Any) -> MPLoader[Any]:
    limits = {"request_timeout_seconds": 3.0, "connect_timeout_seconds": 3.0, "retry_seconds": 60.0, **limits}
    return MPLoader(dataset(index), servers=Servers(urls=urls, token=token, **limits), num_workers=2)


def epochs(loader: Any, number: int) -> list[Any]:
    return [comparable(batch) for _ in range(number) for batch in loader]


@pytest.mark.parametrize("fallback", ["local", "raise"])
def test_killed_and_stopped_servers_change_no_batch(index: Path, servers: list[Process], fallback: str) -> None:
    alone = dataset(index)
    expected = epochs(alone, 12)
    first, second = servers
    with warnings.catch_warnings(), loading(index, first.url, second.url, fallback=fallback) as loader:
        warnings.simplefilter("ignore", MploadWarning)
        found = epochs(loader, 3)
        batches = iter(loader)
        found.append(comparable(next(batches)))
        first.signal(signal.SIGKILL)
        found += [comparable(batch) for batch in batches]
        found += epochs(loader, 2)
        second.signal(signal.SIGSTOP)
        if fallback == "raise":
            with serve_process(index, "--token", TOKEN, port=int(first.url.rpartition(":")[2])):
                found += epochs(loader, 6)
        else:
            found += epochs(loader, 6)
        assert found == expected
        assert loader.stats().timings.num_served > 0


@pytest.mark.parametrize("fault", ["slow", "resets", "stalls"])
def test_bad_links_change_no_batch(index: Path, servers: list[Process], fault: str) -> None:
    alone = dataset(index)
    expected = epochs(alone, 3)
    with (
        fault_proxy(servers[0].url, fault) as proxy,
        warnings.catch_warnings(),
        loading(index, proxy.url, servers[1].url, fallback="raise") as loader,
    ):
        warnings.simplefilter("ignore", MploadWarning)
        assert epochs(loader, 3) == expected


def test_other_token_and_other_dataset_are_refused(index: Path, servers: list[Process], tmp_path: Path) -> None:
    with (
        loading(index, servers[0].url, token="wrong " + TOKEN) as loader,
        pytest.raises(ServerError, match="wants another token"),
    ):
        next(iter(loader))
    smaller = MPDataset(index, decode=RandomResizedCrop(223), batch_size=6, topology=Topology())
    with (
        MPLoader(smaller, servers=[servers[0].url], token=TOKEN, num_workers=1) as loader,
        pytest.raises(ServerError, match=r"its pipeline is .*224.*, not .*223"),
    ):
        next(iter(loader))


def test_server_without_descriptors_says_so_once_and_goes_on(index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = ""
    with serve_process(index, "--no-token", "--host=127.0.0.1") as server, ExitStack() as connections:
        host, port = server.url.removeprefix("http://").split(":")
        num_open = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (num_open + 5, num_open + 5))
        for _ in range(20):
            connections.enter_context(socket.create_connection((host, int(port)), timeout=60))
        deadline = time.monotonic() + 60
        while "ulimit -n" not in told and time.monotonic() < deadline:
            time.sleep(0.02)
            told += capfd.readouterr().err
        connections.close()
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=60) as answer:
            assert answer.status == 200
    told += capfd.readouterr().err
    assert "Raise the limit: ulimit -n" in told
    assert "Traceback" not in told


@pytest.fixture
def machines(index: Path) -> Iterator[list[tuple[Machine, Process]]]:
    """Two network namespaces, which stand for machines, and the server that runs in each."""
    if not can_make_machines():
        pytest.skip("this process may not make network namespaces")
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            each = stack.enter_context(machine())
            options = ("--token", TOKEN, "--host", each.address)
            found.append((each, stack.enter_context(serve_process(index, *options, before=each.runs))))
        yield found


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fallback", ["local", "raise"])
def test_pulled_cables_change_no_batch(
    index: Path, machines: list[tuple[Machine, Process]], fallback: Any, rank: int
) -> None:
    """Nobody is told that a machine is gone: only the time limit ends the wait for it."""
    topology = Topology(rank=rank, world_size=2)
    expected = epochs(dataset(index, topology=topology), 12)
    (first, first_server), (second, second_server) = machines
    limits: dict[str, Any] = {"request_timeout_seconds": 2.0, "connect_timeout_seconds": 2.0, "retry_seconds": 60.0}
    servers = Servers(urls=[first_server.url, second_server.url], token=TOKEN, fallback=fallback, **limits)
    with (
        warnings.catch_warnings(),
        MPLoader(dataset(index, topology=topology), servers=servers, num_workers=2) as loader,
    ):
        warnings.simplefilter("ignore", MploadWarning)
        found = epochs(loader, 2)
        batches = iter(loader)
        found.append(comparable(next(batches)))
        first.unplug()
        began = time.monotonic()
        found += [comparable(batch) for batch in batches]
        assert time.monotonic() - began < 30  # a few time limits, on a busy machine
        found += epochs(loader, 3)
        if fallback == "local":
            second.unplug()
            found += epochs(loader, 2)
        first.plug()
        second.plug()
        found += epochs(loader, 12 - len(found) // (len(expected) // 12))
        assert found == expected
        assert loader.stats().timings.num_served > 0
