"""Buckets that are read through libcurl: over URLs that obstore signs, which may wait for credentials."""

import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from mpload import MPDataset, MPLoader, RawBytes
from mpload.errors import StorageError
from mpload.storage.buckets import BucketClient
from mpload.storage.quick_reads import Found
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.remote import RemoteObjects
from mpload.storage.request_failure import RequestFailure
from mpload.storage.transfers import Transfers
from tests.support.begun_reads import LIMITS, WAIT_SECONDS, Paths, objects_at, quick_reads_of, read_begun, usual
from tests.support.s3 import S3

pytestmark = pytest.mark.processes

KEY = "quick/ä b%c+.bin"


def putting(queue: "SimpleQueue[bytes | None]") -> Found:
    def found(data: bytes | None, failure: RequestFailure | None = None, *, is_unusual: bool = False) -> None:
        queue.put(data)

    return found


def test_a_bucket_is_read_over_signed_requests(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = []
    begin = Transfers.begin

    def noting(self: Transfers, url: str, **options: Any) -> bool:
        addresses.append(url)
        return begin(self, url, **options)

    monkeypatch.setattr(Transfers, "begin", noting)
    s3.put({KEY: bytes(range(100))})
    objects = RemoteObjects("s3://photos", limits=LIMITS)
    assert read_begun(objects, [ByteRange(KEY), Span(KEY, 10, 20)]) == [bytes(range(100)), bytes(range(10, 30))]
    with pytest.raises(StorageError, match="no such object"):
        read_begun(objects, [ByteRange("quick/missing.bin")])
    assert len(addresses) == 3
    assert all("X-Amz-Signature=" in each for each in addresses)


def test_requests_to_a_public_bucket_are_not_signed(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    def address() -> str:
        client = BucketClient(connect_seconds=1.0, max_bytes=None)
        return client.address_of("s3://photos", KEY, limit_seconds=1.0)

    signed = address()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert address() == signed.partition("?")[0]


def test_credentials_that_cannot_be_found_are_not_looked_for_again() -> None:
    calls = []

    def address_of(key: str) -> str:
        calls.append(key)
        raise RuntimeError("no credentials")

    quick = quick_reads_of(address_of)
    while quick.is_usual:
        assert not quick.begin("a", None, limit_seconds=1.0, found=putting(SimpleQueue()))
    assert len(calls) == 3


class Panic(BaseException):
    """As that of obstore."""


@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_credentials_that_come_late_delay_nobody(error: type[BaseException]) -> None:
    """Neither who begins a read, nor reads from other servers. If they do not come, the read goes on otherwise."""
    may_go_on, found = threading.Event(), SimpleQueue[bytes | None]()

    def address_of(_: str) -> str:
        assert may_go_on.wait(WAIT_SECONDS)
        raise error

    quick = quick_reads_of(address_of, may_wait=True)
    assert quick.begin("a", None, limit_seconds=1.0, found=putting(found))
    with objects_at(Paths(usual)) as objects:
        assert read_begun(objects, [ByteRange("a.bin")]) == [b"/a.bin"]
    assert found.empty()
    may_go_on.set()
    assert found.get(timeout=WAIT_SECONDS) is None


def test_signing_that_hangs_delays_no_read_beyond_its_limit() -> None:
    may_go_on, found = threading.Event(), SimpleQueue[bytes | None]()

    def address_of(_: str) -> str:
        assert may_go_on.wait(WAIT_SECONDS)
        return "http://127.0.0.1:9/never-requested"

    quick = quick_reads_of(address_of, may_wait=True)
    for _ in range(3):
        assert quick.begin("a", None, limit_seconds=0.05, found=putting(found))
    time.sleep(0.1)
    quick._signing_since -= 2.0
    assert not quick.begin("a", None, limit_seconds=0.05, found=putting(found))
    may_go_on.set()
    assert [found.get(timeout=WAIT_SECONDS) for _ in range(3)] == [None] * 3


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_workers_share_the_libraries_that_reading_urls_takes(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(b"sample")
    s3.put({"quick/shared": b"sample"})
    for root, has_library in (("s3://photos/quick", True), (str(tmp_path), False)):
        index = tmp_path / f"{has_library}.txt"
        index.write_text(f"#mpload 1\n#root {root}\n#columns data:path label:int\nshared\t0\n")
        with MPLoader(MPDataset(index, decode=RawBytes(), batch_size=1), num_workers=1) as loader:
            ((samples, _),) = loader
            assert list(samples) == [b"sample"]
            zygote = loader.pids["mpload-zygote"]
            assert ("_obstore" in Path(f"/proc/{zygote}/maps").read_text()) == has_library
            assert "Threads:\t1\n" in Path(f"/proc/{zygote}/status").read_text()  # it may be forked
