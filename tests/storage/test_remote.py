"""Objects at URLs: read and listed from a real S3 endpoint, with real faults, and without revealing secrets."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, MploadError, OutageError, OutsideRootError, StorageError
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.remote import RemoteObjects, RemoteStorage, list_objects
from mpload.units import printable
from tests.support.photos import make_photo_tree
from tests.support.raw_server import head, raw_server
from tests.support.s3 import S3, SECRETS, s3_environment
from tests.support.web_faults import AT_ONCE, web_server

pytestmark = pytest.mark.usefixtures("each_way")

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
    storage = RemoteObjects("s3://photos/bin/a")
    for path in ("../h#z+y.bin", "/x", "s3://photos/bin/a/../x", "s3://photos/bin/ab", "s3://other/x"):
        with pytest.raises(OutsideRootError):
            storage.read([ByteRange(path)])
    assert storage.read([ByteRange("s3://photos/bin/a/one.bin", 0, 3)]) == [b"a/o"]
    anywhere = RemoteObjects("s3://photos/bin/a", allow_outside_root=True)
    assert anywhere.read([ByteRange("s3://photos/bin/h#z+y.bin", 0, 2)]) == [b"h#"]


@pytest.mark.processes
@pytest.mark.parametrize("key", ["a//b.bin", "a/./b.bin", "a\x01.bin", "//x"])
def test_a_key_that_obstore_cannot_read_is_named(s3: S3, key: str) -> None:
    folder = f"keys-{sum(key.encode())}"
    s3.put({f"{folder}/{key}": b"x", f"{folder}/a/b.bin": b"another"})
    attempts: list[Callable[[], object]] = [
        lambda: RemoteObjects(f"s3://photos/{folder}").read([ByteRange(f"s3://photos/{folder}/{key}")]),
        lambda: list(list_objects(f"s3://photos/{folder}/")),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match=r"the key .* has an empty part.*Rename the object") as caught:
            attempt()
        assert printable(key) in str(caught.value)


# Faults of the server of a bucket; test_web_faults.py has those of web servers


LIMITS = RemoteStorage(request_timeout_seconds=0.3, retry_seconds=1.0)
BUSY_SECONDS = 5.0
"""What a busy machine may take for something short."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that web servers serve as the bucket `photos`."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "photos").mkdir()
    for name in ("bad.bin", "good.bin"):
        (folder / "photos" / name).write_bytes(bytes(range(256)) * 40)
    return folder


@contextmanager
def bucket(objects: Path, fault: str, *, seconds: float = 0.0) -> Iterator[RemoteObjects]:
    """Serve a bucket in which `bad.bin` has a fault."""
    pytest.importorskip("obstore")
    with web_server(objects, fault, seconds=seconds, bad="bad.bin") as server, s3_environment(server.url):
        yield RemoteObjects("s3://photos", limits=LIMITS)


