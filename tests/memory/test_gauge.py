"""The memory of a container or of the machine, split by kind."""

import os
from pathlib import Path

import psutil
import pytest

from mpload.memory.machine import MemoryGauge
from mpload.units import MIB


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (
            ("anon", "file", "shmem"),
            {"members": "0::/job", "job/memory.max": f"{900 * MIB}", "job/memory.stat": ""},
        ),
        (
            ("total_rss", "total_cache", "total_shmem"),
            {
                "members": "4:memory:/job",
                "memory/job/memory.limit_in_bytes": f"{900 * MIB}",
                "memory/job/memory.stat": "",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_memory_of_a_container_is_split_by_kind(
    tmp_path: Path, words: tuple[str, ...], files: dict[str, str]
) -> None:
    statistics = "".join(f"{word} {size * MIB}\n" for word, size in zip(words, (100, 300, 50), strict=True))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text or f"cache 1\nrss 1\n{statistics}")
    usage = MemoryGauge(cgroup_folder=tmp_path, cgroup_members=tmp_path / "members").usage()
    assert usage.limit_bytes == 900 * MIB
    sizes = usage.anonymous_bytes, usage.shmem_bytes, usage.file_bytes  # the kernel counts shared memory as page cache
    assert sizes == (100 * MIB, 50 * MIB, 250 * MIB)


def test_without_a_container_usage_is_that_of_the_machine(tmp_path: Path) -> None:
    gauge = MemoryGauge(cgroup_folder=tmp_path, cgroup_members=tmp_path / "none")
    usage = gauge.usage()
    assert usage.limit_bytes == pytest.approx(psutil.virtual_memory().total, rel=0.01)
    assert usage.file_bytes == usage.page_cache_bytes > 0
    assert 0 < usage.anonymous_bytes + usage.shmem_bytes + usage.file_bytes < usage.limit_bytes


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="has no /dev/shm")
def test_files_in_dev_shm_are_counted() -> None:
    before = MemoryGauge().usage().dev_shm_bytes
    path = Path(f"/dev/shm/mpload-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(32 * MIB))
        assert MemoryGauge().usage().dev_shm_bytes > before + 16 * MIB  # other processes may delete files meanwhile
    finally:
        path.unlink()
