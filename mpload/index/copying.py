"""Copies an index to a local disk, once per machine and version: from a URL, or from a slow file system.

A URL is copied by a child process, `python -m mpload.index.copying`: the client of buckets starts threads, which the
workers of a stock DataLoader, as forks of the training process, would lack. Processes that want the same index at the
same time wait for the one that copies it.

Copies are in the user's cache folder, or in a folder that the user names. Each version has a folder of its own,
`URL/VERSION` (both hashed), that is renamed into place when it is complete. So a job that reads an older version is not
disturbed. The folder holds the text, the sidecar and the row index if the server has them, and `copy.json`: the size,
modification time and digest of the text. A copied sidecar is used only if its digest is that of the text.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import platformdirs

from mpload import errors
from mpload.errors import (
    ArgumentError,
    IndexChangedError,
    IndexNotFoundError,
    MploadError,
    OutageError,
    StorageError,
)
from mpload.index.derived import machine_lock
from mpload.index.open_file import open_text
from mpload.index.sidecar import TextStamp, find_sidecar, stamp_in
from mpload.index.text import read_header
from mpload.index.trusted import is_trusted
from mpload.storage.object_facts import ObjectFacts
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects, RemoteStorage, check_url
from mpload.storage.remote_file import read_parts
from mpload.units import MIB

__all__ = ["copies_of_urls", "copy_of_file", "copy_of_url", "main"]

_CHECK_SECONDS, _CHECK_RETRY_SECONDS = 5.0, 10.0
"""Time limits for asking a server whether a copy is still current."""
_SMALL_BYTES = 4 * MIB
"""The digest of a copy of up to this size is compared each time it is opened, which takes a few milliseconds."""
_WHOLE_BYTES = 8 * MIB
_UNUSED_SECONDS = 30 * 24 * 3600.0
"""A version that was not opened for so long is deleted when a newer one is copied."""
_LOCK_SECONDS = 3600.0
_FACTS = "copy.json"
_NUM_THREADS = 8


def copy_of_file(source: str, folder: Path) -> Path:
    """Return the path of a current copy of the index at an absolute path; `folder` holds all copies.

    Memory: constant.
    Process: if several processes of a machine call this at once, one makes the copy and the others wait.

    Raises:
        IndexNotFoundError: there is no index at the path.
        IndexChangedError: the index was replaced while it was being copied.
        StorageError: the index cannot be read, or the copy cannot be written.
    """
    return _ensure_copy(_Files(source), folder)[0]


def copy_of_url(url: str, limits: RemoteStorage | None = None, folder: Path | None = None) -> tuple[Path, str]:
    """Return the path of a current copy of the index at `url`, and a warning or ""; see `copies_of_urls`."""
    return copies_of_urls([url], limits, folder)[0]


def copies_of_urls(
    urls: Sequence[str], limits: RemoteStorage | None = None, folder: Path | None = None
) -> list[tuple[Path, str]]:
    """Return the paths of current copies of the indexes at URLs, each with a warning or "".

    If the server does not answer, the latest copy is returned, with a warning.

    Args:
        urls: the URLs.
        limits: time limits; None means the default ones.
        folder: holds all copies; None means a folder in the user's cache folder.

    Memory: constant.
    Process: if several processes of a machine call this at once, one makes the copy and the others wait.

    Raises:
        ArgumentError: a URL cannot be read, or contains a secret.
        IndexNotFoundError: there is no object at a URL.
        IndexChangedError: an object was replaced while it was being copied.
        OutageError: the server does not answer, and there is no copy.
        StorageError: an object cannot be read, or its copy cannot be written.
    """
    for url in urls:
        check_url(url)
    limits = limits or RemoteStorage()
    folder = folder or platformdirs.user_cache_path("mpload") / "indexes"
    package_folder = str(Path(__file__).resolve().parents[2])
    paths = [package_folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "mpload.index.copying", str(folder)]
            + [repr(seconds) for seconds in (limits.request_timeout_seconds, limits.retry_seconds)]
            + [*urls[:1]],  # shows in the list of processes
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,  # its end tells the child that this process has died
            stdout=subprocess.PIPE,
            stderr=log,
        ) as child,
    ):
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended early
                child.stdin.write(json.dumps(list(urls)).encode() + b"\n")
                child.stdin.flush()
            answer = child.stdout.read()
        finally:
            child.kill()
        try:
            found = json.loads(answer)
        except ValueError:
            log.seek(0)
            message = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise StorageError(
                f"{urls[0]}: the process that copies the index ended early{message and f' ({message})'}"
            ) from None
    if "error" in found:
        raise getattr(errors, found["error"])(found["message"])
    return [(Path(os.fsdecode(bytes.fromhex(path))), warning) for path, warning in found["copies"]]


def main(arguments: Sequence[str]) -> None:
    """Make the copies, and write their paths or the first error to standard output."""
    folder, request_seconds, retry_seconds = arguments[:3]
    limits = RemoteStorage(request_timeout_seconds=float(request_seconds), retry_seconds=float(retry_seconds))
    urls = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with ThreadPoolExecutor(min(_NUM_THREADS, len(urls))) as pool:
            copies = list(pool.map(lambda url: _ensure_copy(_Objects(url, limits), Path(folder)), urls))
        answer: dict[str, Any] = {"copies": [(os.fsencode(path).hex(), warning) for path, warning in copies]}
    except MploadError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


class _Source(Protocol):
    """Where an index is copied from."""

    address: str
    """Its URL or absolute path."""

    def facts(self, name: str, *, has_copy: bool = False) -> ObjectFacts: ...
    def fetch(self, name: str, facts: ObjectFacts, path: Path) -> None: ...


class _Objects:
    """An index at a URL, and what is beside it."""

    def __init__(self, url: str, limits: RemoteStorage) -> None:
        self.address = url
        self._limits = limits
        self._above, _, name = url.rpartition("/")
        if not name:
            raise ArgumentError(f"{url}: is a folder. Give the URL of an index, such as {url}train.txt")
        self._objects = RemoteObjects(self._above, limits=limits)

    def facts(self, name: str, *, has_copy: bool = False) -> ObjectFacts:
        """Return the facts about an object; if there is a copy, do not wait long."""
        objects = RemoteObjects(self._above, limits=_shorter(self._limits)) if has_copy else self._objects
        try:
            return objects.look_up(name)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise IndexNotFoundError(
                    f"There is no index at {self._above}/{name}. Make one, and upload it: mpload index FOLDER -o {name}"
                ) from None
            raise

    def fetch(self, name: str, facts: ObjectFacts, path: Path) -> None:
        """Copy an object to a path."""
        num_bytes = facts.num_bytes
        with path.open("wb") as file:
            if num_bytes is None or num_bytes <= _WHOLE_BYTES:
                file.write(self._objects.read([ByteRange(name)])[0])
            else:
                read_parts(
                    self._objects, name, 0, num_bytes, lambda offset, data: os.pwrite(file.fileno(), data, offset)
                )


class _Files:
    """An index in a folder, and what is beside it."""

    def __init__(self, path: str) -> None:
        self.address = path

    def facts(self, name: str, *, has_copy: bool = False) -> ObjectFacts:  # noqa: ARG002  for URLs
        """Return the facts about a file."""
        text, path = Path(self.address), Path(self.address).with_name(name)
        if path != text and not is_trusted(path, text):
            raise StorageError(f"{path}: is missing, or is not trusted in a folder that every user may write to")
        with open_text(path) as file:
            stamp = TextStamp.of(file.fileno())
        return ObjectFacts(num_bytes=stamp.num_bytes, version=str(stamp.mtime_ns))

    def fetch(self, name: str, facts: ObjectFacts, path: Path) -> None:
        """Copy a file to a path, and compare what was written with what was read."""
        digest = hashlib.blake2b(digest_size=32)
        with open_text(Path(self.address).with_name(name)) as file, path.open("wb") as copy:
            while piece := file.read(_WHOLE_BYTES):
                digest.update(piece)
                copy.write(piece)
        if path.stat().st_size != facts.num_bytes:
            raise _changed(self)
        if _digest_of(path) != digest.hexdigest():
            raise StorageError(f"{path}: the copy differs from what was read of {self.address}. Is the disk damaged?")


def _ensure_copy(source: _Source, folder: Path) -> tuple[Path, str]:
    name = source.address.rpartition("/")[2]
    place = folder / _hashed(source.address)
    latest = _latest(place, name)
    try:
        facts = source.facts(name, has_copy=latest is not None)
    except OutageError as error:
        if latest is None:
            raise
        copied = datetime.fromtimestamp(_facts_in(latest)["copied_at"], UTC)
        return latest / name, f"{error}. The copy of {copied:%Y-%m-%d %H:%M} UTC is used, which may be out of date"
    version = place / _hashed(f"{facts.version} {facts.num_bytes}") if facts.version else None
    if version is None or not _is_intact(version, name):
        try:
            version = _copied(source, facts, place, version)
        except OSError as error:
            if isinstance(error, MploadError):
                raise
            raise StorageError(
                f"{source.address}: cannot be copied to {place}: {error.strerror or error}. Free some space there, or "
                "have it copied to another disk: set XDG_CACHE_HOME, or pass local_copy to open_index"
            ) from error
    with contextlib.suppress(OSError):  # a folder that another user has filled
        os.utime(version / _FACTS)
    return version / name, ""


def _shorter(limits: RemoteStorage) -> RemoteStorage:
    """Return limits for a request that there is an alternative to."""
    request_seconds = min(_CHECK_SECONDS, limits.request_timeout_seconds)
    retry_seconds = max(min(_CHECK_RETRY_SECONDS, limits.retry_seconds), 1.5 * request_seconds)
    return RemoteStorage(request_timeout_seconds=request_seconds, retry_seconds=retry_seconds)


def _changed(source: _Source) -> IndexChangedError:
    return IndexChangedError(f"{source.address}: changed while it was being copied. Open it again")


def _copied(source: _Source, facts: ObjectFacts, place: Path, folder: Path | None) -> Path:
    """Copy the index, and return the folder of the copy: `folder`, or one named by the digest if that is None."""
    name = source.address.rpartition("/")[2]
    place.mkdir(parents=True, exist_ok=True)
    busy = StorageError(
        f"{source.address}: another process has been copying it for {_LOCK_SECONDS:.0f} s. Try again later"
    )
    with machine_lock("copy", folder=place, limit_seconds=_LOCK_SECONDS, busy=busy) as is_alone:
        if folder is not None and _is_intact(folder, name):  # another process was faster
            return folder
        if is_alone:
            for left in place.glob(f"{platform.node()}.*.tmp"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
        with _new_folder(place) as new:
            digest = _download(source, name, facts, new)
            if source.facts(name) != facts:
                raise _changed(source)
            folder = folder or place / _hashed(digest)
            if not _is_intact(folder, name):
                if folder.exists():  # damaged
                    folder.rename(new / "damaged")
                    shutil.rmtree(new / "damaged")
                with contextlib.suppress(FileExistsError):  # where files cannot be locked, another process was faster
                    new.rename(folder)
        for other in _versions(place):
            if other != folder and time.time() - (other / _FACTS).stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _new_folder(place: Path) -> Iterator[Path]:
    """Make a folder, and delete it at the end unless it was renamed."""
    new = place / f"{platform.node()}.{secrets.token_hex(8)}.tmp"
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _download(source: _Source, name: str, facts: ObjectFacts, folder: Path) -> str:
    """Copy the text, and the sidecar and the row index if there are any, into a folder; return the text's digest."""
    text = folder / name
    source.fetch(name, facts, text)
    for suffix in (".mpx", ".mpr"):
        derived = folder / f"{name}{suffix}"
        try:
            source.fetch(derived.name, source.facts(derived.name), derived)
        except OutageError:
            raise
        except MploadError:  # there is none: some servers then answer that access is denied
            derived.unlink(missing_ok=True)
    digest = _digest_of(text)
    _keep_if_fitting(text, Path(f"{text}.mpx"))
    stamp = TextStamp.of(text)
    found = {"num_bytes": stamp.num_bytes, "mtime_ns": stamp.mtime_ns, "digest": digest, "copied_at": time.time()}
    with (folder / _FACTS).open("w", encoding="ascii") as file:
        json.dump(found, file)
    for path in folder.iterdir():  # onto the disk, before the folder gets its name
        with path.open("rb") as file_to_keep:
            os.fsync(file_to_keep)
    return digest


