"""Servers on machines with networks of their own, as far as namespaces are machines: cables are pulled."""

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mpload import MPDataset, MPLoader, RandomResizedCrop, Servers, Topology, build_index
from mpload.errors import MploadWarning
from tests.support.namespaces import Machine, can_make_machines, machine
from tests.support.serve_processes import Process, serve_process
from tests.support.typed import comparable

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
    pytest.mark.processes,
    pytest.mark.slow,
]

TOKEN = "a secret of at least sixteen characters"


@pytest.fixture(scope="module")
def index(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("networks.txt"))


@pytest.fixture
def machines(index: Path) -> Iterator[list[tuple[Machine, Process]]]:
    """Two machines, and the server that runs on each."""
    if not can_make_machines():
        pytest.skip("this process may not make network namespaces")
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            each = stack.enter_context(machine())
            options = ("--token", TOKEN, "--host", each.address)
            found.append((each, stack.enter_context(serve_process(index, *options, before=each.runs))))
        yield found


def dataset(index: Path, **options: Any) -> MPDataset[Any]:
    options = {"batch_size": 6, "shuffle": True, "topology": Topology(), **options}
    return MPDataset(index, decode=RandomResizedCrop(224), **options)


def epochs(loader: Any, number: int) -> list[Any]:
    return [comparable(batch) for _ in range(number) for batch in loader]


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
