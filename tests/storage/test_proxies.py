"""Proxies and certificates: taken from the environment, as curl does, and named in errors."""

import base64
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mpload import OutageError, RemoteStorage, StorageError
from mpload.storage.connections import Server
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects
from tests.support.fault_runs import until_in_time
from tests.support.raw_server import head
from tests.support.web_faults import web_server

pytestmark = pytest.mark.usefixtures("each_way")

SHORT = RemoteStorage(request_timeout_seconds=1.0, retry_seconds=2.0)
SECRET = "secret%2Fword"


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.bin").write_bytes(b"data")
    return folder


@dataclass(slots=True, kw_only=True)
class Proxy:
    """A proxy on the loopback interface."""

    address: str
    requests: list[str] = field(default_factory=list)
    """The heads of all requests."""


@contextmanager
def proxy(*, refuses: str = "") -> Iterator[Proxy]:
    """Connect every host to the loopback interface; `refuses` is the status with which all requests are refused."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def converse(client: socket.socket) -> None:
        with suppress(OSError), client:
            request = client.recv(65536)
            made.requests.append(request.decode())
            if refuses:
                client.sendall(head(refuses, length=0))
                return
            method, url = request.split(b" ", 2)[:2]
            place = url.decode().removeprefix("http://").partition("/")[0]
            with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2]))) as server:
                if method == b"CONNECT":
                    client.sendall(head("200 Connection established"))
                else:
                    server.sendall(request)
                back = threading.Thread(target=copy, args=(server, client), daemon=True)
                back.start()
                copy(client, server)
                back.join()

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=converse, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Proxy(address=f"127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=serve, daemon=True).start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)


def read(url: str) -> bytes:
    return RemoteObjects(url, limits=SHORT).read([ByteRange("a.bin")])[0]


def error_of(url: str) -> StorageError:
    with pytest.raises(StorageError) as caught:
        read(url)
    assert SECRET not in str(caught.value)
    assert "secret" not in str(caught.value)
    return caught.value


@pytest.mark.processes
@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("prefix", ["http://", ""])
def test_a_web_server_is_read_through_the_proxy_of_the_environment(
    name: str, prefix: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_server(files, "none", bad="") as server, proxy() as used:
        port = server.url.rpartition(":")[2]
        monkeypatch.setenv(name, f"{prefix}name:{SECRET}@{used.address}")
        assert read(f"http://data.example.com:{port}") == b"data"
    token = base64.b64encode(b"name:secret/word").decode()
    assert f"GET http://data.example.com:{port}/a.bin HTTP/1.1" in used.requests[0]
    assert f"proxy-authorization: basic {token}".lower() in used.requests[0].lower()


@pytest.mark.processes
@pytest.mark.parametrize(
    "no_proxy",
    [
        "127.0.0.1",
        "localhost,127.0.0.1",
        "*",
        "127.0.0.0/8",
        "10.0.0.0/8, 127.0.0.1/32",
        "example.com 127.0.0.1",
        "127.0.0.1:{port}",
    ],
)
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_a_host_in_no_proxy_is_reached_directly(
    name: str, no_proxy: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://no-such-proxy.invalid:3128")
    with web_server(files, "none", bad="") as server:
        monkeypatch.setenv(name, no_proxy.format(port=server.url.rpartition(":")[2]))
        assert read(server.url) == b"data"


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"), [("::1", True), ("[::1]", True), ("::/64", True), ("::2", False), ("1", False)]
)
def test_no_proxy_names_ipv6_addresses(no_proxy: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert (Server("http://[::1]:80").proxy is None) == is_direct


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("no_proxy", "is_direct"),
    [("example.com", True), (".example.com", True), ("data.example.com", True), ("ample.com", False), ("", False)],
)
def test_no_proxy_names_domains(no_proxy: str, is_direct: bool, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is not reached through the proxy cannot be resolved."""
    monkeypatch.setenv("no_proxy", no_proxy)
    with web_server(files, "none", bad="") as server, proxy() as used:
        monkeypatch.setenv("http_proxy", f"http://{used.address}")
        url = f"http://data.example.com.invalid:{server.url.rpartition(':')[2]}"
        monkeypatch.setenv("no_proxy", no_proxy and f"{no_proxy}.invalid")
        if is_direct:
            assert "name not resolved" in str(error_of(url))
        else:
            assert read(url) == b"data"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("407 Proxy Authentication Required", "It wants a name and a password: set http_proxy"),
        ("403 Forbidden", None),
    ],
)
def test_a_proxy_that_refuses_is_an_outage_at_once(
    scheme: str, status: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(refuses=status) as used:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://name:{SECRET}@{used.address}")
        error = error_of(f"{scheme}://data.example.com")
    if message is None and scheme == "http":
        assert "access is denied" in str(error)  # a proxy cannot be told from its server
        return
    assert isinstance(error, OutageError)
    assert f"the proxy{f' {used.address}' * (scheme == 'https')} answered {status}. {message or 'Can it'}" in str(error)
    assert len(used.requests) <= 2  # one more finds out whether the server answers other requests


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cannot_be_reached_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for address, message in (
        (f"127.0.0.1:{port}", f"connection refused by the proxy 127.0.0.1:{port}"),
        ("no-such-proxy.invalid:3128", "name not resolved: DNS knows no address of the proxy no-such-proxy.invalid"),
    ):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://name:{SECRET}@{address}")
        error = until_in_time(lambda: error_of(f"{scheme}://data.example.com"))
        assert message in str(error)


@pytest.mark.parametrize(
    "address", ["socks5://name:{}@127.0.0.1:1080", "http://", "http://name:{}@127.0.0.1:99999", "http://name:{}@[::1"]
)
def test_a_proxy_that_cannot_be_used_is_to_blame_for_all_samples(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", address.format(SECRET))
    error = error_of("https://data.example.com")
    assert isinstance(error, OutageError)
    assert "proxy not supported. Set http_proxy, https_proxy or all_proxy to http://HOST:PORT" in str(error)
    assert SECRET not in str(error)


# TLS


def certificate(folder: Path, name: str, *, subject: str, issuer: str | None = None, days: Sequence[str] = ()) -> Path:
    """Make a certificate for `subject`, signed by the certificate `issuer`, or by itself as an authority."""
    key, request, path = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.pem"
    run: list[str | Path] = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", f"/CN={name}"]
    if issuer is None:
        uses = ("-addext", "keyUsage=keyCertSign")  # which Python 3.13 and later want of an authority
        subprocess.run([*run, "-x509", "-days", "30", *uses, "-out", path], capture_output=True, check=True)
        return path
    extension = folder / f"{name}.ext"
    extension.write_text(f"subjectAltName={subject}\nauthorityKeyIdentifier=keyid\n")
    subprocess.run([*run, "-out", request], capture_output=True, check=True)
    signing: list[str | Path] = ["openssl", "x509", "-req", "-in", request, "-CA", folder / f"{issuer}.pem", "-CAkey"]
    signing += [folder / f"{issuer}.key", "-CAcreateserial", "-extfile", extension, "-out", path]
    subprocess.run([*signing, *(days or ("-days", "20"))], capture_output=True, check=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    certificate(folder, "authority", subject="")
    return folder


PROGRAM = (
    "import sys; from mpload import RemoteStorage; from mpload.storage.ranges import ByteRange\n"
    "from mpload.storage.remote import RemoteObjects\n"
    "limits = RemoteStorage(request_timeout_seconds=5, retry_seconds=10)\n"
    "try: print(RemoteObjects(sys.argv[1], limits=limits).read([ByteRange('a.bin')]))\n"
    "except Exception as error: print(type(error).__name__, error)\n"
)


def read_trusting(url: str, authority: Path, **environment: str) -> str:
    """Return what a process prints that trusts the authority: OpenSSL may read the variable only once."""
    trusting = {**os.environ, "SSL_CERT_FILE": str(authority / "authority.pem"), **environment}
    command = [sys.executable, "-c", PROGRAM, url]
    return subprocess.run(command, env=trusting, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("subject", "days", "message"),
    [
        ("IP:127.0.0.1", [], "[b'data']"),
        (
            "DNS:other.example.com",
            [],
            "(IP address mismatch, certificate is not valid for '127.0.0.1'). Use a name in the URL that the",
        ),
        ("IP:127.0.0.1", ["-days", "-1"], "(certificate has expired). Renew it"),
    ],
)
def test_a_certificate_of_an_own_authority_must_have_the_right_name_and_date(
    subject: str, days: list[str], message: str, files: Path, authority: Path
) -> None:
    server_certificate = certificate(authority, "server", subject=subject, issuer="authority", days=days)
    with web_server(files, "none", bad="", certificate=server_certificate) as server, proxy() as used:
        found = read_trusting(server.url, authority)
        tunnelled = read_trusting(server.url, authority, https_proxy=f"http://{used.address}")
    for each in (found, tunnelled):
        if message != "[b'data']":
            assert each.startswith(f"OutageError {server.url}/a.bin: certificate not trusted: that of 127.0.0.1:")
        assert message in each
    assert used.requests[0].startswith("CONNECT 127.0.0.1:")
