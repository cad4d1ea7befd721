"""What a server answers: to whom, to what, and how often it makes the same sample."""

import json
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpload import MPDataset, RandomResizedCrop, Topology
from mpload.client.protocol import DATASET_HEADER, Description
from tests.support.batches import numbers, numbers_index
from tests.support.decoders import large_number
from tests.support.running_servers import Asker, asked, asking, running_server, wanted

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]
_SECONDS = 60.0


def test_only_who_has_the_token_gets_samples(dataset: Callable[[], MPDataset[Any]]) -> None:
    with running_server(dataset(), token="secret", host="127.0.0.1") as url, asking(dataset(), url) as asker:
        for token in (None, "", "Secret", "secret2", "s\u00e9cret"):
            asker.token = token
            status, error = asker.refusal(wanted([0]).encode())
            assert (status, "token" in error) == (401, True)
            assert asker.get("/v1/dataset")[0] == 401
            assert asker.metric("samples_total") == 0
        asker.token = "secret"
        assert asker.labels(wanted([5, 3])) == [5, 3]
        asker.token = None
        assert asker.get("/healthz") == (200, b'{"status": "ok"}')
        asker.token = "secret"
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
    assert reconnect().labels(wanted([7])) == [7]


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
    assert asker.labels(wanted([7])) == [7]


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