@pytest.mark.processes
def test_an_object_at_a_gs_url_is_read_from_the_endpoint_that_the_environment_names(
    objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    (tmp_path / "photos").mkdir()
    whole = (objects / "photos" / "good.bin").read_bytes()
    (tmp_path / "photos" / "good").write_bytes(whole)  # the client writes a dot as %2E, which this server leaves
    with web_server(tmp_path, "none", bad="") as server:
        (tmp_path / "gs.json").write_text(json.dumps({"gcs_base_url": server.url, **account}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "gs.json"))
        storage = RemoteObjects("gs://photos", limits=LIMITS)
        assert storage.read([ByteRange("good"), Span("good", 3, 5)]) == [whole, whole[3:8]]


@pytest.mark.processes
@pytest.mark.parametrize("fault", ["status 503 once", "status 429 once", "stall once", "cut once"])
def test_a_temporary_fault_of_a_bucket_is_retried(fault: str, objects: Path) -> None:
    data = (objects / "photos" / "bad.bin").read_bytes()
    with bucket(objects, fault) as storage:
        assert storage.read([ByteRange("bad.bin"), ByteRange("bad.bin", 300, 1000)]) == [data, data[300:1300]]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("status 403", "access is denied. Set up credentials"),
        ("status 500", r"the server answered 500 Internal Server Error \(.*The server answers other requests"),
        ("stall", "no answer in time: the request took longer than 0.3 s .*The server answers other requests"),
        pytest.param("stall in the body", "answer stalled: the request took longer than 0.3 s", marks=pytest.mark.slow),
        ("reset", r"connection reset \("),
        pytest.param("closed before the answer", r"connection closed \(", marks=pytest.mark.slow),
        pytest.param("cut", r"answer cut short \(", marks=pytest.mark.slow),
        ("not HTTP", r"answer is not HTTP \("),
        pytest.param("redirect loop", "redirect loop", marks=pytest.mark.slow),
        ("chunked", "answer without a length: the server sends no Content-Length"),
    ],
)
def test_a_lasting_fault_of_a_bucket_is_named_in_time_and_reveals_no_secret(
    fault: str, message: str, objects: Path
) -> None:
    with bucket(objects, fault) as storage:
        assert len(storage.read([ByteRange("good.bin")])[0]) == 10240
        start = time.monotonic()
        with pytest.raises(StorageError, match=message) as caught:
            storage.read([ByteRange("bad.bin")])
        assert time.monotonic() - start < 1.2 * LIMITS.retry_seconds + BUSY_SECONDS
        assert str(caught.value).startswith("s3://photos/bad.bin: ")
        assert not isinstance(caught.value, OutageError)
        assert not [secret for secret in SECRETS.values() if secret in str(caught.value)]
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("400 Bad Request", "ExpiredToken", r"credentials have expired\. Renew them, such as by `aws sso login`"),
        ("403 Forbidden", "ExpiredToken", r"credentials have expired\. Renew them"),
        ("403 Forbidden", "RequestTimeTooSkewed", "clock is wrong: that of this machine differs from the server's"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", r"bucket is in another region\. Set AWS_REGION"),
        ("301 Moved Permanently", "PermanentRedirect", r"bucket is in another region\. Set AWS_REGION"),
        ("404 Not Found", "NoSuchBucket", r"no such bucket\. Check #root of the index"),
    ],
)
def test_an_error_of_s3_that_concerns_all_objects_is_named_at_once_and_no_sample_is_to_blame(
    status: str, code: str, message: str
) -> None:
    pytest.importorskip("obstore")
    body = f"<Error><Code>{code}</Code><Message>what</Message><Token-0>THETOKEN</Token-0></Error>".encode()

    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head(status, length=len(body)) + body)
        return True

    with raw_server(answer) as url, s3_environment(url):
        start = time.monotonic()
        with pytest.raises(OutageError, match=message) as caught:
            RemoteObjects("s3://photos").read([ByteRange("x.bin")])  # with the default limits
        assert time.monotonic() - start < BUSY_SECONDS
    assert "All requests fail in this way, so no sample is skipped" in str(caught.value)
    assert "THETOKEN" not in str(caught.value)


@pytest.mark.processes
def test_ctrl_c_ends_a_read_of_a_bucket_that_stalls_at_once(objects: Path) -> None:
    program = (
        "from mpload.storage.ranges import ByteRange; from mpload.storage.remote import RemoteObjects\n"
        "storage = RemoteObjects('s3://photos'); storage.read([ByteRange('good.bin')]); print('read', flush=True)\n"
        "storage.read([ByteRange('bad.bin')])"
    )
    with bucket(objects, "stall"):
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "read\n"
            with pytest.raises(subprocess.TimeoutExpired):
                reader.wait(0.5)  # it waits for the server by now
            start = time.monotonic()
            reader.send_signal(signal.SIGINT)
            assert reader.communicate(timeout=60)[1].rstrip().endswith("KeyboardInterrupt")
    assert time.monotonic() - start < 5  # a request may take 30 s


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://127.0.0.1:9", "connection refused .*The server answers no other request either"),
        ("http://no-such-host.invalid", "name not resolved: DNS knows no address of the endpoint"),
    ],
)
def test_a_bucket_that_cannot_be_reached_is_an_outage(endpoint: str, message: str) -> None:
    pytest.importorskip("obstore")
    with s3_environment(endpoint):
        storage = RemoteObjects("s3://photos", limits=LIMITS)
        start = time.monotonic()
        with pytest.raises(OutageError, match=message):
            storage.read([ByteRange("x")])
        assert time.monotonic() - start < 1.2 * LIMITS.retry_seconds + BUSY_SECONDS
        with pytest.raises(OutageError, match=message):  # the outage counts once
            storage.read([ByteRange("y")])
        assert time.monotonic() - start < 1.2 * LIMITS.retry_seconds + BUSY_SECONDS


