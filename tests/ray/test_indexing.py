"""Indexes of a bucket made on a Ray cluster: byte for byte those of one machine, whatever is killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from mpload import ArgumentError, RayCluster, build_index
from tests.support.ray_cluster import TOKEN, TestCluster, ray_cluster
from tests.support.s3 import S3, s3_environment, s3_server
from tests.support.transport_works import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUM_CLASSES, NUM_FILES = 60, 50
RAY_LOG = re.compile(r"\[[-\d]+ [:,\d]+ [IWE] \d+ \d+\] \w+\.cc:\d+: ")  # Ray's own, of a task that was interrupted


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    """Put images into class folders: some directly, some in folders of their own."""
    if find_spec("ray") is None:  # importing it would decide whether this process uses a token
        pytest.skip("ray is not installed")
    with s3_server() as made, s3_environment(made.endpoint):
        for c in range(NUM_CLASSES):
            names = (f"{n % 3}/{n}.jpg" if n % 2 else f"{n}.jpg" for n in range(NUM_FILES))
            made.put({f"train/{c}/{name}": b"x" for name in names})
        made.put({"train/readme.txt": b"x", "train/loose.jpg": b"x"})
        yield made


@pytest.fixture(scope="module")
def cluster(server: S3) -> Iterator[TestCluster]:
    with ray_cluster() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made


def command(out: Path) -> list[str]:
    return [sys.executable, "-m", "mpload", "index", "s3://photos/train", "-o", str(out), "--on", "ray"]


@contextmanager
def begun_index(out: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start making an index, and wait until both nodes list folders."""
    with subprocess.Popen(
        command(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            assert wait_until(lambda: len(list(out.parent.glob(".mpload-parts.*/.part-*.tmp"))) > 1)
            yield program
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(server: S3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index that one machine makes."""
    out = tmp_path_factory.mktemp("whole") / "train.txt"
    subprocess.run(command(out)[:-2], check=True, stdout=subprocess.DEVNULL, timeout=100)
    assert out.read_bytes().count(b"\n") > NUM_CLASSES * NUM_FILES
    return out


def test_an_index_is_that_of_one_machine_after_a_task_and_a_node_are_killed(
    cluster: TestCluster, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "train.txt"
    with begun_index(out) as program:
        assert wait_until(lambda: bool(cluster.task_processes()))
        cluster.task_processes()[0].kill()
        cluster.kill_node()
        try:
            errors = program.communicate(timeout=200)[1]
        finally:
            cluster.add_node()
    assert (program.returncode, errors.count("left out")) == (0, 1), errors
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.txt", "train.txt.mpx"]


def test_what_a_killed_index_left_is_deleted_by_the_next(cluster: TestCluster, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "train.txt"
    with begun_index(out) as program:
        program.kill()
    assert list(tmp_path.glob(".mpload-parts.*"))
    subprocess.run(command(out), check=True, stdout=subprocess.DEVNULL, timeout=200)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.txt", "train.txt.mpx"]


def test_an_interrupted_index_leaves_nothing(cluster: TestCluster, tmp_path: Path) -> None:
    with begun_index(tmp_path / "train.txt") as program:
        os.killpg(program.pid, signal.SIGINT)
        errors = program.communicate(timeout=100)[1]
    ours = [line for line in errors.splitlines() if not RAY_LOG.match(line)]
    assert (program.returncode, ours) == (130, ["mpload: interrupted"])
    assert not list(tmp_path.iterdir())


def test_only_a_bucket_can_be_listed_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(ArgumentError, match="leave out `on`"):
        build_index(tmp_path, tmp_path / "train.txt", on=RayCluster())
