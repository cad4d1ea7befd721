"""A disk with limits on its reads and bytes per second, for processes with a limit on their memory. Needs root.

The disk is ext4 on a loop device, with the read-ahead that Linux gives to ordinary disks. The block layer of the kernel
slows down the processes of a control group.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.containers import memory_container

__all__ = ["CannotLimitError", "DiskLimits", "LimitedDisk", "limited_disk"]

_SECTOR_BYTES = 512
_READ_AHEAD_KIB = 128  # a loop device may have 2560, which the kernel then also reads after many a random read


class CannotLimitError(Exception):
    """This machine does not let this process make devices or control groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """The limits of the processes that use a disk; None means that there is none."""

    reads_per_second: int | None = None
    bytes_per_second: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedDisk:
    """A mounted disk."""

    folder: Path
    device: Path
    groups: tuple[Path, ...]
    """The control groups that have the limits."""

    @property
    def read_bytes(self) -> int:
        """Number of bytes read from the disk so far."""
        return int(Path("/sys/block", self.device.name, "stat").read_text().split()[2]) * _SECTOR_BYTES

    def empty_page_cache(self) -> None:
        """Drop the data of all files from the page cache; names and inodes are cached again."""
        _run("umount", self.folder)
        _run("mount", "-o", "noatime", self.device, self.folder)
        _run("ls", "-lR", self.folder)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command, so that it runs within the limits."""
        joins = "".join(f"echo 0 > {group / 'cgroup.procs'} && " for group in self.groups)
        return "sh", "-c", joins + 'exec "$@"', "sh"


@contextmanager
def limited_disk(folder: Path, num_bytes: int, limits: DiskLimits) -> Iterator[LimitedDisk]:
    """Mount a new disk at `folder/disk`, and remove it afterwards.

    Raises:
        CannotLimitError: This machine does not allow it.
    """
    if os.geteuid():
        raise CannotLimitError("only root can create a disk with limits")
    with memory_container(limits.memory_bytes or num_bytes) as container:
        if container is None:
            raise CannotLimitError("no control group with a memory limit can be created here")
        image, point = folder / "disk.img", folder / "disk"
        point.mkdir(exist_ok=True)
        with image.open("wb") as file:
            file.truncate(num_bytes)
        try:
            _run("mkfs.ext4", "-q", "-O", "^has_journal", image)
            device = Path(_run("losetup", "--find", "--show", image))
        except (OSError, subprocess.CalledProcessError) as error:
            raise CannotLimitError(f"no loop device with ext4 can be created here: {error}") from error
        throttle = Path("/sys/fs/cgroup/blkio", container.folder.name) if container.version == 1 else container.folder
        try:
            Path("/sys/block", device.name, "queue/read_ahead_kb").write_text(str(_READ_AHEAD_KIB))
            _run("mount", "-o", "noatime", device, point)
            throttle.mkdir(exist_ok=True)
            _throttle(throttle, device, limits)
            memory = (container.folder,) if limits.memory_bytes is not None else ()
            yield LimitedDisk(folder=point, device=device, groups=tuple({*memory, throttle}))
        finally:
            subprocess.run(["umount", "--lazy", point], check=False)
            _run("losetup", "-d", device)
            with suppress(OSError):
                if throttle != container.folder:
                    throttle.rmdir()
            image.unlink()


def _throttle(group: Path, device: Path, limits: DiskLimits) -> None:
    number = device.stat().st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    rates = {"riops": limits.reads_per_second, "rbps": limits.bytes_per_second}
    files = {"riops": "blkio.throttle.read_iops_device", "rbps": "blkio.throttle.read_bps_device"}
    for kind, rate in rates.items():
        if rate is None:
            continue
        try:
            if (group / files[kind]).exists():
                (group / files[kind]).write_text(f"{name} {rate}")
            else:
                (group / "io.max").write_text(f"{name} {kind}={rate}")
        except OSError as error:
            raise CannotLimitError(f"{group}: the rate of a device cannot be limited here: {error}") from error


def _run(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
