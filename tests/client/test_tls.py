"""Encrypted connections to servers: the same batches; strangers, and connections that break, are told from servers."""

import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import MPDataset, MPLoader, RawBytes, Servers, Topology
from mpload.client.tls import TlsSocket
from mpload.errors import MploadWarning, ServerError
from tests.support.fault_runs import certificate_in
from tests.support.running_servers import running_server
from tests.support.typed import comparable

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]

_LIMITS: dict[str, Any] = {"request_timeout_seconds": 5.0, "connect_timeout_seconds": 5.0, "retry_seconds": 20.0}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_in(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of files with up to a million random bytes."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    sizes = [0, 1, 5, 16_383, 16_384, 16_385, 262_144, 999_999, *rng.integers(0, 300_000, 16).tolist()]
    for number, size in enumerate(sizes):
        (folder / f"{number}").write_bytes(rng.bytes(size))
    lines = "".join(f"{number}\t{number}\n" for number in range(len(sizes)))
    (folder / "index.txt").write_text(f"#mpload 1\n#columns image:path label:int\n{lines}")
    return folder / "index.txt"


def dataset(index: Path) -> MPDataset[Any]:
    return MPDataset(index, decode=RawBytes(), batch_size=5, shuffle=True, topology=Topology())


def test_batches_of_an_encrypted_server_are_those_of_the_dataset(index: Path, certificate: Path) -> None:
    with running_server(dataset(index), cert=certificate, key=certificate) as url:
        assert url.startswith("https://127.0.0.1:")
        servers = Servers(urls=[url], ca_file=str(certificate), fallback="raise", **_LIMITS)
        alone = dataset(index)
        expected = [comparable(batch) for _ in range(3) for batch in alone]
        with MPLoader(dataset(index), servers=servers, num_workers=2) as loader:
            assert [comparable(batch) for _ in range(3) for batch in loader] == expected


def test_a_server_whose_certificate_is_not_trusted_gets_no_request(index: Path, certificate: Path) -> None:
    with running_server(dataset(index), cert=certificate, key=certificate) as url:
        servers = Servers(urls=[url], fallback="raise", **{**_LIMITS, "retry_seconds": 1.0})
        with (
            MPLoader(dataset(index), servers=servers, num_workers=1) as loader,
            pytest.warns(MploadWarning, match="CERTIFICATE_VERIFY_FAILED"),
            pytest.raises(ServerError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            next(iter(loader))


@contextmanager
def answering(certificate: Path, answer: Any) -> Iterator[TlsSocket]:
    """Yield a connection to a server that calls `answer` with its end of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as connected:
                answer(connected)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        plain = socket.create_connection(listener.getsockname(), timeout=20)
        trusted = ssl.create_default_context(cafile=str(certificate))
        with closing(TlsSocket(plain, trusted, "127.0.0.1")) as connected:
            yield connected
        thread.join(20)


def received(connected: TlsSocket) -> bytes:
    """Return all that arrives until the other side closes the connection."""
    parts = []
    while part := connected.recv(100_000):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("num_bytes", [0, 1, 16_384, 3_000_000])
def test_bytes_arrive_as_they_were_sent(certificate: Path, num_bytes: int) -> None:
    data = np.random.default_rng(num_bytes).bytes(num_bytes)

    def echo(connected: ssl.SSLSocket) -> None:
        got = b""
        while len(got) < num_bytes:
            got += connected.recv(1 << 20)
        connected.sendall(got)
        with suppress(OSError):  # the other side closes without a last word
            connected.unwrap()

    with answering(certificate, echo) as connected:
        connected.sendall(data)
        assert received(connected) == data


def test_one_call_takes_all_records_that_have_arrived(certificate: Path) -> None:
    """As a socket does. A record has 16,384 bytes at most, and each call costs the time of several."""
    sent = threading.Event()

    def send(connected: ssl.SSLSocket) -> None:
        for part in (b"a" * 20_000, b"b" * 20_000):
            connected.sendall(part)
        sent.set()

    with answering(certificate, send) as connected:
        assert sent.wait(20)
        assert connected.recv(30_000) == b"a" * 20_000 + b"b" * 10_000
        assert connected.recv(30_000) == b"b" * 10_000
        assert connected.recv(30_000) == b""


def test_a_connection_that_is_cut_ends_as_others_do(certificate: Path) -> None:
    def cut(connected: ssl.SSLSocket) -> None:
        connected.sendall(b"half")
        connected.shutdown(socket.SHUT_RDWR)

    with answering(certificate, cut) as connected:
        assert received(connected) == b"half"


def test_waiting_ends_at_the_limit(certificate: Path) -> None:
    released = threading.Event()
    with answering(certificate, lambda _: released.wait(20)) as connected:
        connected.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connected.recv(1)
        connected.setblocking(False)
        with pytest.raises(BlockingIOError):
            connected.recv(1)
        released.set()


def test_a_record_that_drips_ends_at_the_limit(certificate: Path) -> None:
    """Each byte arrives in time, and the whole record does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    ended = threading.Event()
    near, far = socket.socketpair()

    def serve() -> None:
        arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(arrived, leaving, server_side=True)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                far.sendall(leaving.read())
                arrived.write(far.recv(65536))
        tls.write(b"x" * 10_000)
        for byte in leaving.read():
            far.sendall(bytes([byte]))
            if ended.wait(0.02):
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    near.settimeout(20)
    with far, closing(TlsSocket(near, ssl.create_default_context(cafile=str(certificate)), "127.0.0.1")) as connected:
        connected.settimeout(0.5)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            connected.recv(1)
        assert time.monotonic() - began < 20  # of the 200 seconds that the record takes
        ended.set()
        thread.join(20)


def test_what_is_no_certificate_of_the_host_is_refused(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(plain, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        plain = socket.create_connection(listener.getsockname(), timeout=20)
        trusted = ssl.create_default_context(cafile=str(certificate))
        with plain, pytest.raises(ssl.SSLCertVerificationError):
            TlsSocket(plain, trusted, "localhost.invalid")
        thread.join(20)
