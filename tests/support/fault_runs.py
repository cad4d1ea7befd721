"""Epochs over a web server with a fault, and checks of what they lead to."""

import re
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from mpload import MPDataset, MPLoader, MploadWarning, RemoteStorage, ResizeCenterCrop, Topology
from mpload.errors import SampleError, StorageError
from tests.support.fault_table import BAD, LIMITS, NO_HOST, Fault, Outcome, ServerKind
from tests.support.photos import photo
from tests.support.web_faults import WebServer, web_server

__all__ = [
    "NUM_FILES",
    "Found",
    "OnError",
    "certificate_in",
    "make_files",
    "read_all",
    "run",
    "run_in_time",
    "until_in_time",
    "write_index",
]

NUM_FILES = 16
_IN_FLIGHT_SHARE = 1 / 4
_START_SECONDS = 5.0  # for starting workers, where no request tells when they have begun

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an epoch led to."""

    labels: tuple[int, ...]
    message: str | None
    """Of the error that ended it."""
    seconds: float
    """From the first request that met the fault, or else from the beginning, to the end of the epoch."""


def make_files(folder: Path, *, num_files: int = NUM_FILES, side: int = 256) -> None:
    """Write photographs of `side` x `side` pixels, and a shard that holds all of them."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    shard = b""
    for number in range(num_files):
        file = BytesIO()
        Image.fromarray(photo(side, side, rng)).save(file, "JPEG")
        (folder / f"{number:02d}.jpg").write_bytes(file.getvalue())
        shard += file.getvalue()
    (folder / "shard.bin").write_bytes(shard)


def write_index(path: Path, url: str, files: Path, *, has_spans: bool = False) -> None:
    """Write the index of a folder that is served at a URL."""
    lines, offset = "", 0
    for number in range(len(list(files.glob("*.jpg")))):
        name, size = f"{number:02d}.jpg", (files / f"{number:02d}.jpg").stat().st_size
        lines += f"{f'{offset}+{size}@shard.bin' if has_spans else name}\t{number}\n"
        offset += size
    path.write_text(f"#mpload 1\n#root {url}\n#columns image:{'span' if has_spans else 'path'} label:int\n{lines}")


def read_all(
    index: Path, *, on_error: OnError, num_workers: int, scale: float = 1.0
) -> tuple[tuple[int, ...], str | None]:
    """Read an epoch, with limits times `scale`. Return the labels, and the message of the error that ended it."""
    dataset = MPDataset(
        index,
        decode=ResizeCenterCrop(16),
        batch_size=4,
        on_error=on_error,
        storage=RemoteStorage(**{name: scale * seconds for name, seconds in LIMITS.items()}),
        topology=Topology(),
    )
    labels: list[int] = []
    with MPLoader(dataset, num_workers=num_workers) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)  # a bad sample is skipped
        try:
            for _, numbers in loader:
                labels += numbers.tolist()
        except SampleError as error:
            return tuple(labels), str(error)
    return tuple(labels), None


def run_in_time(
    fault: Fault, files: Path, folder: Path, *, on_error: OnError, num_workers: int, scale: float = 1.0
) -> Found:
    """Check as `run` does, and once more if that fails: a busy machine may use up the time that a limit leaves."""
    try:
        return run(fault, files, folder, on_error=on_error, num_workers=num_workers, scale=scale)
    except AssertionError:
        again = folder / "again"
        again.mkdir(exist_ok=True)
        return run(fault, files, again, on_error=on_error, num_workers=num_workers, scale=scale)


def run(fault: Fault, files: Path, folder: Path, *, on_error: OnError, num_workers: int, scale: float = 1.0) -> Found:
    """Read an epoch from a server with a fault, and check that it led to what it must. Run it in `folder`.

    The time limits are `scale` times the `LIMITS`.
    """
    start = time.monotonic()
    with _served(fault, files, folder) as (url, server):
        write_index(folder / "index.txt", url, files, has_spans=fault.has_spans)
        labels, message = read_all(folder / "index.txt", on_error=on_error, num_workers=num_workers, scale=scale)
        end = time.monotonic()
        limit_seconds = 1.2 * scale * LIMITS["retry_seconds"]
        if server is None or fault.server is ServerKind.UNTRUSTED:
            limit_seconds += _START_SECONDS
        else:
            server.stop()
            faulty = [request.at_seconds for request in server.requests if request.is_faulty]
            start = faulty[0] if faulty else server.requests[0].at_seconds
            if num_workers == 0:
                _check_waits(fault, server)
    found = Found(labels=labels, message=message, seconds=end - start)
    assert found.seconds < limit_seconds
    _check(fault, found, on_error, url)
    return found


@contextmanager
def _served(fault: Fault, files: Path, folder: Path) -> Iterator[tuple[str, WebServer | None]]:
    """Start the server of a fault; yield its URL and the server, if there is one."""
    if fault.server is ServerKind.NONE:
        yield NO_HOST, None
        return
    certificate = certificate_in(folder) if fault.server is ServerKind.UNTRUSTED else None
    with web_server(files, fault.fault, seconds=fault.seconds, bad=fault.bad, certificate=certificate) as server:
        yield server.url, server


def _check(fault: Fault, found: Found, on_error: OnError, url: str) -> None:
    everything = tuple(range(NUM_FILES))
    if fault.outcome is Outcome.ALL_READ:
        assert (found.message, found.labels) == (None, everything)
    elif fault.outcome is Outcome.BAD_OBJECT and on_error == "skip":
        assert (found.message, found.labels) == (None, tuple(n for n in everything if n != int(BAD[:2])))
    else:
        message = found.message
        assert message is not None
        assert re.match(r"\S+\.txt:\d+: sample \d+ \(\d\d\.jpg\): ", message)
        assert re.search(fault.message, message), message
        assert f"{url}/" in message or fault.is_of_decoder
        assert BAD in message or fault.outcome is Outcome.OUTAGE


def _check_waits(fault: Fault, server: WebServer) -> None:
    """Check that a server that asks to wait is left alone, also by requests for other objects.

    Requests that had begun before the answer came cannot be taken back.
    """
    if match := re.search(r"after (\d+)", fault.fault):
        first = next(request.at_seconds for request in server.requests if request.is_faulty)
        times = [request.at_seconds for request in server.requests]
        wait_seconds = int(match[1])
        assert all(at - first < _IN_FLIGHT_SHARE * wait_seconds or at - first > wait_seconds for at in times)


def certificate_in(folder: Path) -> Path:
    """Make a certificate of the address 127.0.0.1, with its key, that only those trust who are told to."""
    path, key = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*command, "-keyout", key, "-out", path], capture_output=True, check=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


def until_in_time(error_of: Callable[[], StorageError]) -> StorageError:
    """Return the error of a read, which is repeated while a busy machine exceeds the short limit for connections."""
    for _ in range(20):
        error = error_of()
        if "no connection in time" not in str(error):
            break
    return error
