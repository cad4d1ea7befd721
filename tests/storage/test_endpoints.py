"""Environment variables that name a server of buckets: one that is wrong is named at once, and nothing hangs."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, RawBytes, Topology
from mpload.errors import MploadError, SampleError, StorageError
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects, RemoteStorage, list_objects

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

WRONG = ["", "localhost:9000", "127.0.0.1:9000", "http://", "http//x:1", "ftp://x", "http://a b", "x", "http://x:99999"]
LIMITS = RemoteStorage(request_timeout_seconds=2.0, retry_seconds=5.0)
UNEXPECTED = "http://1.2.3.999:80"
"""A URL that only obstore refuses, by a panic."""


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "any")


def read(url: str) -> list[bytes]:
    return RemoteObjects(url, limits=LIMITS).read([ByteRange("x.jpg")])


def from_thread(call: Callable[[], object]) -> BaseException | None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  a panic is no Exception
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0] if found else None


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("AWS_ENDPOINT_URL", "s3://photos"),
        ("AWS_ENDPOINT_URL_S3", "s3://photos"),
        ("AWS_ENDPOINT", "s3://photos"),
        ("GOOGLE_BASE_URL", "gs://photos"),
        ("AZURE_STORAGE_ENDPOINT", "az://photos"),
        ("AZURE_ENDPOINT", "az://photos"),
    ],
)
def test_a_wrong_endpoint_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, url: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    for attempt in (lambda: read(url), lambda: list(list_objects(url))):
        with pytest.raises(MploadError, match=rf"{variable}.*must be the URL of a server.*http://localhost:9000"):
            attempt()


def test_an_endpoint_with_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "//me:password@host")
    with pytest.raises(MploadError, match="AWS_ENDPOINT_URL must be") as caught:
        read("s3://photos")
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("call", [lambda: read("s3://photos"), lambda: list(list_objects("s3://photos"))])
def test_a_panic_of_obstore_is_an_error_in_every_thread(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", UNEXPECTED)
    with pytest.raises(StorageError, match="obstore failed"):
        call()
    assert isinstance(from_thread(call), StorageError)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("endpoint", ["localhost:9000", UNEXPECTED])
def test_a_loader_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    index = tmp_path / "x.txt"
    lines = "".join(f"{number}.jpg\t{number}\n" for number in range(40))
    index.write_text(f"#mpload 1\n#root s3://photos\n#columns image:path label:int\n{lines}")
    dataset = MPDataset(index, decode=RawBytes(), batch_size=4, topology=Topology())
    with (
        MPLoader(dataset, num_workers=num_workers) as loader,
        pytest.raises(SampleError, match=r"AWS_ENDPOINT_URL='localhost:9000'|obstore failed"),
    ):
        next(iter(loader))


def test_the_command_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    command = [sys.executable, "-m", "mpload", "index", "s3://photos/train", "-o", str(tmp_path / "x.txt")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 2
    assert "AWS_ENDPOINT_URL='localhost:9000' must be the URL of a server" in ran.stderr
    assert "Traceback" not in ran.stderr
