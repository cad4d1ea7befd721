"""A file system with a given read latency: every process sees real files, served through the kernel's FUSE.

Implements the part of the protocol that reading a flat folder needs: `linux/fuse.h`, version 7.31. Mounting needs root.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SlowDisk", "can_mount", "mounted"]

_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS = 25, 26, 27, 28, 29, 34
_INTERRUPT, _DESTROY, _BATCH_FORGET = 36, 38, 42
_SILENT = {_FORGET, _INTERRUPT, _BATCH_FORGET}
_ASYNC_READ, _PARALLEL_DIROPS = 1, 1 << 18
_DIRECT_IO, _KEEP_CACHE = 1, 2
_ROOT = 1
_VALID_SECONDS = 3600
_MAX_THREADS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDisk:
    """A folder of files `0`, `1`, ... and its latency.

    Attributes:
        contents: A folder with `k` files; file `n` of the disk has the bytes of the `n % k`-th of them, by name.
        num_files: Number of files on the disk.
        read_seconds: Duration of each read of up to 128 KiB.
        reads_at_once: Number of reads served in parallel; 1 is like a disk with a single arm.
        is_cached: Whether the page cache keeps data that was read.
        open_seconds: Duration of opening a file, as of a server that is asked. As many files are opened in parallel.
    """

    contents: Path
    num_files: int
    read_seconds: float
    reads_at_once: int = 1
    is_cached: bool = False
    open_seconds: float = 0.0


def can_mount() -> bool:
    """Return whether this process may mount file systems."""
    return os.name == "posix" and os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


@contextmanager
def mounted(disk: SlowDisk, point: Path) -> Iterator[Path]:
    """Mount a slow disk, served by a separate process, and unmount it afterwards."""
    point.mkdir(parents=True, exist_ok=True)
    times = [disk.read_seconds, disk.open_seconds]
    arguments = [disk.contents, disk.num_files, *times, disk.reads_at_once, int(disk.is_cached), point]
    command = [sys.executable, "-m", "tests.support.slow_disk", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n", "it could not be mounted"
            yield point
        finally:
            _umount(point)
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=20)


def _mount(descriptor: int, point: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"slowdisk", os.fsencode(point), b"fuse.slowdisk", 1, options):  # 1: read-only
        raise OSError(ctypes.get_errno(), "mount")


def _umount(point: Path) -> None:
    ctypes.CDLL(None).umount2(os.fsencode(point), 2)  # 2: at once, even if it is in use


class _Server:
    def __init__(self, disk: SlowDisk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._contents = [path.read_bytes() for path in sorted(disk.contents.iterdir())]
        self._arms = threading.Semaphore(disk.reads_at_once)

    def serve(self) -> None:
        """Answer requests until the file system is unmounted."""
        with ThreadPoolExecutor(_MAX_THREADS) as pool:
            while True:
                try:
                    request = os.read(self._descriptor, 1 << 20)
                except OSError as error:
                    if error.errno in {errno.ENODEV, errno.EBADF}:
                        return
                    if error.errno in {errno.EINTR, errno.ENOENT, errno.EAGAIN}:
                        continue
                    raise
                _, opcode, unique, node, *_ = _IN_HEADER.unpack_from(request)
                body = request[_IN_HEADER.size :]
                if opcode == _READ:
                    pool.submit(self._read, unique, node, body)
                elif opcode == _OPEN and self._disk.open_seconds:
                    pool.submit(self._open, unique, node, body)
                elif opcode not in _SILENT:
                    self._answer(unique, *self._reply(opcode, node, body))
                if opcode == _DESTROY:
                    return

    def _answer(self, unique: int, error: int, data: bytes = b"") -> None:
        try:
            os.write(self._descriptor, _OUT_HEADER.pack(_OUT_HEADER.size + len(data), -error, unique) + data)
        except OSError as failed:  # the requesting process was killed, or the file system is gone
            if failed.errno not in {errno.ENOENT, errno.ENODEV, errno.EINVAL}:
                raise

    def _open(self, unique: int, node: int, body: bytes) -> None:
        with self._arms:
            time.sleep(self._disk.open_seconds)
        self._answer(unique, *self._reply(_OPEN, node, body))

    def _read(self, unique: int, node: int, body: bytes) -> None:
        _, offset, size = struct.unpack_from("<QQI", body)
        with self._arms:
            time.sleep(self._disk.read_seconds)
        self._answer(unique, 0, self._bytes_of(node)[offset : offset + size])

    def _bytes_of(self, node: int) -> bytes:
        return self._contents[(node - _ROOT - 1) % len(self._contents)]

    def _reply(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes] | tuple[int]:
        match opcode:
            case 26:  # INIT
                return 0, struct.pack(
                    "<IIIIHHIIHHI28x", 7, 31, 1 << 17, _ASYNC_READ | _PARALLEL_DIROPS, 64, 48, 1 << 17, 1, 0, 0, 0
                )
            case 1:  # LOOKUP
                name = body.rstrip(b"\0").decode()
                if not name.isdigit() or int(name) >= self._disk.num_files:
                    return (errno.ENOENT,)
                found = int(name) + _ROOT + 1
                return 0, struct.pack("<QQQQII", found, 0, _VALID_SECONDS, _VALID_SECONDS, 0, 0) + self._attributes(
                    found
                )
            case 3:  # GETATTR
                return 0, struct.pack("<QII", _VALID_SECONDS, 0, 0) + self._attributes(node)
            case 14 | 27:  # OPEN, OPENDIR
                flags = _KEEP_CACHE if self._disk.is_cached else _DIRECT_IO
                return 0, struct.pack("<QII", 0, flags if opcode == _OPEN else 0, 0)
            case 28 | 18 | 25 | 29 | 34 | 38:  # READDIR, RELEASE, FLUSH, RELEASEDIR, ACCESS, DESTROY
                return (0,)
            case 17:  # STATFS
                return 0, struct.pack("<QQQQQIIII24x", 0, 0, 0, self._disk.num_files, 0, 4096, 255, 4096, 0)
        return (errno.ENOSYS,)

    def _attributes(self, node: int) -> bytes:
        is_root = node == _ROOT
        size = 0 if is_root else len(self._bytes_of(node))
        mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o644
        times = (1, 1, 1, 0, 0, 0)
        return struct.pack("<6Q10I", node, size, -(-size // 512), *times[:3], *times[3:], mode, 1, 0, 0, 0, 4096, 0)


def main() -> None:
    """Mount and serve the disk that the command line describes."""
    contents, num_files, read_seconds, open_seconds, reads_at_once, is_cached, point = sys.argv[1:]
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    _mount(descriptor, Path(point))
    disk = SlowDisk(
        contents=Path(contents),
        num_files=int(num_files),
        read_seconds=float(read_seconds),
        open_seconds=float(open_seconds),
        reads_at_once=int(reads_at_once),
        is_cached=is_cached == "1",
    )
    threading.Thread(target=lambda: (sys.stdout.write("ready\n"), sys.stdout.flush())).start()
    _Server(disk, descriptor).serve()


if __name__ == "__main__":
    main()
