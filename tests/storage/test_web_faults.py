"""Faults of web servers: what an epoch leads to, how long that takes, and what the error says."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mpload import MPDataset, MPLoader, OutageError, PoolOptions, RemoteStorage, ResizeCenterCrop, Topology
from mpload.errors import MploadWarning, SampleError, StorageError
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects
from tests.support.fault_runs import (
    NUM_FILES,
    OnError,
    certificate_in,
    make_files,
    read_all,
    run_in_time,
    until_in_time,
    write_index,
)
from tests.support.fault_table import BAD, FAULTS, LIMITS, Fault
from tests.support.web_faults import AT_ONCE, EVERY, NUM_GOOD, web_server

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("each_way"),
    pytest.mark.filterwarnings("ignore:a bad sample"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    return folder


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    make_files(folder, num_files=200, side=32)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.is_fast], ids=lambda fault: fault.name)
def test_a_fault_of_a_web_server_is_survived_or_its_sample_skipped_in_time(
    fault: Fault, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_in_time(fault, files, tmp_path, on_error="skip", num_workers=0)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_of_a_web_server_is_survived_or_named_in_time(
    fault: Fault, on_error: OnError, num_workers: int, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_in_time(fault, files, tmp_path, on_error=on_error, num_workers=num_workers, scale=fault.scale)


# Servers of other kinds


BUSY_SECONDS = 5.0
"""What a busy machine may take for something short."""
SHORT = RemoteStorage(request_timeout_seconds=0.3, retry_seconds=1.0)


def error_of(url: str, *, name: str = "00.jpg", length_bytes: int | None = None, offset_bytes: int = 0) -> StorageError:
    """Return the error of a read."""
    with pytest.raises(StorageError) as caught:
        RemoteObjects(url, limits=SHORT).read([ByteRange(name, offset_bytes, length_bytes)])
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert str(caught.value).startswith(f"{url}/{name}: ")
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "examples"), [(EVERY, ()), (AT_ONCE, ("01.jpg", "02.jpg"))])
def test_a_server_that_only_drips_is_an_outage_though_small_answers_arrive(
    bad: str, examples: tuple[str, ...], files: Path
) -> None:
    with web_server(files, "drip", bad=bad) as server:
        storage = RemoteObjects(server.url, limits=SHORT, examples=lambda: map(ByteRange, examples))
        if bad == EVERY:
            storage.read([ByteRange(f"{number:02d}.jpg") for number in range(NUM_GOOD)])
        with pytest.raises(OutageError, match="answer stalled after"):
            storage.read([ByteRange("00.jpg")])


@pytest.mark.parametrize("fault", ["drip", "stall"])
def test_an_object_that_fails_before_any_was_read_is_bad_if_an_example_can_be_read(fault: str, files: Path) -> None:
    with web_server(files, fault, bad="00.jpg") as server:
        storage = RemoteObjects(server.url, limits=SHORT, examples=lambda: map(ByteRange, ["00.jpg", "01.jpg"]))
        with pytest.raises(StorageError, match="The server answers other requests") as caught:
            storage.read([ByteRange("00.jpg")])
        assert not isinstance(caught.value, OutageError)


def test_a_name_that_dns_does_not_know_is_an_outage() -> None:
    def error_in_time() -> StorageError:
        start = time.monotonic()
        error = error_of("http://no-such-host.invalid")
        assert time.monotonic() - start < BUSY_SECONDS
        return error

    error = until_in_time(error_in_time)
    assert re.search(r"name not resolved: DNS knows no address of no-such-host\.invalid", str(error))
    assert isinstance(error, OutageError)


def test_a_host_that_does_not_answer_at_all_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:  # fills the queue of connections, so that the kernel ignores the next one
            each.setblocking(False)
            each.connect_ex(address)
        error = error_of(f"http://127.0.0.1:{address[1]}")
        for each in waiting:
            each.close()
    assert re.search(r"no connection in time: none from 127\.0\.0\.1:\d+ within 0\.15 s", str(error))
    assert isinstance(error, OutageError)


def test_a_certificate_must_be_trusted(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certificate_in(tmp_path)
    with web_server(files, "bandwidth", certificate=certificate) as server:
        start = time.monotonic()
        error = error_of(server.url)
        assert re.search(r"certificate not trusted: that of 127\.0\.0\.1:\d+ fails verification", str(error))
        assert isinstance(error, OutageError)
        assert time.monotonic() - start < BUSY_SECONDS  # at once: no certificate becomes better by waiting
        program = (
            "import sys; from mpload.storage.ranges import ByteRange; from mpload.storage.remote import RemoteObjects\n"
            "for _ in range(3): data = RemoteObjects(sys.argv[1]).read([ByteRange('01.jpg', 0, 3)] * 2)\n"
            "print(data)"
        )
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        command = [sys.executable, "-c", program, server.url]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    start_of_file = (files / "01.jpg").read_bytes()[:3]
    assert ran.stdout == f"{[start_of_file] * 2}\n"


def test_a_proxy_of_the_environment_is_used(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server(files, "bandwidth") as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        storage = RemoteObjects("http://no-such-host.invalid", limits=SHORT)
        assert storage.read([ByteRange("01.jpg")]) == [(files / "01.jpg").read_bytes()]


def test_a_server_that_ignores_ranges_is_named_if_a_span_lies_far_inside_its_object(tmp_path: Path) -> None:
    with (tmp_path / "large.tar").open("wb") as file:
        file.truncate(40_000_000)
    with web_server(tmp_path, "ignores ranges") as server:
        error = error_of(server.url, name="large.tar", offset_bytes=30_000_000, length_bytes=100)
    message = (
        "server ignores ranges: it sent the whole object of 40,000,000 bytes instead of 100 bytes at 30,000,000. Shards"
    )
    assert message in str(error)


@pytest.mark.slow
def test_an_outage_counts_once_for_all_reads_and_is_over_when_the_server_answers(files: Path, tmp_path: Path) -> None:
    with web_server(files, "outage", seconds=2.5) as server:
        storage = RemoteObjects(server.url, limits=SHORT)
        items = [ByteRange(f"{number:02d}.jpg") for number in range(NUM_FILES)]
        storage.read(items[:NUM_GOOD])
        start = time.monotonic()
        for item in items[NUM_GOOD:]:
            with pytest.raises(OutageError):
                storage.read([item])
        assert time.monotonic() - start < BUSY_SECONDS  # each read by itself would take a second
        assert wait_until(lambda: storage.read(items), seconds=10.0) == [
            (files / item.path).read_bytes() for item in items
        ]


def test_an_object_that_could_not_be_read_fails_again_without_a_request(files: Path) -> None:
    with web_server(files, "status 500", bad=BAD) as server:
        storage = RemoteObjects(server.url, limits=SHORT)
        storage.read([ByteRange("00.jpg")])
        messages = set()
        for _ in range(3):
            with pytest.raises(StorageError) as caught:
                storage.read([ByteRange(BAD)])
            messages.add(str(caught.value))
        server.stop()
        assert len(messages) == 1
        assert sum(request.is_faulty for request in server.requests) in {7, 8}  # the first may be begun, and goes on


def test_a_worker_that_waits_for_a_server_is_not_stuck(files: Path, tmp_path: Path) -> None:
    with web_server(files, "stall once", bad=BAD) as server:
        write_index(tmp_path / "index.txt", server.url, files)
        dataset = MPDataset(
            tmp_path / "index.txt",
            decode=ResizeCenterCrop(16),
            batch_size=4,
            storage=RemoteStorage(request_timeout_seconds=1.0, retry_seconds=3.0),
            topology=Topology(),
        )
        with MPLoader(
            dataset, num_workers=1, options=PoolOptions(sample_timeout_seconds=0.5, max_restarts=0)
        ) as loader:
            assert [number for _, numbers in loader for number in numbers.tolist()] == list(range(NUM_FILES))


@pytest.mark.slow
def test_an_outage_of_a_minute_is_survived_with_the_default_limits(files: Path, tmp_path: Path) -> None:
    with web_server(files, "outage", seconds=60.0) as server:
        write_index(tmp_path / "index.txt", server.url, files)
        dataset = MPDataset(
            tmp_path / "index.txt",
            decode=ResizeCenterCrop(16),
            batch_size=4,
            on_error="skip",
            topology=Topology(),
        )
        with (
            pytest.warns(MploadWarning, match="answers again, after"),
            pytest.warns(MploadWarning, match="No request to this server succeeds"),
            MPLoader(dataset, num_workers=2) as loader,
        ):
            assert [number for _, numbers in loader for number in numbers.tolist()] == list(range(NUM_FILES))


@pytest.mark.parametrize(
    ("fault", "on_error", "num_missing"),
    [
        ("slow stall", "skip", 1),
        pytest.param("slow stall", "raise", None, marks=pytest.mark.slow),
        pytest.param("slow outage", "skip", None, marks=pytest.mark.slow),
        pytest.param("slow stall once", "raise", 0, marks=pytest.mark.slow),
    ],
)
def test_samples_that_are_read_ahead_meet_the_same_limits(
    fault: str,
    on_error: OnError,
    num_missing: int | None,
    many_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The threads that read ahead and the sample itself share the time of their attempts."""
    monkeypatch.chdir(tmp_path)
    with web_server(many_files, fault, seconds=1000.0 * ("outage" in fault), bad="150.jpg") as server:
        write_index(tmp_path / "index.txt", server.url, many_files)
        labels, message = read_all(tmp_path / "index.txt", on_error=on_error, num_workers=1)
        end = time.monotonic()
        server.stop()
    first = next(request.at_seconds for request in server.requests if request.is_faulty)
    assert end - first < 1.2 * LIMITS["retry_seconds"] + BUSY_SECONDS
    assert (message is None) == (num_missing is not None)
    if message is None:
        assert len(labels) == 200 - (num_missing or 0)
    else:
        assert re.search(r"(no answer in time|connection refused).*retry_seconds=2", message)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_error_of_a_batch_without_samples_names_the_first_causes(
    num_workers: int, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with web_server(files, "status 404", bad=AT_ONCE) as server:
        write_index(tmp_path / "index.txt", server.url, files)
        _, message = read_all(tmp_path / "index.txt", on_error="skip", num_workers=num_workers)
    assert message is not None
    lines = message.splitlines()
    assert lines[0].endswith(
        "index.txt: all 4 samples of a batch failed, 4 of 4 times because of: no such object; see the error report"
    )
    for number, line in enumerate(lines[1:4]):
        name = f"{number:02d}.jpg"
        assert line.endswith(
            f"index.txt:{number + 4}: sample {number} ({name}): {server.url}/{name}: no such object. Does #root of the "
            "index point to the right place, or was the object deleted?"
        )
    assert lines[4:] == ["  and 1 more"]


def wait_until(read: Callable[[], list[bytes]], *, seconds: float) -> list[bytes]:
    """Return what `read` returns when there is no outage any more."""
    end = time.monotonic() + seconds
    while True:
        try:
            return read()
        except OutageError:
            assert time.monotonic() < end


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2, None])
def test_no_batch_is_lost_if_an_outage_is_caught_or_the_run_is_resumed(
    num_workers: int | None, files: Path, tmp_path: Path
) -> None:
    """Without a loader, too: `num_workers` is then None."""
    with web_server(files, "outage", seconds=2.5) as server:
        write_index(tmp_path / "index.txt", server.url, files)
        dataset, resumed = (
            MPDataset(
                tmp_path / "index.txt", decode=ResizeCenterCrop(16), batch_size=2, storage=SHORT, topology=Topology()
            )
            for _ in range(2)
        )
        with ExitStack() as stack:
            source: Any = dataset
            if num_workers is not None:
                source = stack.enter_context(MPLoader(dataset, num_workers=num_workers))
            batches, found, states = iter(source), list[int](), list[dict[str, Any]]()
            while len(found) < NUM_FILES:
                try:
                    found += next(batches)[1].tolist()
                except SampleError as error:
                    assert isinstance(error.__cause__, OutageError)  # noqa: PT017  the loop goes on
                    states.append(source.state_dict())
                    num_found = len(found)
            assert next(batches, None) is None
        assert found == list(range(NUM_FILES))
        resumed.load_state_dict(states[-1])
        assert [number for _, numbers in resumed for number in numbers.tolist()] == found[num_found:]
