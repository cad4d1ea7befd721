"""Packs made on a Ray cluster: byte for byte those of one machine, whatever is killed, without leftovers."""

import filecmp
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpload import ArgumentError, PackOptions, RayCluster, pack_index, verify_pack
from tests.support.photos import make_photo_tree
from tests.support.ray_cluster import TestCluster
from tests.support.transport_works import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUM_SAMPLES = 1000
OPTIONS = ["--size", "500KiB", "--resize-short", "150"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos that take seconds to pack."""
    folder = tmp_path_factory.mktemp("photos")
    make_photo_tree(folder, num_images=8, num_classes=2, seed=0)
    photos = sorted(folder.rglob("*.JPEG"))
    listed = folder / "all.txt"
    listed.write_text("".join(f"{photos[n % len(photos)].relative_to(folder)} {n % 7}\n" for n in range(NUM_SAMPLES)))
    return listed


@pytest.fixture(scope="module")
def whole(index: Path) -> Path:
    """The pack that one machine makes."""
    out = index.with_name("whole")
    subprocess.run(command(index, out)[:-2], check=True, stdout=subprocess.DEVNULL, timeout=100)
    return out


def command(index: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "mpload", "pack", str(index), "-o", str(out), *OPTIONS, "--on", "ray"]


@contextmanager
def begun_pack(index: Path, out: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a pack, and wait until both nodes make shards."""
    with subprocess.Popen(
        command(index, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as pack:
        try:
            assert wait_until(lambda: len(list(out.glob(".shard-*.tmp"))) > 1)
            yield pack
        finally:
            if pack.poll() is None:
                os.killpg(pack.pid, signal.SIGKILL)


def assert_same(whole: Path, out: Path) -> None:
    """Check that a folder holds the files of a pack and nothing else. Sidecars contain times."""
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in out.iterdir()} == names
    same, *others = filecmp.cmpfiles(whole, out, names - {"index.txt.mpx", ".lock"}, shallow=False)
    assert (len(same), others) == (len(names) - 2, [[], []])


def test_a_pack_is_that_of_one_machine_after_a_task_and_a_node_are_killed(
    cluster: TestCluster, index: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pack"
    assert len(list(whole.glob("shard-*"))) >= 6
    with begun_pack(index, out) as pack:
        cluster.task_processes()[0].kill()
        cluster.kill_node()
        try:
            num_done = len(list(out.glob("*.lines")))
            errors = pack.communicate(timeout=200)[1]
        finally:
            cluster.add_node()
    assert (pack.returncode, errors) == (0, "")
    assert num_done < len(list(whole.glob("shard-*")))  # it was killed in the middle
    assert_same(whole, out)
    verify_pack(index, out, PackOptions(shard_bytes=500 << 10, resize_short=150), on=RayCluster())
    assert_same(whole, out)


def test_an_interrupted_pack_leaves_no_task_and_no_unfinished_file_and_continues(
    cluster: TestCluster, index: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pack"
    with begun_pack(index, out) as pack:
        tasks = cluster.task_processes()
        os.killpg(pack.pid, signal.SIGINT)  # as a terminal does
        errors = pack.communicate(timeout=100)[1]
    assert (pack.returncode, errors) == (130, "mpload: interrupted\n"), errors
    assert tasks
    assert not list(out.glob("*.tmp"))
    assert wait_until(lambda: not any(task.is_running() and "do_job" in "".join(task.cmdline()) for task in tasks))
    subprocess.run(command(index, out)[:-2], check=True, stdout=subprocess.DEVNULL, timeout=100)
    assert_same(whole, out)


def test_a_killed_pack_is_continued_on_the_cluster(
    cluster: TestCluster, index: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pack"
    with begun_pack(index, out) as pack:
        assert wait_until(lambda: any(out.glob("*.lines")))
        pack.kill()
    subprocess.run(command(index, out), check=True, stdout=subprocess.DEVNULL, timeout=200)
    assert_same(whole, out)


def test_a_number_of_processes_of_this_machine_is_refused_beside_a_cluster(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="leave it out"):
        pack_index(index, tmp_path / "pack", num_workers=2, on=RayCluster())
