"""A real S3 endpoint on the loopback interface, in its own process, with a bucket `photos`."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["PAGE_OBJECTS", "S3", "SECRETS", "s3_environment", "s3_server"]

SECRETS = {"AWS_ACCESS_KEY_ID": "AKIATHISISASECRET", "AWS_SECRET_ACCESS_KEY": "this/is/a/secret+too"}
PAGE_OBJECTS = 20
"""Objects in a page of a list. It is small, so that short lists have several pages."""


class S3:
    """The server, and a client that puts objects into the bucket."""

    def __init__(self, endpoint: str, log: Path) -> None:
        import boto3

        self.endpoint = endpoint
        self._log = log
        self._client = boto3.client("s3", endpoint_url=endpoint)
        self._client.create_bucket(Bucket="photos")

    def make_bucket(self, name: str) -> None:
        self._client.create_bucket(Bucket=name)

    def put(self, objects: Mapping[str, bytes], *, bucket: str = "photos") -> None:
        for key, data in objects.items():
            self._client.put_object(Bucket=bucket, Key=key, Body=data)

    def num_lists(self) -> int:
        """Return the number of list pages requested so far."""
        return self._log.read_text().count("list-type=2")

    def put_folder(self, folder: Path, prefix: str) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put({f"{prefix}/{path.relative_to(folder)}": path.read_bytes()})


@contextmanager
def s3_server() -> Iterator[S3]:
    """Start a server, which takes seconds, and stop it at the end."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    pytest.importorskip("flask_cors")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    log = Path(tempfile.mkdtemp()) / "requests"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_OBJECTS)},
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        with s3_environment(endpoint):
            made = S3(endpoint, log)
        yield made
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(log.parent)


@contextmanager
def s3_environment(endpoint: str) -> Iterator[None]:
    """Set the environment variables that name the endpoint and the keys that sign requests to it."""
    region = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SECRETS, **region, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        yield
