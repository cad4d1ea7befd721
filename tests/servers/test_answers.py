"""What a server answers: to whom, to what, how soon, and how often it makes the same sample."""

import http.client
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from mpload import MPDataset, RandomResizedCrop, Topology, build_index
from mpload.client.protocol import DATASET_HEADER, Description, Wanted
from mpload.errors import ArgumentError, WorkerError
from mpload.servers import serving
from mpload.servers.limits import ServerLimits
from mpload.servers.serving import serve
from mpload.transport.batches import PoolOptions
from tests.support.batches import numbers, numbers_index
from tests.support.decoders import large_number
from tests.support.running_servers import Asker, asked, asking, running_server, wanted, worker_pids

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]
_SECONDS = 60.0


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[[], MPDataset[Any]]:
    return partial(numbers, tmp_path, 100)


def await_metric(asker: Asker, name: str, value: float) -> None:
    deadline = time.monotonic() + _SECONDS
    while (found := asker.metric(name)) != value:
        assert time.monotonic() < deadline, (name, found)
        time.sleep(0.02)


def _labels(asker: Asker, request: Wanted) -> list[int]:
    labels: list[int] = asker.samples(request)[1]["label"].tolist()
    return labels


def test_only_who_has_the_token_gets_samples(dataset: Callable[[], MPDataset[Any]]) -> None:
    with running_server(dataset(), token="secret", host="127.0.0.1") as url, asking(dataset(), url) as asker:
        for token in (None, "", "Secret", "secret2", "s\u00e9cret"):
            asker.token = token
            status, error = asker.refusal(wanted([0]).encode())
            assert (status, "token" in error) == (401, True)
            assert asker.get("/v1/dataset")[0] == 401
            assert asker.get("/healthz") == (200, b'{"status": "ok"}')
            assert asker.metric("samples_total") == 0
        asker.token = "secret"
        assert _labels(asker, wanted([5, 3])) == [5, 3]
        assert Description.decode(asker.get("/v1/dataset")[1]) == asker.description


def test_a_request_for_another_dataset_is_answered_with_the_description_of_this_one(
    dataset: Callable[[], MPDataset[Any]], tmp_path: Path
) -> None:
    others = [
        numbers(tmp_path, 101),
        numbers(tmp_path, 100, on_error="skip"),
        MPDataset(numbers_index(tmp_path, 100), decode=large_number, batch_size=4),
    ]
    with running_server(dataset()) as url:
        for other in others:
            with asking(other, url) as asker:
                response = asker.post(wanted([0]).encode())
                theirs = Description.decode(response.read())
                assert response.status == 409
                assert theirs != asker.description
        with asking(dataset(), url) as asker:
            assert theirs == asker.description


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 400, "no head"),
        (b"\x05\0\0\0hello", 400, "no JSON"),
        (b"\xff\xff\xff\xff{}", 400, "needs seed"),
        (wanted([0, 1]).encode()[:-1], 400, "1 to 256"),
        (wanted([]).encode(), 400, "1 to 256"),
        (wanted(range(257)).encode(), 400, "1 to 256"),
        (wanted([0, -1]).encode(), 400, "negative"),
        (wanted([0], seed=-1).encode(), 400, "seed"),
        (wanted([0], epoch=-1).encode(), 400, "epoch"),
        (wanted([0], bucket=1).encode(), 400, "bucket"),
        (bytes(100_000), 413, "Too Large"),
    ],
)
def test_garbage_is_refused_and_harms_nobody(
    refuser: tuple[Asker, Callable[[], Asker]], body: bytes, status: int, why: str
) -> None:
    asker, reconnect = refuser
    found, error = asker.refusal(body)
    assert found == status
    assert why in error
    assert "\n" not in error
    assert _labels(reconnect(), wanted([7])) == [7]


