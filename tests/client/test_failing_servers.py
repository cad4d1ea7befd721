"""Servers that fail: no batch changes, every wait ends, and the user learns what happened."""

import os
import signal
import socket
import sys
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpload import ErrorPolicy, MPDataset, MPLoader, Servers, Topology
from mpload.errors import MploadWarning, ServerError
from tests.support.batches import ids
from tests.support.raw_server import Answer, head, raw_server
from tests.support.sample_servers import Handler, SampleServer, sample_server
from tests.support.served_loaders import NUM_SAMPLES, dataset, loading

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def stop(server: SampleServer) -> None:
    """Stop a server as a SIGKILL would: its connections are reset, and nothing listens any more."""
    server.shutdown()
    server.server_close()
    server.drop_connections()


def half(handler: Handler, made: bytes, *, every: int) -> bool:
    """Break every so many answers off in the middle."""
    if handler.server.num_requests % every:
        return False
    handler.send_response(200)
    handler.send_header("Content-Type", "application/vnd.mpload")
    handler.send_header("Content-Length", str(len(made)))
    handler.end_headers()
    handler.wfile.write(made[: len(made) // 2])
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True
    return True


def delayed(handler: Handler, made: bytes) -> bool:
    """Answer late."""
    del handler, made
    time.sleep(0.01)
    return False


def hanging(released: threading.Event) -> Any:
    def answer(handler: Handler, made: bytes) -> bool:
        del handler, made
        released.wait(60)
        return False

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("fallback", ["local", "raise"])
def test_server_that_stops_in_the_middle_of_an_epoch_changes_no_batch(folder: Path, fallback: str) -> None:
    with (
        sample_server(dataset(folder)) as first,
        sample_server(dataset(folder)) as second,
        loading(folder, first.url, second.url, fallback=fallback) as loader,
    ):
        batches = iter(loader)
        found = ids(next(batches) for _ in range(5))
        stop(second)
        with pytest.warns(MploadWarning, match=f"{second.url} .* asked again later") as caught:
            found += ids(batches)
        assert found == ids(dataset(folder))
        stats = loader.stats()
        assert stats.servers[first.url].num_failures == 0
        assert stats.servers[second.url].num_failures > 0
        assert 0 < stats.servers[second.url].num_samples < stats.servers[first.url].num_samples
        assert f"{second.url}: " in str(stats)
    assert second.num_samples
    assert len(caught) == 1


@pytest.mark.slow
def test_workers_that_do_not_ask_make_samples_at_the_same_time(folder: Path) -> None:
    with (
        sample_server(dataset(folder)) as server,
        loading(folder, server.url, asking_workers=1) as loader,
    ):
        server.answer = delayed
        assert ids(loader) == ids(dataset(folder))
        assert 0 < loader.stats().timings.num_served < NUM_SAMPLES


@pytest.mark.slow
def test_rank_asks_few_servers_and_another_one_takes_the_place_of_one_that_stops(folder: Path) -> None:
    def of_rank() -> MPDataset[Any]:
        return dataset(folder, topology=Topology(rank=3, world_size=8), batch_size=1)

    with ExitStack() as stack:
        servers = {each.url: each for each in (stack.enter_context(sample_server(of_rank())) for _ in range(6))}
        loader = stack.enter_context(
            MPLoader(of_rank(), servers=Servers(urls=[*servers], fallback="raise"), num_workers=2)
        )
        batches = iter(loader)
        found = ids(next(batches) for _ in range(20))
        asked = {url for url, server in servers.items() if server.num_requests}
        assert len(asked) == 4
        gone = asked.pop()
        stop(servers[gone])
        with pytest.warns(MploadWarning, match=f"{gone} .* asked again later"):
            found += ids(batches)
        assert found == ids(of_rank())
        assert {url for url, server in servers.items() if server.num_requests} > {*asked, gone}


def test_all_servers_gone_and_samples_are_made_here(folder: Path) -> None:
    with (
        sample_server(dataset(folder)) as server,
        loading(folder, server.url) as loader,
    ):
        batches = iter(loader)
        found = ids(next(batches) for _ in range(5))
        stop(server)
        with pytest.warns(MploadWarning, match="made in this loader"):
            found += ids(batches)
        assert found == ids(dataset(folder))
        timings = loader.stats().timings
        assert 0 < timings.num_served < NUM_SAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_all_servers_gone_is_an_error_that_names_them_and_blames_no_sample(
    folder: Path, tmp_path: Path, on_error: Any
) -> None:
    report = tmp_path / "report"
    policy = ErrorPolicy(action=on_error, report=report)
    first, second = unused_url(), unused_url()
    options: dict[str, Any] = {"fallback": "raise", "retry_seconds": 2.0, "on_error": policy}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)
        with loading(folder, first, second, **options) as loader:
            batches = iter(loader)
            with pytest.raises(ServerError, match="no server has made samples for") as caught:
                next(batches)
            assert f"{first} ConnectionRefusedError" in str(caught.value)
            assert f"{second} ConnectionRefusedError" in str(caught.value)
            assert not report.exists()
            port = int(first.rpartition(":")[2])
            with sample_server(dataset(folder, on_error=policy), port=port):  # the same batch is made again
                assert ids(batches) == ids(dataset(folder))


def test_server_that_comes_back_is_asked_again(folder: Path) -> None:
    url, told = unused_url(), list[str]()
    with (
        warnings.catch_warnings(record=True) as caught,
        sample_server(dataset(folder)) as other,
        loading(folder, url, other.url) as loader,
    ):
        warnings.simplefilter("always")
        assert ids(loader) == ids(dataset(folder))
        with sample_server(dataset(folder), port=int(url.rpartition(":")[2])) as server:
            deadline = time.monotonic() + 60
            while len(told) < 2 and time.monotonic() < deadline:
                ids(loader)
                told = [str(warning.message) for warning in caught if issubclass(warning.category, MploadWarning)]
            assert server.num_samples
    assert [text.split(". ")[0] for text in told][1:] == [f"{url} makes samples again"]
    assert told[0].startswith(f"{url} ConnectionRefusedError")


def test_busy_server_is_left_alone_and_has_not_failed(folder: Path) -> None:
    def answer(handler: Handler, made: bytes) -> bool:
        if handler.server.num_requests % 5:
            return False
        handler.reply(503, b"", Retry_After="0.05")
        return True

    with sample_server(dataset(folder)) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        server.answer = answer
        with loading(folder, server.url, fallback="raise") as loader:
            assert ids(loader) == ids(dataset(folder))


@pytest.mark.slow
@pytest.mark.parametrize("fallback", ["local", "raise"])
def test_answers_that_break_off_are_asked_for_again(folder: Path, fallback: str) -> None:
    with (
        sample_server(dataset(folder)) as first,
        sample_server(dataset(folder)) as second,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        first.answer, second.answer = partial(half, every=7), partial(half, every=11)
        with loading(folder, first.url, second.url, fallback=fallback) as loader:
            assert ids(loader) == ids(dataset(folder))
    assert any("closed the connection in the middle" in str(warning.message) for warning in caught)


@pytest.mark.slow
@pytest.mark.parametrize("num_servers", [1, 2])
def test_server_that_hangs_costs_no_more_than_the_time_limit(folder: Path, num_servers: int) -> None:
    released = threading.Event()
    with sample_server(dataset(folder)) as first, sample_server(dataset(folder)) as second:
        with loading(folder, *[first.url, second.url][:num_servers]) as loader:
            batches = iter(loader)
            found = ids([next(batches)])
            first.answer = hanging(released)
            with pytest.warns(MploadWarning, match="has not answered for 2.0 s"):
                found += ids(batches)
            assert found == ids(dataset(folder))
        released.set()


def test_answer_that_drips_is_given_up(folder: Path) -> None:
    def drip(connection: socket.socket, path: str) -> bool:
        for byte in head("200 OK", "Content-Type: application/vnd.mpload", length=1 << 20) * 100:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)
        return False

    with (
        raw_server(drip) as url,
        loading(folder, url, request_timeout_seconds=0.5) as loader,
        pytest.warns(MploadWarning, match="does not answer within the time limit"),
    ):
        assert ids(loader) == ids(dataset(folder))


@pytest.mark.slow
def test_slow_server_is_asked_a_second_time_elsewhere(folder: Path) -> None:
    slow = threading.Event()

    def answer(handler: Handler, made: bytes) -> bool:
        if slow.is_set() and not handler.server.num_requests % 8:
            time.sleep(1.5)
        return False

    with sample_server(dataset(folder)) as first, sample_server(dataset(folder)) as second:
        first.answer = answer
        with loading(folder, first.url, second.url, num_workers=1, request_timeout_seconds=30.0) as loader:
            for epoch in range(8):
                loader.set_epoch(0)
                if epoch == 5:
                    slow.set()
                assert ids(loader) == ids(dataset(folder))
            num_hedges = loader.stats().timings.num_hedges
            num_requests = first.num_requests + second.num_requests
    assert 0 < num_hedges <= 0.05 * num_requests


GARBAGE = {
    "no HTTP": b"220 mail.example ESMTP\r\n",
    "nothing": b"",
    "zeros": bytes(100_000),
    "html": head("200 OK", "Content-Type: text/html", length=15) + b"<html>It works!",
    "not found": head("404 Not Found", "Content-Type: text/plain", length=4) + b"what",
    "no length": head("200 OK", "Content-Type: application/vnd.mpload") + bytes(50),
    "too short": head("200 OK", "Content-Type: application/vnd.mpload", length=50) + bytes(50),
    "other dataset, but which": head("409 Conflict", length=2) + b"{}",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_no_answer(folder: Path, kind: str) -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(GARBAGE[kind])
        return False

    garbage: Answer = answer
    with raw_server(garbage) as url, loading(folder, url) as loader:
        with pytest.warns(MploadWarning, match=f"{url} .*[a-z]"):
            assert ids(loader) == ids(dataset(folder))
        assert loader.stats().timings.num_served == 0


def test_answer_with_more_than_was_asked_for_is_no_answer(folder: Path) -> None:
    def answer(handler: Handler, made: bytes) -> bool:
        handler.reply(200, made + bytes(8))
        return True

    with sample_server(dataset(folder)) as server:
        server.answer = answer
        with (
            loading(folder, server.url) as loader,
            pytest.warns(MploadWarning, match="8 bytes more than its samples need"),
        ):
            assert ids(loader) == ids(dataset(folder))


def test_worker_that_is_killed_loses_and_repeats_no_sample(folder: Path) -> None:
    with sample_server(dataset(folder)) as server, loading(folder, server.url, fallback="raise") as loader:
        batches = iter(loader)
        found = ids(next(batches) for _ in range(5))
        for name, pid in loader.pids.items():
            if name.startswith("mpload-worker"):
                os.kill(pid, signal.SIGKILL)
        assert found + ids(batches) == ids(dataset(folder))
        assert loader.stats().num_deaths == 2


def test_workers_keep_only_the_connections_that_they_use(folder: Path) -> None:
    def num_sockets(loader: Any) -> int:
        num_found = 0
        for path in [path for pid in loader.pids.values() for path in Path(f"/proc/{pid}/fd").iterdir()]:
            with suppress(FileNotFoundError):  # it has been closed
                num_found += str(path.readlink()).startswith("socket:")
        return num_found

    with sample_server(dataset(folder)) as first, sample_server(dataset(folder)) as second:
        second.answer = partial(half, every=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MploadWarning)
            with loading(folder, first.url, second.url) as loader:
                before = num_sockets(loader)
                for _ in range(6):
                    batches = iter(loader)
                    for _ in range(9):
                        next(batches)
                assert num_sockets(loader) - before <= 2 * 2 * 3  # workers, servers, open requests
