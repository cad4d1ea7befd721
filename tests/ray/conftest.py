"""A Ray cluster for all tests of a module."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.support.ray_cluster import TOKEN, TestCluster, ray_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    if find_spec("ray") is None:  # importing it would decide whether this process uses a token
        pytest.skip("ray is not installed")
    with ray_cluster() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
