"""Memory figures against processes that take a known amount."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mpload.memory import process_memory, sum_memory, tree_memory
from mpload.units import MIB

HOLD = "import sys; held = bytearray(b'x') * {0}; print('ready', flush=True); sys.stdin.read()"


def hold(num_bytes: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(num_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_private_memory_of_a_child_shows_in_its_uss_and_in_the_tree() -> None:
    with hold(0) as empty, hold(50 * MIB) as full:
        extra = process_memory(full.pid).uss_bytes - process_memory(empty.pid).uss_bytes
        assert 49 * MIB <= extra < 54 * MIB
        pids = {process.pid for process in tree_memory()}
        assert {os.getpid(), empty.pid, full.pid} <= pids
        total = sum_memory(tree_memory())
        assert total.uss_bytes <= total.pss_bytes <= total.rss_bytes
        for process in (empty, full):
            process.communicate()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="PSS is Linux's")
def test_a_shared_map_counts_by_halves(tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(b"x" * 40 * MIB)
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "sum(m[::4096]); print('ready', flush=True); sys.stdin.read()"
    )
    with (tmp_path / "shared").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        sum(mapped[::4096])
        alone = process_memory()
        with subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "shared"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            shared = process_memory()
            other.communicate()
    assert alone.pss_bytes - shared.pss_bytes == pytest.approx(20 * MIB, rel=0.3)
    assert alone.uss_bytes - shared.uss_bytes == pytest.approx(40 * MIB, rel=0.3)


def test_a_process_that_has_ended_is_named_or_left_out() -> None:
    with hold(0) as process:
        process.communicate()
    with pytest.raises(psutil.NoSuchProcess):
        process_memory(process.pid)
    assert tree_memory(process.pid) == []
