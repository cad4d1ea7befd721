"""How a server is started: TLS, wrong arguments, missing packages, and workers that cannot go on."""

import http.client
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from mpload import MPDataset
from mpload.client.protocol import DATASET_HEADER, Description
from mpload.errors import ArgumentError, WorkerError
from mpload.servers.serving import serve
from mpload.transport.batches import PoolOptions
from tests.support.running_servers import asked, running_server, wanted, worker_pids

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]
_SECONDS = 60.0


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
        with asked(dataset, ends_by_itself=True, options=PoolOptions(max_restarts=0)) as asker:
            assert asker.labels(wanted([1])) == [1]
            for pid in set(worker_pids()) - others:
                with suppress(ProcessLookupError):  # it has made a first sample here, and ends
                    os.kill(pid, signal.SIGKILL)
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
        ({"token": "secret "}, "without spaces around"),
        ({"token": "x" * 1001}, "1,000 characters, got 1,001"),
        ({"cert": "cert.pem"}, "both"),
        ({"port": 1 << 16}, "port"),
        (
            {"memory_budget": "1MiB", "port": 0, "num_workers": 2},
            r"\(--memory\) 1.0 MiB is too small: .* 2 workers needs",
        ),
        ({"host": "nosuch.invalid", "is_open": True, "port": 0}, "address of this machine, got 'nosuch.invalid': "),
        ({"host": "192.0.2.1", "is_open": True, "port": 0}, "address of this machine, got '192.0.2.1': "),
        ({"cert": __file__, "key": __file__}, r"cert='.*test_starting.py' and key='.*' must be a certificate"),
    ],
)
def test_arguments_that_break_a_rule_are_refused(
    dataset: Callable[[], MPDataset[Any]], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ArgumentError, match=why):
        serve(dataset(), **options)


def test_certificate_that_cannot_be_read_is_named(dataset: Callable[[], MPDataset[Any]]) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        serve(dataset(), cert=__file__, key="absent.pem")
    assert caught.value.filename == "absent.pem"


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
