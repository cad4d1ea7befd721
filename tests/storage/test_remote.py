"""Objects at URLs: read and listed from a real S3 endpoint, with real faults, and without revealing secrets."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, MploadError, OutsideRootError, StorageError
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteStorage, list_objects
from tests.support.photos import make_photo_tree
from tests.support.s3 import S3, SECRETS

NAMES = ["a/one.bin", "a b/é ü.bin", "100%/x.bin", "a%20b/x.bin", "q?x=1/y.bin", "h#z+y.bin"]


@pytest.fixture(scope="module")
def s3(s3: S3) -> S3:
    s3.put({f"bin/{name}": name.encode() * 10 for name in NAMES})
    return s3


@pytest.fixture(scope="module")
def photos(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote") / "photos"
    make_photo_tree(folder, num_images=24, num_classes=3, seed=0)
    s3.put_folder(folder, "train/photos")
    return folder


# Reads


@pytest.mark.processes
def test_no_path_leads_outside_the_root(s3: S3) -> None:
    storage = RemoteStorage("s3://photos/bin/a")
    for path in ("../h#z+y.bin", "/x", "s3://photos/bin/a/../x", "s3://photos/bin/ab", "s3://other/x"):
        with pytest.raises(OutsideRootError):
            storage.read([ByteRange(path)])
    assert storage.read([ByteRange("s3://photos/bin/a/one.bin", 0, 3)]) == [b"a/o"]
    anywhere = RemoteStorage("s3://photos/bin/a", allow_outside_root=True)
    assert anywhere.read([ByteRange("s3://photos/bin/h#z+y.bin", 0, 2)]) == [b"h#"]


# Faults, from a faulty server


class Faulty(BaseHTTPRequestHandler):
    """Responds according to the path /KIND/..., where KIND is the fault that the first requests encounter."""

    seen: dict[str, int]
    protocol_version = "HTTP/1.1"
    data = bytes(range(256)) * 40

    def do_GET(self) -> None:
        count = self.seen[self.path] = self.seen.get(self.path, 0) + 1
        kind = self.path.split("/")[1]
        if (kind == "busy" and count <= 3) or kind == "down":
            self.answer(503, b"<Error><AWSAccessKeyId>AKIATHISISASECRET</AWSAccessKeyId></Error>")
        elif (kind == "stall" and count <= 2) or kind == "dead":
            self.connection.settimeout(30)
            self.connection.recv(1)  # returns when the client gives up and closes the connection
            self.close_connection = True
        elif kind == "denied":
            self.answer(403, b"<StringToSign>this/is/a/secret+too</StringToSign>")
        else:
            first, last = 0, len(self.data) - 1
            span = ""
            if (wanted := self.headers.get("Range")) is not None:
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                span = f"bytes {first}-{last}/{len(self.data)}"
            part = self.data[first : last + 1]
            self.close_connection = is_cut = kind == "cut" and count <= 2
            self.answer(206 if span else 200, part[:100] if is_cut else part, length=len(part), span=span)

    def answer(self, status: int, data: bytes, *, length: int | None = None, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class FaultyServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass  # some tests make the client close the connection early


@contextmanager
def faulty_server() -> Iterator[str]:
    handler = type("Handler", (Faulty,), {"seen": {}})
    with FaultyServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize("kind", ["good", "busy", "stall", "cut"])
def test_a_temporary_fault_is_retried(kind: str) -> None:
    pytest.importorskip("obstore")
    with faulty_server() as url:
        storage = RemoteStorage(f"{url}/{kind}", timeout_seconds=0.7)
        assert storage.read([ByteRange("x y.bin")]) == [Faulty.data]
        assert storage.read([ByteRange("z.bin", 300, 1000)]) == [Faulty.data[300:1300]]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("down", "the server answered 503 Service Unavailable"),
        ("dead", "timed out|timeout|cannot be read"),
        ("denied", "access is denied. Set up credentials"),
    ],
)
def test_a_permanent_fault_is_an_error_within_the_time_limit_and_reveals_no_secret(kind: str, message: str) -> None:
    pytest.importorskip("obstore")
    with faulty_server() as url:
        storage = RemoteStorage(f"{url}/{kind}", timeout_seconds=0.5, max_retries=2, retry_seconds=5)
        with pytest.raises(StorageError, match=message) as caught:
            storage.read([ByteRange("x.bin")])
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


def test_a_refused_connection_is_an_error() -> None:
    pytest.importorskip("obstore")
    storage = RemoteStorage("http://127.0.0.1:9", timeout_seconds=0.5, max_retries=1, retry_seconds=2)
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9/x"):
        storage.read([ByteRange("x")])


# Indexes


@pytest.mark.processes
def test_the_index_of_a_bucket_equals_that_of_the_folder(s3: S3, photos: Path, tmp_path: Path) -> None:
    local, remote = tmp_path / "local.txt", tmp_path / "remote.txt"
    build_index(photos, local)
    build_index("s3://photos/train/photos/", remote)
    assert [line for line in local.read_text().splitlines() if not line.startswith("#root")] == [
        line for line in remote.read_text().splitlines() if not line.startswith("#root")
    ]
    assert open_index(remote).root == "s3://photos/train/photos"
    build_index("s3://photos/train/photos", tmp_path / "above.txt", root="s3://photos")
    assert str(open_index(tmp_path / "above.txt")[0].cells[0]).startswith("train/photos/")


@pytest.mark.processes
def test_the_command_lists_a_bucket(s3: S3, photos: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mpload",
        "index",
        "s3://photos/train/photos",
        "-o",
        tmp_path / "x.txt",
    ]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert "24 samples of 3 classes" in ran.stdout
    assert not [secret for secret in SECRETS.values() if secret in (tmp_path / "x.txt").read_text() + ran.stdout]


@pytest.mark.processes
def test_workers_read_the_same_from_a_bucket_as_from_the_folder(s3: S3, photos: Path, tmp_path: Path) -> None:
    def batches(index: Path | tuple[Path, ...]) -> list[tuple[list[bytes], list[int]]]:
        dataset = MPDataset(index, decode=RawBytes(), batch_size=5, seed=3, topology=Topology())  # type: ignore[arg-type]
        with MPLoader(dataset, num_workers=2) as loader:
            return [(list(images), labels.tolist()) for images, labels in loader]

    remote = build_index("s3://photos/train/photos", tmp_path / "remote.txt")
    assert batches(remote) == batches(build_index(photos, tmp_path / "local.txt"))


@pytest.mark.processes
def test_a_plain_list_of_urls_and_local_paths_can_be_read(s3: S3, photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.glob("*/*"))[:4]
    listed = tmp_path / "urls.txt"
    lines = [f"s3://photos/train/photos/{file.relative_to(photos)} {n}" for n, file in enumerate(files)]
    listed.write_text("\n".join([*lines, f"{files[0]} 9"]))
    wanted = [(file.read_bytes(), n) for n, file in enumerate(files)] + [(files[0].read_bytes(), 9)]
    assert list(MPDataset(listed, decode=RawBytes(), shuffle=False, topology=Topology())) == wanted


@pytest.mark.parametrize(
    "url", ["https://me:password@host/x", "https://host/x.jpg?X-Amz-Signature=signature", "ftp://host/x", "s3:///x"]
)
def test_an_index_contains_no_secret_and_no_error_reveals_one(tmp_path: Path, url: str) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(f"{url} 1\n")
    out = tmp_path / "x.txt"
    attempts: list[Callable[[], object]] = [
        lambda: build_index(listed, out, root="/"),
        lambda: build_index(url, out),
        lambda: build_index(listed, out, root=url),
        lambda: RemoteStorage(url),
        lambda: RemoteStorage("https://host", allow_outside_root=True).read([ByteRange(url)]),
        lambda: list(list_objects(url)),
    ]
    for attempt in attempts:
        with pytest.raises(MploadError) as caught:
            attempt()
        assert "password" not in str(caught.value).replace("contains a password", "")
        assert "signature" not in str(caught.value).replace("that may be a signature", "")
        assert not out.exists()


@pytest.mark.processes
def test_wrong_credentials_do_not_appear_in_errors(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"{url}/denied")
        for attempt in (
            lambda: RemoteStorage("s3://photos").read([ByteRange("x")]),
            lambda: list(list_objects("s3://photos")),
        ):
            with pytest.raises(StorageError, match="access is denied") as caught:
                attempt()
            assert not [secret for secret in SECRETS.values() if secret in str(caught.value)]


@pytest.mark.processes
def test_an_error_says_what_to_do_if_a_url_cannot_be_listed(s3: S3, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"at http URLs cannot be listed\. List their paths"):
        build_index("https://host/photos", tmp_path / "x.txt")
    s3.put({"tars/0.tar": b""})
    with pytest.raises(ArgumentError, match=r"contains tar shards \(0\.tar\).*mpload index FOLDER --root s3://"):
        build_index("s3://photos/tars", tmp_path / "x.txt")
    with pytest.raises(ArgumentError, match="no image found"):
        build_index("s3://photos/none", tmp_path / "x.txt")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ArgumentError, match=r"pip install 'mpload\[remote\]'"):
        RemoteStorage("s3://x").read([ByteRange("y")])
