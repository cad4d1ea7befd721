"""Copies an index to a local disk, once per machine and version: from a URL, or from a slow file system.

A URL is copied by a child process, `python -m mpload.index.copying`: the client of buckets starts threads, which the
workers of a stock DataLoader, as forks of the training process, would lack. Processes that want the same index at the
same time wait for the one that copies it.

Copies are in the user's cache folder, or in a folder that the user names. Each version has a folder of its own,
`URL/VERSION` (both hashed), that is renamed into place when it is complete. So a job that reads an older version is not
disturbed. The folder holds the text, the sidecar and the row index if the server has them, and `copy.json`: the size,
modification time and digest of the text. A copied sidecar is used only if its digest is that of the text.

Users may share the folder of copies. If `URL` belongs to somebody who is not trusted (`mpload.index.trusted`), or this
user may not write there, the copy is in `URL-USER` instead.
"""

import contextlib
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
from typing import Any

from mpload import errors
from mpload.errors import MploadError, OutageError, StorageError
from mpload.index.cache_folder import cache_folder
from mpload.index.copy_sources import CopySource, FilesSource, ObjectsSource, changed_error, digest_of
from mpload.index.derived import machine_lock
from mpload.index.settling import settled_stamp
from mpload.index.sidecar import TextStamp, find_sidecar, stamp_in
from mpload.index.text import read_header
from mpload.index.trusted import check_trusted, check_trusted_folder
from mpload.storage.object_facts import ObjectFacts
from mpload.storage.remote import RemoteStorage
from mpload.storage.urls import check_url
from mpload.units import MIB

__all__ = ["copies_of_urls", "copy_of_file", "copy_of_url", "main"]

_SMALL_BYTES = 4 * MIB
"""The digest of a copy of up to this size is compared each time it is opened, which takes a few milliseconds."""
_UNUSED_SECONDS = 30 * 24 * 3600.0
"""A version that was not opened for so long is deleted when a newer one is copied."""
_LOCK_SECONDS = 3600.0
_FACTS, _COPIES = "copy.json", "indexes"
_NUM_THREADS = 8


def copy_of_file(source: str, folder: Path) -> tuple[Path, str]:
    """Return the path of a current copy of the index at an absolute path, and ""; `folder` holds all copies.

    If this user may not write to `folder`, or it belongs to somebody who is not trusted, the index is to be read where
    it is: `source` is returned, with a warning.

    Memory: constant.
    Process: if several processes of a machine call this at once, one makes the copy and the others wait.

    Raises:
        IndexNotFoundError: there is no index at the path.
        IndexChangedError: the index was replaced while it was being copied.
        StorageError: the index cannot be read, or the copy cannot be written.
    """
    return _ensure_copy(FilesSource(source), folder)


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
    folder = folder or _default_folder(urls[0])
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
            copies = list(pool.map(lambda url: _ensure_copy(ObjectsSource(url, limits), Path(folder)), urls))
        answer: dict[str, Any] = {"copies": [(os.fsencode(path).hex(), warning) for path, warning in copies]}
    except MploadError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _ensure_copy(source: CopySource, folder: Path) -> tuple[Path, str]:
    """Return the path of a current copy, or the index itself if it may be read where it is, and a warning or ""."""
    name = source.address.rpartition("/")[2]
    hashed = _hashed(source.address)
    places = [folder / hashed, folder / f"{hashed}-{os.geteuid()}"]
    latest = None if source.text is not None else _latest(source, places)  # a folder has no outages
    try:
        facts = source.facts(name, has_copy=latest is not None)
    except OutageError as error:
        if latest is None:
            raise
        copied = datetime.fromtimestamp(_facts_in(latest)["copied_at"], UTC)
        return latest / _kept_as(
            name
        ), f"{error}. The copy of {copied:%Y-%m-%d %H:%M} UTC is used, which may be out of date"
    version = _hashed(f"{facts.version} {facts.num_bytes}") if facts.version else None
    found = next((place / version for place in places if version and _is_intact(place / version, source)), None)
    if found is None:
        found, refusal = _copied_to_any(source, facts, folder, places, version)
        if found is None and source.text is None:
            raise StorageError(
                f"{source.address}: cannot be copied to {folder}: {refusal}. To have a copy, {_another(folder)}"
            )
        if found is None:
            return Path(source.address), (
                f"{folder}: a copy can neither be used nor made: {refusal}. The index is read where it is, which may "
                f"be slow. To have a copy, {_another(folder)}"
            )
    with contextlib.suppress(OSError):  # a folder that another user has filled
        os.utime(found / _FACTS)
    return found / _kept_as(name), ""


def _kept_as(name: str) -> str:
    """Return the name of the copy of a text, which must not be that of the facts."""
    return f"_{name}" if name == _FACTS else name


