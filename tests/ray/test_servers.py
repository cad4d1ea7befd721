"""Servers on a Ray cluster: batches are those of this machine, whatever is killed, and nothing is left behind."""

import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from mpload import (
    ArgumentError,
    ImageDecoder,
    MPDataset,
    MPLoader,
    MploadError,
    RandomResizedCrop,
    RayServers,
    Servers,
    Topology,
    build_index,
)
from tests.support.batches import numbers
from tests.support.decoders import number_in
from tests.support.programs import REPOSITORY
from tests.support.ray_cluster import TestCluster
from tests.support.transport_works import wait_until
from tests.support.typed import comparable

NUM_EPOCHS = 4
OPTIONS: dict[str, Any] = {"resources": {"CPU": 0.5}, "num_workers": 1, "memory_budget": "256MiB"}


def dataset(index: Path, **options: Any) -> MPDataset[Any]:
    options = {"batch_size": 4, "shuffle": True, "topology": Topology(), "decode": RandomResizedCrop(64), **options}
    return MPDataset(index, **options)


def batches(loader: Any, *, num_epochs: int = NUM_EPOCHS, at: int = -1, do: Callable[[], object] = list) -> list[Any]:
    """Return the batches of epochs; before batch `at`, call `do`."""
    found: list[Any] = []
    for epoch in range(num_epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            if len(found) == at:
                do()
            found.append(comparable(batch))
    return found


def loading(index: Path, servers: RayServers, **options: Any) -> MPLoader[Any]:
    """Return a loader that asks the servers of the list, and makes samples itself only if none is left."""
    limits: Any = {"request_timeout_seconds": 3.0, "connect_timeout_seconds": 3.0, **options}
    return MPLoader(
        dataset(index), servers=Servers(list_file=servers.list_file, token=servers.token, **limits), num_workers=1
    )


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def family(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return processes with all below them."""
    return [*processes, *(child for process in processes for child in process.children(recursive=True))]


@pytest.fixture(scope="module")
def photo_index(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("ray.txt"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::mpload.MploadWarning")  # that servers are lost
class TestOnTwoNodes:
    def test_batches_are_those_of_this_machine_for_all_ranks_and_shapes(
        self, cluster: TestCluster, photo_index: Path
    ) -> None:
        for decode in (RandomResizedCrop(64), ImageDecoder()):
            with RayServers(dataset(photo_index, decode=decode), **OPTIONS) as servers:
                assert len(servers.urls) == 2
                for rank in range(2):
                    options = {"decode": decode, "topology": Topology(rank=rank, world_size=2)}
                    expected = batches(dataset(photo_index, **options), num_epochs=1)
                    asked: Any = {"servers": servers.list_file, "token": servers.token, "fallback": "raise"}
                    with MPLoader(dataset(photo_index, **options), num_workers=1, **asked) as loader:
                        assert batches(loader, num_epochs=1) == expected
                        timings = loader.stats().timings
                        assert timings.num_served == timings.num_samples > 0

    def test_a_killed_server_is_started_again_at_its_address_and_changes_no_batch(
        self, cluster: TestCluster, photo_index: Path
    ) -> None:
        expected = batches(dataset(photo_index))
        with RayServers(dataset(photo_index), num_servers=2, **OPTIONS) as servers:
            urls = servers.urls
            first = cluster.server_processes()
            with loading(photo_index, servers) as loader:
                assert batches(loader, at=5, do=first[0].kill) == expected
            assert wait_until(lambda: len({*cluster.server_processes()} - {*first}) == 1)
            assert wait_until(lambda: servers.urls == urls)
            with loading(photo_index, servers, fallback="raise") as loader:
                assert batches(loader) == expected

    def test_a_stopped_server_is_replaced(self, cluster: TestCluster, photo_index: Path) -> None:
        expected = batches(dataset(photo_index))
        with RayServers(dataset(photo_index), num_servers=1, patience_seconds=5, **OPTIONS) as servers:
            [stopped] = cluster.server_processes()
            with loading(photo_index, servers) as loader:
                assert batches(loader, at=5, do=stopped.suspend) == expected
            assert wait_until(lambda: is_dead(stopped))
            assert wait_until(lambda: len(servers.urls) == 1)
            with loading(photo_index, servers, fallback="raise") as loader:
                assert batches(loader) == expected

    def test_a_server_of_a_killed_node_moves_and_loaders_follow(self, cluster: TestCluster, photo_index: Path) -> None:
        expected = batches(dataset(photo_index))
        with RayServers(dataset(photo_index), **OPTIONS) as servers, ExitStack() as stack:
            urls, first = set(servers.urls), cluster.server_processes()

            def takes(url: str) -> bool:
                """Take the address of a server that has died: both nodes are this machine, so it would return there."""
                with suppress(OSError):
                    stack.enter_context(socket.create_server(address(url)))
                    return True
                return False

            def kill_node() -> None:
                cluster.kill_node()
                assert wait_until(lambda: any(map(takes, urls)))

            with loading(photo_index, servers) as loader:
                assert batches(loader, at=5, do=kill_node) == expected
                stack.callback(cluster.add_node)
                assert wait_until(lambda: len([each for each in first if is_dead(each)]) == 1)
                assert wait_until(lambda: len(servers.urls) == 2 and set(servers.urls) != urls), (urls, servers.urls)
                [survivor] = [process for process in first if not is_dead(process)]
                survivor.suspend()  # so that only the one that has moved can answer
                before = loader.stats().timings.num_served
                assert batches(loader) == expected
                assert loader.stats().timings.num_served > before
                survivor.resume()

    def test_without_servers_the_loader_goes_on_and_nothing_is_left(
        self, cluster: TestCluster, photo_index: Path
    ) -> None:
        expected = batches(dataset(photo_index))
        servers = RayServers(dataset(photo_index), **OPTIONS)
        [supervisor] = [child for child in psutil.Process().children() if "mpload.ray.supervisor" in child.cmdline()]
        processes = [supervisor, *family(cluster.server_processes())]
        assert len(processes) == 7  # each server has a zygote and a worker
        with loading(photo_index, servers) as loader:
            assert batches(loader, at=5, do=servers.close) == expected
            assert loader.stats().timings.num_served < loader.stats().timings.num_samples
        assert servers.urls == ()
        assert not servers.list_file.exists()
        assert wait_until(lambda: all(map(is_dead, processes))), [each for each in processes if not is_dead(each)]
        servers.close()

    def test_servers_end_with_the_program(self, cluster: TestCluster, photo_index: Path, tmp_path: Path) -> None:
        program = (
            "import sys, time, mpload\n"
            "dataset = mpload.MPDataset(sys.argv[1], decode=mpload.RandomResizedCrop(64), batch_size=4)\n"
            "servers = mpload.RayServers(dataset, num_workers=1, memory_budget='256MiB', list_file=sys.argv[2])\n"
            "print(len(servers.urls), flush=True); time.sleep(300)\n"
        )
        command = [sys.executable, "-c", program, str(photo_index), str(tmp_path / "servers.txt")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as started:
            assert started.stdout is not None
            assert started.stdout.readline() == "2\n"
            processes = family([*cluster.server_processes(), *psutil.Process(started.pid).children()])
            started.kill()
        assert wait_until(lambda: all(map(is_dead, processes)))
        assert (tmp_path / "servers.txt").read_text() == ""

    def test_what_keeps_a_server_from_starting_is_raised(
        self, cluster: TestCluster, photo_index: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ArgumentError, match=r"no node of the Ray cluster has the resources \{'decoders': 1\}"):
            RayServers(dataset(photo_index), resources={"decoders": 1})
        wanted = numbers(tmp_path, 10)
        (tmp_path / "10.txt").unlink()
        with pytest.raises(MploadError, match=r"10\.txt"):
            RayServers(wanted, **OPTIONS)
        assert not cluster.server_processes()


def test_a_dataset_with_a_function_of_the_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_in, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "number_in", number_in, raising=False)
    with pytest.raises(ArgumentError, match="Move it to a module"):
        RayServers(numbers(tmp_path, 10))
    with pytest.raises(ArgumentError, match="cannot be sent"):
        RayServers(numbers(tmp_path, 10, transform=lambda image: image))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_servers": 0}, "num_servers must be positive"),
        ({"num_workers": -1}, "num_workers must be positive"),
        ({"patience_seconds": float("nan")}, "patience_seconds must be positive"),
        ({"resources": {"CPU": -1}}, "resources must not be negative, got -1 of 'CPU'"),
        ({"list_file": "/nowhere/servers.txt"}, "cannot be written: No such file"),
    ],
)
def test_illegal_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RayServers(numbers(tmp_path, 10), **wrong)


@pytest.mark.processes
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ArgumentError, match=r"pip install 'mpload\[ray\]'"):
        RayServers(numbers(tmp_path, 10))
