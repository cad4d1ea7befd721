"""Memory figures, checked against processes that use a known amount and cgroups with known limits."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mpload.memory.machine import available_bytes, num_usable_cores
from mpload.memory.usage import process_memory, sum_memory, tree_memory
from mpload.units import MIB

HOLD = "held = bytearray(b'x') * {0}"
MAP = "import mmap; f = open({0!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); sum(m[::4096])"


def wait_ready(code: str) -> "subprocess.Popen[bytes]":
    """Start a process that runs `code` and then waits for the end of its input. Return when it waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nimport sys; print('ready', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def hold(num_bytes: int) -> "subprocess.Popen[bytes]":
    return wait_ready(HOLD.format(num_bytes))


@pytest.mark.processes
def test_private_memory_of_a_child_is_in_its_uss_and_the_child_is_in_the_tree() -> None:
    with hold(0) as empty, hold(50 * MIB) as full:
        extra = process_memory(full.pid).uss_bytes - process_memory(empty.pid).uss_bytes
        assert 49 * MIB <= extra < 54 * MIB
        pids = {process.pid for process in tree_memory()}
        assert {os.getpid(), empty.pid, full.pid} <= pids
        total = sum_memory(tree_memory())
        assert total.uss_bytes <= total.pss_bytes <= total.rss_bytes
        for process in (empty, full):
            process.communicate()


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="PSS is Linux's")
def test_memory_that_two_processes_map_counts_half_for_each_in_pss(tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(b"x" * 40 * MIB)
    code = MAP.format(str(tmp_path / "shared"))
    with wait_ready(code) as first:  # two new processes, because other tests affect what this process shares
        alone = process_memory(first.pid)
        with wait_ready(code) as second:
            shared = process_memory(first.pid)
            second.communicate()
        first.communicate()
    assert alone.pss_bytes - shared.pss_bytes == pytest.approx(20 * MIB, rel=0.3)
    assert alone.uss_bytes - shared.uss_bytes == pytest.approx(40 * MIB, rel=0.3)


@pytest.mark.processes
def test_a_process_that_has_ended_raises_an_error_or_is_left_out() -> None:
    with hold(0) as process:
        process.communicate()
    with pytest.raises(psutil.NoSuchProcess):
        process_memory(process.pid)
    assert tree_memory(process.pid) == []


@pytest.mark.processes
def test_a_zombie_is_left_out_of_its_tree() -> None:
    with hold(0) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
        assert process.pid in {child.pid for child in psutil.Process().children()}
        assert process.pid not in {found.pid for found in tree_memory()}


LIMIT_BYTES, USED_BYTES, CACHE_BYTES = 64 * MIB, 60 * MIB, 50 * MIB


def write_words(folder: Path, **words: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, word in words.items():
        (folder / name.replace("__", ".")).write_text(word + "\n")


def make_cgroup(root: Path, version: int, path: str, limit: str) -> Path:
    """Write the files of a cgroup with a quota of 1.5 cores; return the file that names a process's cgroups."""
    if version == 2:
        write_words(
            root / path,
            memory__max=limit,
            memory__current=str(USED_BYTES),
            memory__stat=f"anon {USED_BYTES - CACHE_BYTES}\ninactive_file {CACHE_BYTES}",
            cpu__max="150000 100000",
        )
        lines = f"0::/{path}"
    else:
        write_words(
            root / "memory" / path,
            memory__limit_in_bytes=limit,
            memory__usage_in_bytes=str(USED_BYTES),
            memory__stat=f"rss 0\ntotal_rss {USED_BYTES - CACHE_BYTES - MIB}\ntotal_shmem {MIB}",
        )
        write_words(root / "cpu,cpuacct" / path, cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
        lines = f"9:cpu,cpuacct:/{path}\n4:memory:/{path}\n1:name=systemd:/{path}\n0::/{path}"
    members = root / "members"
    members.write_text(lines + "\n")
    return members


@pytest.mark.parametrize("version", [1, 2])
def test_page_cache_counts_as_free_memory_of_a_container(tmp_path: Path, version: int) -> None:
    members = make_cgroup(tmp_path, version, "job", limit=str(LIMIT_BYTES))
    left_bytes = LIMIT_BYTES - (USED_BYTES - CACHE_BYTES)
    assert available_bytes(cgroup_folder=tmp_path, cgroup_members=members) == left_bytes


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_container_of_a_process_limits_it(tmp_path: Path, version: int) -> None:
    make_cgroup(tmp_path, version, "job", limit=str(LIMIT_BYTES))
    members = make_cgroup(tmp_path, version, "job/step", limit="1000000000000000")
    left_bytes = LIMIT_BYTES - (USED_BYTES - CACHE_BYTES)
    assert available_bytes(cgroup_folder=tmp_path, cgroup_members=members) == left_bytes


@pytest.mark.parametrize("version", [1, 2])
def test_a_full_container_has_no_memory_left(tmp_path: Path, version: int) -> None:
    members = make_cgroup(tmp_path, version, "job", limit=str(MIB))
    assert available_bytes(cgroup_folder=tmp_path, cgroup_members=members) == 0


def test_without_a_container_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    members = make_cgroup(tmp_path, 2, "job", limit="max")
    machine_bytes = psutil.virtual_memory().available
    assert available_bytes(cgroup_folder=tmp_path, cgroup_members=members) == pytest.approx(machine_bytes, rel=0.2)
    assert available_bytes(cgroup_folder=tmp_path / "none", cgroup_members=tmp_path / "none") > 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_of_cores_is_rounded_up(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    members = make_cgroup(tmp_path, version, "job", limit="max")
    assert num_usable_cores(cgroup_folder=tmp_path, cgroup_members=members) == 2


@pytest.mark.parametrize(
    "words", [{"cpu__max": "max 100000"}, {"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "1000"}]
)
def test_without_a_quota_the_affinity_is_the_limit(
    tmp_path: Path, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    write_words(tmp_path, members="0::/", **words)
    assert num_usable_cores(cgroup_folder=tmp_path, cgroup_members=tmp_path / "members") == 3