@pytest.fixture(scope="module")
def refuser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server, what asks it, and a function that connects again."""
    folder = tmp_path_factory.mktemp("refuser")
    with asked(partial(numbers, folder, 100)) as asker:

        def reconnect() -> Asker:
            asker.connection.close()
            return asker

        yield asker, reconnect


def test_unknown_pages_and_methods_are_refused_as_json(refuser: tuple[Asker, Any]) -> None:
    asker, _ = refuser
    assert (asker.get("/v2/dataset")[0], asker.get("/v1/samples")[0]) == (404, 405)
    assert "error" in json.loads(asker.get("/v1/samples")[1])
    asker.connection.request("POST", "/v1/samples", body=wanted([0]).encode())
    response = asker.connection.getresponse()
    assert (response.status, DATASET_HEADER in json.loads(response.read())["error"]) == (400, True)


def test_bytes_that_are_no_http_close_their_connection_only(refuser: tuple[Asker, Any]) -> None:
    asker, _ = refuser
    for garbage in (b"\x16\x03\x01\0\xa5\x01\0", b"\r\n\r\n\0\0", bytes(range(256)) * 300, b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection((asker.connection.host, asker.connection.port), timeout=_SECONDS) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert b"200 OK" not in raw.recv(1 << 16)
    assert _labels(asker, wanted([7])) == [7]


def test_metrics_are_in_the_format_of_prometheus(refuser: tuple[Asker, Any]) -> None:
    asker, _ = refuser
    asker.samples(wanted([1, 2, 3], epoch=9))
    families = {each.name: each for each in text_string_to_metric_families(asker.get("/metrics")[1].decode())}
    assert all(name.startswith("mpload_server_") for name in families)
    statuses = {sample.labels["status"]: sample.value for sample in families["mpload_server_requests"].samples}
    assert statuses["200"] >= 1
    assert families["mpload_server_made_samples"].samples[0].value >= 3
    assert families["mpload_server_workers"].samples[0].value == 2


def test_two_jobs_share_samples_that_they_ask_for_at_the_same_time_or_soon_after(
    dataset: Callable[[], MPDataset[Any]],
) -> None:
    with running_server(dataset()) as url:

        def job() -> list[list[int]]:
            with asking(dataset(), url) as asker:
                return [labels.tolist() for _, labels in asker.batches()]

        with ThreadPoolExecutor(2) as jobs:
            first, second = jobs.submit(job), jobs.submit(job)
        assert first.result() == second.result() == job()
        with asking(dataset(), url) as asker:
            assert asker.metric("samples_total") == 300
            assert asker.metric("made_samples_total") <= 1.1 * 100
            assert asker.metric("shared_samples_total") >= 0.9 * 200


def test_samples_of_another_seed_or_epoch_are_made_anew(photos: Path) -> None:
    with asked(lambda: MPDataset(photos, decode=RandomResizedCrop(16), batch_size=4, topology=Topology())) as asker:
        found = [asker.samples(wanted([0, 1], seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)]
        images = {arrays["image"].tobytes() for _, arrays in found}
        assert len(images) == 4
        assert {head.tally.busy_ns > 0 for head, _ in found} == {True}
        head, arrays = asker.samples(wanted([0, 1]))
        assert arrays["image"].tobytes() == found[0][1]["image"].tobytes()
        assert (head.tally.busy_ns, head.tally.num_samples) == (0, 2)  # so that nobody counts the work twice


@pytest.fixture
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("answers.txt"))


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
            late = thread.submit(_labels, slow, wanted([93]))
            for first in range(10, 60, 5):
                assert _labels(fast, wanted(range(first, first + 5))) == [*range(first, first + 5)]
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
            late = threads.submit(_labels, slow, wanted([93]))
            await_metric(watch, "requests_under_way", 1)
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
        await_metric(asker, "cut_off_total", 1)  # asked for on one connection, which is not idle
        assert asker.get("/healthz")[0] == 200


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


def test_kept_samples_stay_within_the_memory_of_the_server(tmp_path: Path) -> None:
    def dataset() -> MPDataset[Any]:
        return MPDataset(numbers_index(tmp_path, 100), decode=large_number, batch_size=4, topology=Topology())

    budget_mib = 320
    with asked(dataset, num_workers=1, memory_budget=f"{budget_mib}MiB") as asker:
        for epoch in range(20):
            assert _labels(asker, wanted(range(16), epoch=epoch)) == [*range(16)]
            assert asker.metric("slots_bytes") <= budget_mib << 20
        assert asker.metric("kept_answers") >= 2


def test_connections_are_encrypted_with_the_certificate(tmp_path: Path, dataset: Callable[[], MPDataset[Any]]) -> None:
    cert, key = _certificate(tmp_path)
    with running_server(dataset(), cert=cert, key=key) as url:
        parts = urlsplit(url)
        assert parts.scheme == "https"
        context = ssl.create_default_context(cafile=str(cert))
        with closing(http.client.HTTPSConnection("127.0.0.1", parts.port, timeout=_SECONDS, context=context)) as client:
            client.request("GET", "/v1/dataset")
            description = Description.decode(client.getresponse().read())
            client.request("POST", "/v1/samples", wanted([4]).encode(), {DATASET_HEADER: description.digest})
            response = client.getresponse()
            assert response.status == 200
            assert response.read()[-16:] == np.array([4, 4], np.int64).tobytes()
        with closing(http.client.HTTPConnection("127.0.0.1", parts.port, timeout=_SECONDS)) as plain:
            plain.request("GET", "/healthz")
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                plain.getresponse()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    import datetime as dt
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - dt.timedelta(days=1))
    made = builder.not_valid_after(now + dt.timedelta(days=1)).add_extension(names, critical=False)
    (folder / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


def test_a_server_whose_workers_cannot_go_on_ends_with_their_error(dataset: Callable[[], MPDataset[Any]]) -> None:
    def use() -> None:
        others = set(worker_pids())
        with asked(dataset, options=PoolOptions(max_restarts=0)) as asker:
            assert _labels(asker, wanted([1])) == [1]
            os.kill((set(worker_pids()) - others).pop(), signal.SIGKILL)
            deadline = time.monotonic() + _SECONDS
            with suppress(http.client.HTTPException, ConnectionError):
                while time.monotonic() < deadline:
                    asker.get("/healthz")

    with pytest.raises(WorkerError, match="max_restarts=0"):
        use()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"host": "0.0.0.0"}, "without a token"),
        ({"host": "example.org"}, "without a token"),
        ({"token": ""}, "not empty"),
        ({"token": "a\nb"}, "printable"),
        ({"cert": "cert.pem"}, "both"),
        ({"port": 1 << 16}, "port"),
        ({"memory_budget": "1MiB", "port": 0}, "too small"),
    ],
)
def test_arguments_that_break_a_rule_are_refused(
    dataset: Callable[[], MPDataset[Any]], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ArgumentError, match=why):
        serve(dataset(), **options)


def test_the_command_that_installs_what_is_missing_is_named(
    dataset: Callable[[], MPDataset[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mpload.servers.app", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ArgumentError, match=r"pip install 'mpload\[servers\]'"):
        serve(dataset())


def test_only_datasets_of_an_index_are_served() -> None:
    with pytest.raises(ArgumentError, match="MPDataset"):
        serve([1, 2, 3])  # type: ignore[arg-type]