@pytest.mark.parametrize(("request_seconds", "retry_seconds"), [(0, 1), (1, 1), (2, 1), (1, float("inf"))])
def test_limits_that_do_not_nest_are_refused(request_seconds: float, retry_seconds: float) -> None:
    with pytest.raises(ArgumentError, match="0 < request_timeout_seconds < retry_seconds must hold, got"):
        RemoteStorage(request_timeout_seconds=request_seconds, retry_seconds=retry_seconds)


def test_limits_for_urls_are_refused_for_an_index_without_urls(photo_tree: Path, tmp_path: Path) -> None:
    index = build_index(photo_tree, tmp_path / "x.txt")
    with pytest.raises(ArgumentError, match="sets time limits for URLs, but the index reads files below"):
        MPDataset(index, storage=RemoteStorage())


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


@pytest.mark.slow
@pytest.mark.processes
def test_forked_workers_of_a_stock_data_loader_read_a_bucket_after_its_index_was_opened(
    s3: S3, photos: Path, tmp_path: Path
) -> None:
    build_index(photos, tmp_path / "x.txt")
    text = (tmp_path / "x.txt").read_bytes()
    s3.put(
        {"indexes/x.txt": text[: text.index(b"#root")] + b"#root ../train/photos" + text[text.index(b"\n#columns") :]}
    )
    program = """
from torch.utils.data import DataLoader
from mpload import MPDataset, RawBytes
dataset = MPDataset("s3://photos/indexes/x.txt", decode=RawBytes(), batch_size=6)
print(dataset.index.root, sum(len(images) for images, _ in DataLoader(dataset, batch_size=None, num_workers=2)))
"""  # a process of its own, which has not used obstore
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "s3://photos/train/photos 24\n"


@pytest.mark.processes
@pytest.mark.parametrize(("given", "num_threads"), [(None, 1), ("3", 3)])
def test_a_process_reads_buckets_with_one_thread_of_obstore_unless_the_user_sets_another_number(
    s3: S3, given: str | None, num_threads: int
) -> None:
    program = """
import os, pathlib, sys, time
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects
before = os.environ.get("TOKIO_WORKER_THREADS")
RemoteObjects("s3://photos/bin/a").read([ByteRange("one.bin")])
assert os.environ.get("TOKIO_WORKER_THREADS") == before, "other libraries read it too"
num_threads = 0
for _ in range(100):  # until the threads that are expected have given themselves their name, and a while longer
    if num_threads >= int(sys.argv[1]):
        break
    time.sleep(0.1)
    names = [file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
    num_threads = sum(name.startswith("tokio-") for name in names)
print(num_threads)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TOKIO_WORKER_THREADS"}
    if given is not None:
        environment["TOKIO_WORKER_THREADS"] = given
    ran = subprocess.run(
        [sys.executable, "-c", program, str(num_threads)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == (f"{num_threads}\n", "")


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
        lambda: RemoteObjects(url),
        lambda: RemoteObjects("https://host", allow_outside_root=True).read([ByteRange(url)]),
        lambda: list(list_objects(url)),
    ]
    for attempt in attempts:
        with pytest.raises(MploadError) as caught:
            attempt()
        assert "password" not in str(caught.value).replace("contains a password", "")
        assert "signature" not in str(caught.value).replace("that may be a signature", "")
        assert not out.exists()


@pytest.mark.processes
def test_wrong_credentials_do_not_appear_in_errors(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server(tmp_path, "status 403", bad=AT_ONCE) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        for attempt in (
            lambda: RemoteObjects("s3://photos").read([ByteRange("x")]),
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
        RemoteObjects("s3://x").read([ByteRange("y")])
