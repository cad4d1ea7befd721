"""A million objects are listed on a Ray cluster in one pass."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.ray_cluster import TOKEN, ray_cluster
from tests.support.s3 import s3_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NUM_FOLDERS, NUM_FILES = 1000, 1000


@pytest.fixture
def endpoint() -> Iterator[str]:
    if find_spec("ray") is None:  # importing it would decide whether this process uses a token
        pytest.skip("ray is not installed")
    pytest.importorskip("obstore")
    command = [sys.executable, "-m", "tests.support.listed_bucket", str(NUM_FOLDERS), str(NUM_FILES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with s3_environment(found):
            yield found
        server.terminate()


def sent(endpoint: str) -> dict[str, int]:
    with urllib.request.urlopen(endpoint, timeout=60) as answer:
        return dict(json.load(answer))


def index(out: Path, *more: str) -> None:
    command = [sys.executable, "-m", "mpload", "index", "s3://photos/train", "-o", str(out), *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)


def test_a_million_objects_are_listed_in_one_pass(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tmp_path / "whole.txt")
    before = sent(endpoint)
    with ray_cluster() as cluster:
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        index(tmp_path / "train.txt", "--on", "ray")
    after = sent(endpoint)
    num_keys = after["keys"] - before["keys"]
    assert (tmp_path / "train.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()
    assert NUM_FOLDERS * NUM_FILES <= num_keys <= 1.8 * NUM_FOLDERS * NUM_FILES