def _copied_to_any(
    source: CopySource, facts: ObjectFacts, folder: Path, places: Sequence[Path], version: str | None
) -> tuple[Path | None, str]:
    """Copy the index to the first place in `folder` where this user may. Return its folder, or None and why not."""
    refusal = ""
    for place in places:
        try:
            return _copied(source, facts, place, version), ""
        except OSError as error:
            if isinstance(error, MploadError):
                raise
            if not isinstance(error, PermissionError):
                raise StorageError(
                    f"{source.address}: cannot be copied to {place}: {error.strerror or error}. Free some space there, "
                    f"or {_another(folder)}"
                ) from error
            refusal = error.strerror or str(error)
    return None, refusal


def _another(folder: Path) -> str:
    """Return how to have copies in another folder, for a message."""
    cache = cache_folder()
    is_default = cache is not None and folder == cache / _COPIES
    return f"{'set XDG_CACHE_HOME, or ' * is_default}name another folder as local_copy"


def _default_folder(url: str) -> Path:
    if (folder := cache_folder()) is None:
        raise StorageError(
            f"{url}: cannot be copied to a cache folder, as this user has no home directory. Set XDG_CACHE_HOME to a "
            "writable folder, or name a folder as local_copy"
        )
    return folder / _COPIES


def _copied(source: CopySource, facts: ObjectFacts, place: Path, version: str | None) -> Path:
    """Copy the index to a folder in `place`, and return it. Its name is the version, or the digest if that is None.

    Raises:
        PermissionError: this user may not write there, or it belongs to somebody who is not trusted.
        OSError: it cannot be written.
    """
    name = source.address.rpartition("/")[2]
    place.mkdir(parents=True, exist_ok=True)
    check_trusted_folder(place, source.text)
    busy = StorageError(
        f"{source.address}: another process has been copying it for {_LOCK_SECONDS:.0f} s. Try again later"
    )
    with machine_lock("copy", folder=place, limit_seconds=_LOCK_SECONDS, busy=busy) as is_alone:
        if version is not None and _is_intact(place / version, source):  # another process was faster
            return place / version
        if is_alone:
            for left in place.glob(f"{platform.node()}.*.tmp"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
        with _new_folder(place) as new:
            if source.text is not None:
                settled_stamp(source.text)  # so that a later change shows in its facts
            digest = _download(source, name, facts, new)
            if source.facts(name) != facts:
                raise changed_error(source)
            folder = place / (version or _hashed(digest))
            if not _is_intact(folder, source):
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
    new.mkdir(mode=0o775)  # whatever the umask, only this user and the group may change files in it
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _download(source: CopySource, name: str, facts: ObjectFacts, folder: Path) -> str:
    """Copy the text, and the sidecar and the row index if there are any, into a folder; return the text's digest."""
    text = folder / _kept_as(name)
    source.fetch(name, facts, text)
    for suffix in (".mpx", ".mpr"):
        derived = Path(f"{text}{suffix}")
        try:
            source.fetch(f"{name}{suffix}", source.facts(f"{name}{suffix}"), derived)
        except OutageError:
            raise
        except MploadError:  # there is none: some servers then answer that access is denied
            derived.unlink(missing_ok=True)
    digest = digest_of(text)
    _keep_if_fitting(text, Path(f"{text}.mpx"))
    stamp = TextStamp.of(text)
    found = {"num_bytes": stamp.num_bytes, "mtime_ns": stamp.mtime_ns, "digest": digest, "copied_at": time.time()}
    with (folder / _FACTS).open("w", encoding="utf-8") as file:
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
        if layout is not None and layout.path == sidecar and layout.digest == digest_of(text, start=header.body_bytes):
            return
    sidecar.unlink()


def _latest(source: CopySource, places: Sequence[Path]) -> Path | None:
    """Return the version that was copied last, if any is intact."""
    intact = [folder for place in places for folder in _versions(place) if _is_intact(folder, source)]
    return max(intact, key=lambda folder: float(_facts_in(folder)["copied_at"]), default=None)


def _versions(place: Path) -> list[Path]:
    return [path.parent for path in place.glob(f"*/{_FACTS}") if path.parent.suffix != ".tmp"]


def _facts_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    return found


def _is_intact(folder: Path, source: CopySource) -> bool:
    text = folder / _kept_as(source.address.rpartition("/")[2])
    try:
        check_trusted_folder(folder, source.text)
        for path in (text, folder / _FACTS):
            check_trusted(path, source.text)
        facts, stamp = _facts_in(folder), TextStamp.of(text)
        is_same = (stamp.num_bytes, stamp.mtime_ns) == (facts["num_bytes"], facts["mtime_ns"])
        return is_same and (stamp.num_bytes > _SMALL_BYTES or digest_of(text) == facts["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
