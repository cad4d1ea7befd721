"""Lists a bucket on several machines. Each lists some ranges of its keys.

The ranges begin at folders, which this machine lists first, and each key is in exactly one range. The machines write
the keys of images as sorted parts into a folder that all of them share, and this machine merges the parts while it
reads them. So its memory does not grow with the number of objects.
"""

import heapq
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from filelock import FileLock, Timeout

from mpload.errors import ArgumentError, StorageError
from mpload.index.publishing import new_file
from mpload.ingest.buckets import RemoteWalk
from mpload.ingest.cluster import Cluster
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.sorting import RUN_BYTES, read_strings, sorted_strings, write_strings
from mpload.storage.buckets import PARALLEL_LISTS
from mpload.storage.listing import is_plain
from mpload.storage.remote import is_listed_in_ranges, list_folders, list_objects

__all__ = ["sorted_on_cluster"]

_MAX_PARTS = 64  # files that are merged at a time
_PART_THREADS = 2  # that list a part. Each further one lists about a page that others list too
_MIN_FOLDERS = 16  # if there are fewer, ranges begin at their own folders too
_SIGN_KEYS = 1 << 16
_PARTS, _LOCK = ".mpload-parts.", "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A range of keys that one job lists: those after `after`, and up to `up_to`."""

    number: int
    after: str
    up_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lister:
    """Lists parts of a bucket, on any machine."""

    url: str
    options: FolderOptions
    unlabelled: bool
    out: Path

    def path(self, part: _Part) -> Path:
        return self.out / f"part-{part.number:03d}"

    def __call__(self, part: _Part) -> RemoteWalk:
        """Write the sorted keys of a part's images to a file. Return what else was found."""
        walk = RemoteWalk(self.url, self.options)
        is_all = not part.after and part.up_to is None
        objects = list_objects(
            self.url, after=part.after, up_to=part.up_to, num_threads=PARALLEL_LISTS if is_all else _PART_THREADS
        )
        keys = walk.plain_keys(path for path, _ in objects) if self.unlabelled else walk.labelled_keys(objects)
        with new_file(self.path(part)) as file, sorted_strings(_with_signs(keys, file), folder=self.out) as ordered:
            write_strings(file, ordered)
        return walk


@contextmanager
def sorted_on_cluster(
    walk: RemoteWalk, cluster: Cluster, *, unlabelled: bool, scratch: Path
) -> Iterator[Iterator[str]]:
    """Return the keys of all images below a URL, sorted, as `walk` finds them if it lists the bucket itself.

    Args:
        walk: gets what else was found.
        cluster: the machines.
        unlabelled: whether the folders at the top are no classes.
        scratch: a folder that the machines share.

    Raises:
        ArgumentError: the bucket cannot be listed in ranges.
        StorageError: the bucket or a part cannot be read, or a part cannot be written.

    Memory: constant, apart from the names of the folders and of the objects at the top.
    """
    if not is_listed_in_ranges(walk.folder):
        raise ArgumentError(
            f"{walk.folder}: several machines can list S3 buckets only, and no directory buckets. Leave out `on`"
        )
    parts = list(_parts(_folders(walk.folder)))
    with _shared_folder(scratch) as shared:
        lister = _Lister(url=walk.folder, options=walk.options, unlabelled=unlabelled, out=shared)
        classes: set[str] = set()
        with closing(cluster.run(lister, parts, shared=shared)) as found:
            for other in found:
                classes.update(other.classes)
                _add(walk, other)
        walk.classes = sorted(classes)
        buffer_bytes = RUN_BYTES // len(parts)
        yield heapq.merge(*(read_strings(lister.path(part), buffer_bytes=buffer_bytes) for part in parts))


def _folders(url: str) -> list[str]:
    """Return the folders at the top, and their own folders if there are only a few."""
    folders = list_folders(url)
    if len(folders) < _MIN_FOLDERS:
        folders.extend(inner for folder in tuple(folders) if is_plain(folder) for inner in list_folders(url, folder))
    return folders


def _parts(folders: Iterable[str]) -> Iterator[_Part]:
    """Yield at most `_MAX_PARTS` ranges, which contain all keys, and about as many folders each."""
    places = sorted(filter(is_plain, folders))  # only these are sent unchanged as the beginning of a range
    count = min(len(places), _MAX_PARTS - 1)
    bounds = ["", *(places[number * len(places) // count] for number in range(count)), None]
    for number, (after, up_to) in enumerate(pairwise(bounds)):
        yield _Part(number=number, after=after or "", up_to=up_to)


def _add(walk: RemoteWalk, other: RemoteWalk) -> None:
    """Add the counts of a job."""
    walk.filled |= other.filled
    walk.inner |= other.inner
    walk.num_empty += other.num_empty
    walk.num_loose += other.num_loose
    walk.num_in_classes += other.num_in_classes
    for reason, count in other.left_out.counts.items():
        walk.left_out.add(reason, other.left_out.examples[reason], count)
    for reason, count in other.beside.counts.items():
        walk.beside.add(reason, other.beside.examples[reason], count)


def _with_signs(keys: Iterable[str], file: BinaryIO) -> Iterator[str]:
    """Yield keys, and now and then change the time of the file that they will go to, which shows progress."""
    for number, key in enumerate(keys):
        if number % _SIGN_KEYS == 0:
            os.utime(file.fileno())
        yield key


@contextmanager
def _shared_folder(scratch: Path) -> Iterator[Path]:
    """Make a folder for parts, and delete it at the end, with those that killed processes left."""
    for left in scratch.glob(f"{_PARTS}*"):
        if not (left / _LOCK).exists():  # another process is making it, and locks it next
            continue
        try:
            with FileLock(left / _LOCK, timeout=0):
                shutil.rmtree(left, ignore_errors=True)
        except (Timeout, OSError):  # another process writes an index into this folder, or deletes what was left
            continue
    try:
        made = scratch / f"{_PARTS}{token_hex(8)}"
        made.mkdir()
    except OSError as error:
        raise StorageError(f"{scratch}: cannot be written: {error.strerror}. Choose a writable folder") from error
    try:
        with FileLock(made / _LOCK, timeout=0):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
