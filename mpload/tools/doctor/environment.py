"""Where the job runs: cores, memory, descriptors, file system."""

import multiprocessing
import os
from pathlib import Path

import psutil

from mpload.images.jpeg import jpeg_backend
from mpload.memory.machine import MemoryGauge, num_usable_cores
from mpload.tools.doctor.facts import Environment

__all__ = ["file_system_of", "look_around"]

_ANY_NUMBER = 1 << 30


def look_around(root: str) -> Environment:
    """Return what there is for data below `root`."""
    room = MemoryGauge().read()
    max_descriptors, used_descriptors = _descriptors()
    shm = Path("/dev/shm")  # noqa: S108  a mount point, nothing is written
    return Environment(
        usable_cores=num_usable_cores(),
        host_cores=os.cpu_count() or 1,
        memory_limit_bytes=room.limit_bytes,
        memory_free_bytes=room.free_bytes,
        max_descriptors=max_descriptors,
        used_descriptors=used_descriptors,
        shm_bytes=psutil.disk_usage(str(shm)).total if shm.exists() else None,
        start_method=multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        file_system=file_system_of(root),
        decode_backend=jpeg_backend(),
    )


def file_system_of(path: str) -> str:
    """Return type and source of the file system that holds `path`, such as `ext4 (/dev/sda1)`; empty if unknown."""
    real = os.path.realpath(path)
    best, told = "", ""
    for partition in psutil.disk_partitions(all=True):
        mount = partition.mountpoint.rstrip("/") + "/"
        if (real + "/").startswith(mount) and len(mount) >= len(best):
            best, told = mount, f"{partition.fstype} ({partition.device})"
    return told


def _descriptors() -> tuple[int, int]:
    """Return how many files this process may have open, and how many it has."""
    try:
        import resource  # noqa: PLC0415  Windows has none
    except ImportError:
        return _ANY_NUMBER, 0
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (_ANY_NUMBER if soft == resource.RLIM_INFINITY else soft), psutil.Process().num_fds()
