"""Faults of web servers: what an epoch leads to, how long that takes, and what the error says.

`python -m tests.storage.test_web_faults` runs the whole table, and prints it as JSON lines.
"""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpload import MPDataset, MPLoader, OutageError, PoolOptions, RemoteStorage, ResizeCenterCrop, Topology
from mpload.errors import SampleError, StorageError
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects
from tests.support.fault_table import BAD, FAULTS, LIMITS, Fault, Outcome
from tests.support.photos import encode, photo
from tests.support.web_faults import AT_ONCE, NUM_GOOD, WebServer, web_server

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:a bad sample")]

NUM_FILES = 16


def make_files(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    shard = b""
    for number in range(NUM_FILES):
        data = encode(Image.fromarray(photo(64, 64, rng)), "JPEG")
        (folder / f"{number:02d}.jpg").write_bytes(data)
        shard += data
    (folder / "shard.bin").write_bytes(shard)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    return folder


def write_index(path: Path, url: str, files: Path, *, has_spans: bool) -> None:
    lines, offset = "", 0
    for number in range(NUM_FILES):
        name, size = f"{number:02d}.jpg", (files / f"{number:02d}.jpg").stat().st_size
        lines += f"{f'{offset}+{size}@shard.bin' if has_spans else name}\t{number}\n"
        offset += size
    path.write_text(f"#mpload 1\n#root {url}\n#columns image:{'span' if has_spans else 'path'} label:int\n{lines}")


def read_all(index: Path, *, on_error: str, num_workers: int) -> tuple[list[int], Exception | None, float]:
    """Read an epoch; return the labels, the error, and the time by the monotonic clock when the last one came."""
    dataset = MPDataset(
        index,
        decode=ResizeCenterCrop(16),
        batch_size=4,
        on_error=on_error,  # type: ignore[arg-type]
        storage=RemoteStorage(**LIMITS),
        topology=Topology(),
    )
    labels: list[int] = []
    error = None
    with MPLoader(dataset, num_workers=num_workers) as loader:
        try:
            for _, numbers in loader:
                labels += numbers.tolist()
        except SampleError as raised:
            error = raised
        return labels, error, time.monotonic()


def check(
    fault: Fault,
    server: WebServer,
    on_error: str,
    num_workers: int,
    found: tuple[list[int], Exception | None, float],
) -> float:
    """Check what a fault has led to, and return the seconds from its first effect to the end."""
    labels, error, end = found
    server.stop()
    faulty = [request.at_seconds for request in server.requests if request.is_faulty]
    seconds = end - (faulty[0] if faulty else server.requests[0].at_seconds)
    assert seconds < 1.2 * LIMITS["retry_seconds"]
    if match := re.search(r"after (\d+)", fault.fault):  # a server that asks to wait is left alone, also by probes
        first, others = faulty[0], [request.at_seconds for request in server.requests][NUM_GOOD + 1 :]
        assert all(at - first > int(match[1]) for at in others) or num_workers > 1
    everything = list(range(NUM_FILES))
    if fault.outcome is Outcome.ALL_READ:
        assert error is None
        assert labels == everything
    elif fault.outcome is Outcome.BAD_OBJECT and on_error == "skip":
        assert error is None
        assert labels == [number for number in everything if number != int(BAD[:2])]
    else:
        assert error is not None
        message = str(error)
        assert re.search(fault.message, message), message
        assert re.match(r"\S+\.txt:\d+: sample \d+ \(\d\d\.jpg\): ", message)
        if fault.name != "empty file":
            assert f"{server.url}/" in message
        assert (BAD in message) or fault.outcome is Outcome.OUTAGE
    return seconds


def run(fault: Fault, files: Path, folder: Path, *, on_error: str, num_workers: int) -> tuple[float, Exception | None]:
    with web_server(files, fault.fault, seconds=fault.seconds, bad=fault.bad) as server:
        write_index(folder / "index.txt", server.url, files, has_spans=fault.has_spans)
        found = read_all(folder / "index.txt", on_error=on_error, num_workers=num_workers)
        return check(fault, server, on_error, num_workers, found), found[1]


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.is_fast], ids=lambda fault: fault.name)
def test_a_fault_of_a_web_server_is_survived_or_its_sample_skipped_in_time(
    fault: Fault, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(fault, files, tmp_path, on_error="skip", num_workers=0)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_of_a_web_server_is_survived_or_named_in_time(
    fault: Fault, on_error: str, num_workers: int, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(fault, files, tmp_path, on_error=on_error, num_workers=num_workers)


# Servers of other kinds


SHORT = RemoteStorage(request_timeout_seconds=0.3, retry_seconds=1.0)


def error_of(url: str, *, name: str = "00.jpg", length_bytes: int | None = None, offset_bytes: int = 0) -> StorageError:
    """Return the error of a read."""
    with pytest.raises(StorageError) as caught:
        RemoteObjects(url, limits=SHORT).read([ByteRange(name, offset_bytes, length_bytes)])
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert str(caught.value).startswith(f"{url}/{name}: ")
    return caught.value


def test_a_name_that_dns_does_not_know_is_an_outage() -> None:
    start = time.monotonic()
    error = error_of("http://no-such-host.invalid")
    assert re.search(r"name not resolved: DNS knows no address of no-such-host\.invalid", str(error))
    assert isinstance(error, OutageError)
    assert time.monotonic() - start < 1.2


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
    certificate = make_certificate(tmp_path)
    with web_server(files, "bandwidth", certificate=certificate) as server:
        start = time.monotonic()
        error = error_of(server.url)
        assert re.search(r"certificate not trusted: that of 127\.0\.0\.1:\d+ fails verification", str(error))
        assert isinstance(error, OutageError)
        assert time.monotonic() - start < 1.0  # at once: no certificate becomes better by waiting
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


def test_an_outage_counts_once_for_all_reads_and_is_over_when_the_server_answers(files: Path, tmp_path: Path) -> None:
    with web_server(files, "outage", seconds=2.5) as server:
        storage = RemoteObjects(server.url, limits=SHORT)
        items = [ByteRange(f"{number:02d}.jpg") for number in range(NUM_FILES)]
        storage.read(items[:NUM_GOOD])
        start = time.monotonic()
        for item in items[NUM_GOOD:]:
            with pytest.raises(OutageError):
                storage.read([item])
        assert time.monotonic() - start < 1.5
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
        assert sum(request.is_faulty for request in server.requests) == 7


def test_a_worker_that_waits_for_a_server_is_not_stuck(files: Path, tmp_path: Path) -> None:
    with web_server(files, "stall once", bad=BAD) as server:
        write_index(tmp_path / "index.txt", server.url, files, has_spans=False)
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


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_error_of_a_batch_without_samples_names_the_first_causes(
    num_workers: int, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with web_server(files, "status 404", bad=AT_ONCE) as server:
        write_index(tmp_path / "index.txt", server.url, files, has_spans=False)
        _, error, _ = read_all(tmp_path / "index.txt", on_error="skip", num_workers=num_workers)
    lines = str(error).splitlines()
    assert lines[0].endswith("index.txt: all 4 samples of a batch failed; see the error report")
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


def make_certificate(folder: Path) -> Path:
    """Make a certificate of the address 127.0.0.1, which only those trust who are told to."""
    path = folder / "certificate.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    ran = subprocess.run([*command, "-keyout", folder / "key.pem", "-out", path], capture_output=True, check=False)
    if ran.returncode:
        pytest.skip("needs openssl")
    path.write_bytes(path.read_bytes() + (folder / "key.pem").read_bytes())
    return path
