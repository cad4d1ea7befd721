"""A chroot in which /proc is not mounted: loaders work, without a governor of memory, and say so once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpload import build_index
from mpload.memory import machine
from mpload.memory.machine import MemoryGauge
from mpload.tools.doctor.environment import read_environment
from tests.support.programs import run_script

WITHOUT_PROC = ("unshare", "--mount", "sh", "-c", 'umount --lazy /proc && exec "$@"', "sh")
PROGRAM = """
    import os, signal, sys, mpload
    from mpload.memory.contention import read_pressure

    class Numbers:
        def __len__(self):
            return 100
        def __getitem__(self, index):
            return index

    index, cache = sys.argv[1:]
    images = mpload.MPDataset(
        index, decode=mpload.RandomResizedCrop(8), batch_size=2, cache=mpload.PartialCache(cache, fraction=0.5)
    )
    for dataset, options in ((Numbers(), {"batch_size": 5}), (images, {"memory_budget": "auto"})):
        with mpload.MPLoader(dataset, num_workers="auto", **options) as loader:
            assert sum(map(len, loader)) > 0
            os.kill(loader.pids["mpload-worker-0"], signal.SIGKILL)
            print(sum(len(batch[0] if isinstance(batch, tuple) else batch) for batch in loader))
    read_pressure(own_seconds=0.0)  # for the advice of a loader that is slow
"""


def can_unmount() -> bool:
    if sys.platform != "linux":
        return False
    return subprocess.run([*WITHOUT_PROC, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.processes
def test_loaders_work_and_warn_once(photo_tree: Path, tmp_path: Path) -> None:
    if not can_unmount():
        pytest.skip("this user may not unmount /proc")
    index = build_index(photo_tree, tmp_path / "i.txt")
    ran = run_script(PROGRAM, str(index), str(tmp_path / "cache"), prefix=WITHOUT_PROC)
    assert (ran.returncode, ran.stdout) == (0, "100\n24\n"), ran.stderr
    assert ran.stderr.count("MploadWarning") == ran.stderr.count("/proc is not mounted") == 1


def test_the_memory_of_the_machine_is_known_and_half_of_it_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc")

    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(machine, "_read", lambda path: "")
    for name in ("virtual_memory", "disk_partitions", "Process"):
        monkeypatch.setattr(f"psutil.{name}", refuse)
    room = MemoryGauge().read()
    assert (room.limit_bytes, room.free_bytes) == (total_bytes, total_bytes // 2)
    assert MemoryGauge().usage().anonymous_bytes == 0
    found = read_environment("/")
    assert (found.file_system, found.used_descriptors) == ("", 0)
