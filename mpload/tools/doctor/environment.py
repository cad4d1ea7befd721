"""Reads the environment of the job: cores, memory, descriptors, file system."""

import os
import resource
from contextlib import suppress

import psutil

from mpload.images.backends import jpeg_backend
from mpload.judgement.facts import Environment
from mpload.memory.machine import MemoryGauge, usable_cores
from mpload.storage.urls import is_url

__all__ = ["file_system_of", "read_environment"]

_UNLIMITED = 1 << 30


def read_environment(root: str) -> Environment:
    """Return the resources of this machine, and the file system of `root`."""
    memory = MemoryGauge().read()
    max_descriptors, used_descriptors = _descriptors()
    return Environment(
        usable_cores=usable_cores(),
        host_cores=os.cpu_count() or 1,
        memory_limit_bytes=memory.limit_bytes,
        memory_free_bytes=memory.free_bytes,
        max_descriptors=max_descriptors,
        used_descriptors=used_descriptors,
        file_system=file_system_of(root),
        decode_backend=jpeg_backend(),
    )


def file_system_of(path: str) -> str:
    """Return the type and source of the file system of `path`, such as `ext4 (/dev/sda1)`. Empty for a URL."""
    if is_url(path):
        return ""
    real = os.path.realpath(path) + "/"
    longest, name = "", ""
    with suppress(OSError):  # no /proc, as in a chroot
        for partition in psutil.disk_partitions(all=True):
            mount = partition.mountpoint.rstrip("/") + "/"
            if real.startswith(mount) and len(mount) >= len(longest):
                longest, name = mount, f"{partition.fstype} ({partition.device})"
    return name


def _descriptors() -> tuple[int, int]:
    """Return the limit of open files of this process, and the number of files it has open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    num_used = 0
    with suppress(psutil.Error, OSError):  # no /proc, as in a chroot
        num_used = psutil.Process().num_fds()
    return (_UNLIMITED if soft == resource.RLIM_INFINITY else soft), num_used