def _keep_if_fitting(text: Path, sidecar: Path) -> None:
    """Let the text have the modification time for which its sidecar was made, or delete a sidecar that does not fit.

    The sidecar is then built from the copy.
    """
    if not sidecar.exists():
        return
    with contextlib.suppress(MploadError):
        mtime_ns = stamp_in(sidecar).mtime_ns
        os.utime(text, ns=(mtime_ns, mtime_ns))
        header = read_header(text)
        layout = find_sidecar(text, header)
        if layout is not None and layout.path == sidecar and layout.digest == _digest_of(text, start=header.body_bytes):
            return
    sidecar.unlink()


def _latest(place: Path, name: str) -> Path | None:
    """Return the version that was copied last, if any is intact."""
    intact = [folder for folder in _versions(place) if _is_intact(folder, name)]
    return max(intact, key=lambda folder: float(_facts_in(folder)["copied_at"]), default=None)


def _versions(place: Path) -> list[Path]:
    return [path.parent for path in place.glob(f"*/{_FACTS}") if path.parent.suffix != ".tmp"]


def _facts_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / _FACTS).read_text(encoding="ascii"))
    return found


def _is_intact(folder: Path, name: str) -> bool:
    text = folder / name
    try:
        facts, stamp = _facts_in(folder), TextStamp.of(text)
        is_same = (stamp.num_bytes, stamp.mtime_ns) == (facts["num_bytes"], facts["mtime_ns"])
        return is_same and (stamp.num_bytes > _SMALL_BYTES or _digest_of(text) == facts["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _digest_of(path: Path, *, start: int = 0) -> str:
    """Return the BLAKE2b hash of a file from byte `start` on, as `mpload.index.scan` computes that of the lines."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
