"""Fixtures that several tests of storages share."""

from collections.abc import Iterator

import pytest

from tests.support.s3 import S3, s3_environment, s3_server


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3]:
    """Start one server for all tests, because starting it takes seconds."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3(running_s3: S3) -> Iterator[S3]:
    """Return the server, to which the environment now points. Modules put objects under different keys."""
    with s3_environment(running_s3.endpoint):
        yield running_s3
