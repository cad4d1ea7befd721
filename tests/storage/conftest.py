"""Fixtures that several tests of storages share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpload.storage import local
from mpload.storage.native import NATIVE
from mpload.storage.remote import RemoteObjects
from tests.support.begun_reads import read_begun
from tests.support.s3 import S3, s3_environment, s3_server


@pytest.fixture(scope="package")
def running_s3() -> Iterator[S3]:
    """Start one server for these tests, because starting it takes seconds. Tests of other packages count processes."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3(running_s3: S3) -> Iterator[S3]:
    """Return the server, to which the environment now points. Modules put objects under different keys."""
    with s3_environment(running_s3.endpoint):
        yield running_s3


@pytest.fixture(params=["native", "plain"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `root/a/one.bin` with 5 bytes, `root/shard.tar` with 1000, and `secret` beside `root`.

    Each test runs twice, with the native module and without it, because both must behave alike.
    """
    if request.param == "plain":
        monkeypatch.setattr(local, "NATIVE", None)
    elif NATIVE is None:
        pytest.skip("the native module is not built")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "one.bin").write_bytes(b"12345")
    (root / "shard.tar").write_bytes(bytes(range(250)) * 4)
    (tmp_path / "secret").write_bytes(b"secret")
    return root


@pytest.fixture(params=["read", "begun"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `RemoteObjects.read` wait for each answer, or begin each read as read-ahead does."""
    if request.param == "begun":
        monkeypatch.setattr(RemoteObjects, "read", read_begun)
