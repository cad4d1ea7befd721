"""Where an index is copied from, see `mpload.index.copying`: a URL, or a folder."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Protocol

from mpload.errors import ArgumentError, IndexChangedError, IndexNotFoundError, StorageError
from mpload.index.open_file import open_text
from mpload.index.sidecar import TextStamp
from mpload.index.trusted import is_trusted
from mpload.storage.object_facts import ObjectFacts
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects, RemoteStorage
from mpload.storage.remote_file import read_parts
from mpload.units import MIB

__all__ = ["CopySource", "FilesSource", "ObjectsSource", "changed_error", "digest_of"]

_CHECK_SECONDS, _CHECK_RETRY_SECONDS = 5.0, 10.0
"""Time limits for asking a server whether a copy is still current."""
_WHOLE_BYTES = 8 * MIB


class CopySource(Protocol):
    """Where an index is copied from."""

    address: str
    """Its URL or absolute path."""

    @property
    def text(self) -> Path | None:
        """Its text, unless that is at a URL."""

    def facts(self, name: str, *, has_copy: bool = False) -> ObjectFacts:
        """Return the facts about the text or a file beside it. If there is a copy, do not wait long."""

    def fetch(self, name: str, facts: ObjectFacts, path: Path) -> None:
        """Copy the text or a file beside it to a path."""


class ObjectsSource:
    """An index at a URL, and what is beside it."""

    def __init__(self, url: str, limits: RemoteStorage) -> None:
        self.address = url
        self.text = None
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


class FilesSource:
    """An index in a folder, and what is beside it."""

    def __init__(self, path: str) -> None:
        self.address = path
        self.text = Path(path)

    def facts(self, name: str, *, has_copy: bool = False) -> ObjectFacts:  # noqa: ARG002  for URLs
        """Return the facts about a file."""
        path = self.text.with_name(name)
        if path != self.text and not is_trusted(path, self.text):
            raise StorageError(f"{path}: is missing, or is not trusted in a folder that every user may write to")
        with open_text(path) as file:
            stamp = TextStamp.of(file.fileno())
        return ObjectFacts(num_bytes=stamp.num_bytes, version=str(stamp.mtime_ns))

    def fetch(self, name: str, facts: ObjectFacts, path: Path) -> None:
        """Copy a file to a path, and compare what was written with what was read."""
        digest = hashlib.blake2b(digest_size=32)
        with open_text(self.text.with_name(name)) as file, path.open("wb") as copy:
            while piece := file.read(_WHOLE_BYTES):
                digest.update(piece)
                copy.write(piece)
        if path.stat().st_size != facts.num_bytes:
            raise changed_error(self)
        if digest_of(path) != digest.hexdigest():
            raise StorageError(f"{path}: the copy differs from what was read of {self.address}. Is the disk damaged?")


def changed_error(source: CopySource) -> IndexChangedError:
    """Return the error for a source that does not stay the same while it is copied."""
    return IndexChangedError(f"{source.address}: changed while it was being copied. Open it again")


def digest_of(path: Path, *, start: int = 0) -> str:
    """Return the BLAKE2b hash of a file from byte `start` on, as `mpload.index.scan` computes that of the lines."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _shorter(limits: RemoteStorage) -> RemoteStorage:
    """Return limits for a request that there is an alternative to."""
    request_seconds = min(_CHECK_SECONDS, limits.request_timeout_seconds)
    retry_seconds = max(min(_CHECK_RETRY_SECONDS, limits.retry_seconds), 1.5 * request_seconds)
    return RemoteStorage(request_timeout_seconds=request_seconds, retry_seconds=retry_seconds)
