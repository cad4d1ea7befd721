"""The cache of one index, which the pipeline of each process asks for samples."""

import copy
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil
from xxhash import xxh3_64_intdigest

from mpload.errors import warn
from mpload.samples.cache.compact import Compact
from mpload.samples.cache.elsewhere import other_caches
from mpload.samples.cache.entries import make_entry, split_parts
from mpload.samples.cache.folder import CacheFolder
from mpload.samples.cache.machines import Machines
from mpload.samples.cache.writer import SegmentWriter
from mpload.storage.notices import Notices
from mpload.storage.protocols import Storage
from mpload.units import format_bytes

__all__ = ["CacheCounts", "OpenCache", "Vacancy"]

_SUBSET_KEY = 0x9D3F_2A61_C85B_E704  # used for nothing else: the subset must be independent of every shuffle
_MIN_STALE = 16
_LOOKS_EACH_SECONDS = 5.0
"""How often a full cache looks for segments to drop because other machines keep their samples now."""
_LEAST_OWN = 7 / 8
"""It drops a segment of which this machine keeps a smaller part. That part is read from its source once more."""
_MASK = (1 << 64) - 1


@dataclass(slots=True, kw_only=True)
class CacheCounts:
    """Counts the samples that this process requested from a cache, by outcome."""

    hits: int = 0
    misses: int = 0
    """Samples of the subset that were not in the cache (yet)."""
    outside: int = 0
    """Samples that are not kept on this machine. They are read from their source, or from another machine."""
    damaged: int = 0
    """Misses whose entry was invalid: it was damaged or deleted, or the source has changed."""


class Vacancy(NamedTuple):
    """A sample that a cache does not have."""

    stamp: int | None
    """Of its sources, before they were read."""
    place: bytes
    """Where its entry was."""


class OpenCache:
    """The cache of one index; `open_cache` makes it.

    Memory: constant, and one descriptor per segment that was read (at most 256).
    Process: may be forked and pickled; each process fills its own segment. Not thread-safe.
    """

    def __init__(
        self,
        folder: CacheFolder,
        *,
        about: dict[str, Any],
        max_bytes: int,
        fraction: float,
        compact: Compact | None,
        root: str | None,
        machines: Machines | None = None,
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.fraction = fraction
        self.compact = compact
        """What makes the form of images that is kept; None if sources are kept unchanged."""
        self.machines = machines
        """The machines that keep samples of this cache; None if it is this one alone."""
        self._root = root  # None: sources are not checked before a hit
        self._hash_limit = min(round(fraction * 2**64), 2**64)
        self._run = int.from_bytes(os.urandom(8), "little") | 1
        self._is_off = False
        try:
            folder.prepare(about)
        except OSError as error:
            self._turn_off(error)
        self._start()

    def _start(self) -> None:
        self.counts = CacheCounts()
        self._looks_for_room_at = 0.0
        self._damaged: Counter[int] = Counter()  # invalid entries met in each segment
        self._hits_before = 0  # at the last deletion of stale segments
        self._writer = SegmentWriter(self.folder, max_bytes=self.max_bytes)
        try:
            self.folder.open()
        except OSError as error:
            if not self._is_off:
                self._turn_off(error)
        self._is_off = self._is_off or not self.folder.is_writable
        self._close = weakref.finalize(self, _close, self._writer, self.folder)

    @property
    def is_resized(self) -> bool:
        """Whether smaller images are kept."""
        return self.compact is not None

    def only_read(self) -> "OpenCache":
        """Return this cache for trials: it returns what is kept, and keeps nothing more."""
        same = copy.copy(self)
        same._is_off = True  # noqa: SLF001  the same class
        return same

    def holds(self, sample_id: int) -> bool:
        """Return whether a sample belongs to the fixed subset that the cache keeps on this machine."""
        if not self._is_kept(sample_id):
            return False
        return self.machines is None or self.machines.owner_of(sample_id) == self.machines.own

    def _is_kept(self, sample_id: int) -> bool:
        """Return whether a sample belongs to the fixed subset that is kept on any machine."""
        return xxh3_64_intdigest(sample_id.to_bytes(8, "little"), seed=_SUBSET_KEY) < self._hash_limit

    def _kept_by(self, sample_id: int) -> int | None:
        """Return the place of the other machine that keeps a sample; None if there is none."""
        if self.machines is None or not self._is_kept(sample_id):
            return None
        owner = self.machines.owner_of(sample_id)
        return None if owner == self.machines.own else owner

    def with_other_machines(self, storage: Storage, notices: Notices) -> Storage:
        """Return a storage that reads from other machines what they keep, and all else from `storage`."""
        if self.machines is None:
            return storage
        return other_caches(
            storage,
            self._kept_by,
            self.machines,
            key=self.folder.key,
            compact=self.compact,
            notices=notices,
        )

    def has(self, sample_id: int) -> bool:
        """Return whether a sample has an entry, valid or not: its sources are then unlikely to be read."""
        return self.holds(sample_id) and self.folder.table >= 0 and any(self.folder.place_of(sample_id))

    def read(self, sample_id: int, paths: Sequence[str], read: Callable[[], list[bytes]]) -> list[bytes]:
        """Return the bytes of a sample's sources from the cache; on a miss, call `read` and keep its result.

        Args:
            sample_id: The sample, in [0, N).
            paths: The files that hold the sources, relative to the index's root.
            read: Reads the sources; its exceptions pass through.
        """
        if not self.holds(sample_id):
            self.counts.outside += 1
            return read()
        found = self.look_up(sample_id, self.stamp_of(paths))
        if not isinstance(found, Vacancy):
            return found
        parts = self.formed(read())
        self.keep(sample_id, found, parts)
        return parts

    def look_up(self, sample_id: int, stamp: int | None) -> "list[bytes] | Vacancy":
        """Return the bytes of a sample of the subset, whose sources have this stamp, or what `keep` takes without."""
        place = self.folder.place_of(sample_id) if self.folder.table >= 0 else b""
        if any(place) and stamp is not None:
            entry = self.folder.read(sample_id, place)
            if entry is not None and (self._root is None or entry[0].stamp == stamp):
                self.counts.hits += 1
                return split_parts(entry[1], entry[0].num_parts)
            self.counts.damaged += 1
            self._damaged[self.folder.segment_of(place)] += 1
        self.counts.misses += 1
        return Vacancy(stamp, place)

    def formed(self, parts: list[bytes]) -> list[bytes]:
        """Return sources in the form in which they are kept. Any thread may call it."""
        return parts if self.compact is None else list(map(self.compact, parts))

    def keep(self, sample_id: int, vacancy: "Vacancy", parts: list[bytes]) -> None:
        """Keep the sources of a sample that `look_up` has not found, if there is room."""
        if not self._is_off and vacancy.stamp is not None:
            self._store(sample_id, vacancy.stamp, vacancy.place, parts)

    def read_at_once(self, sample_id: int) -> memoryview | None:
        """Return the bytes of a sample of one source; None if it would take a while to read them. Count nothing."""
        if self._root is not None or self.folder.table < 0:  # its source may be on a slow disk
            return None
        place = self.folder.place_of(sample_id)
        return self.folder.read_at_once(sample_id, place) if any(place) else None

    def copy(self, sample_id: int, path: str, room: memoryview) -> int:
        """Copy the bytes of a sample of one source, in the file `path`, to the beginning of `room`. Count nothing.

        Return their number. If that is more than `room` has, nothing is copied. It is -1 if `read` would read the
        source.
        """
        place = self.folder.place_of(sample_id) if self.folder.table >= 0 else b""
        stamp = self.stamp_of([path]) if any(place) else None
        if stamp is None:
            return -1
        return self.folder.copy(sample_id, place, room, stamp=None if self._root is None else stamp)

    def count(self, *, num_hits: int, num_outside: int) -> None:
        """Count samples that `copy` has copied, and samples outside the subset, which it has not."""
        self.counts.hits += num_hits
        self.counts.outside += num_outside

    def used_bytes(self) -> int:
        """Return the size of the cache on disk, or in memory, in bytes, including reserved space."""
        return self.folder.used_bytes()

    def is_tmpfs(self) -> bool:
        """Return whether the cache is in memory, so that its bytes count towards a memory budget.

        Where nothing lists the file systems, as in a chroot without /proc, it counts as on a disk.
        """
        path = os.path.realpath(self.folder.path)
        try:
            mounts = [part for part in psutil.disk_partitions(all=True) if _is_below(path, part.mountpoint)]
        except OSError:
            return False
        return bool(mounts) and max(mounts, key=lambda part: len(part.mountpoint)).fstype in {"tmpfs", "ramfs"}

    def shrink(self, to_bytes: int) -> None:
        """Delete whole segments, oldest first, until the cache with its table takes at most `to_bytes`.

        The space is freed at once, even if other processes have the segments open. Samples in deleted segments become
        misses, and no running process lets the cache grow beyond `to_bytes` again. Nothing happens if somebody has
        deleted the folder.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            self.folder.shrink(to_bytes)

    def close(self) -> None:
        """Close all files and release reserved space that was not used."""
        self._close()

    def stamp_of(self, paths: Sequence[str]) -> int | None:
        """Return a hash of the sources' sizes and modification times; None if a source cannot be checked.

        Any thread may call it.
        """
        if self._root is None:
            return 0
        stamp = 0
        try:
            for path in paths:
                if "://" in path:  # trusted: a request for each hit would cost as much as the hit saves
                    continue
                facts = os.stat(path if path[0] == "/" else self._root + path)  # noqa: PTH116  for every sample
                stamp = (stamp * 31 + facts.st_mtime_ns * 0x9E37_79B9_7F4A_7C15 + facts.st_size) & _MASK
        except (OSError, ValueError, IndexError):
            return None
        return stamp | 1

    def _store(self, sample_id: int, stamp: int, place: bytes, parts: list[bytes]) -> None:
        try:
            if self.folder.place_of(sample_id) != place:  # another process has stored it meanwhile
                return
            entry = make_entry(parts, sample_id=sample_id, stamp=stamp, key=self.folder.key)
            new_place = self._writer.append(*entry)
            if new_place is None and (self._drop_stale_segments() or self._drop_foreign_segments()):
                new_place = self._writer.append(*entry)
            if new_place is not None:
                self.folder.publish(sample_id, new_place)
        except OSError as error:
            self._turn_off(error)

    def _drop_stale_segments(self) -> bool:
        """Delete segments in which this process met as many invalid entries as it had hits per segment, or more."""
        if not self._damaged:
            return False
        mean_hits = (self.counts.hits - self._hits_before) / max(1, len(self.folder.segments()))
        stale = [number for number, count in self._damaged.items() if count >= max(_MIN_STALE, mean_hits)]
        for number in stale:
            self._writer.abandon(number)
            self.folder.drop(number)
            del self._damaged[number]
        if stale:
            self._hits_before = self.counts.hits
        return bool(stale)

    def _drop_foreign_segments(self) -> bool:
        """Delete segments of samples that this machine does not keep any more, since the machines are others now.

        Return whether there may be room. Other processes of this machine hold segments, and drop them in their turn.
        """
        if self.machines is None or time.monotonic() < self._looks_for_room_at:
            return False
        self._looks_for_room_at = time.monotonic() + _LOOKS_EACH_SECONDS
        foreign = []
        for number in self.folder.segments():
            found = [self.holds(sample_id) for sample_id in self.folder.first_samples_of(number)]
            if sum(found) < _LEAST_OWN * len(found):
                foreign.append(number)
        for number in foreign:
            self._writer.abandon(number)
            self.folder.drop(number)
        self._writer.abandon(0)  # none, so that it tries again
        return True

    def _turn_off(self, error: OSError) -> None:
        self._is_off = True
        if self.folder.claim_warning(self._run):
            warn(
                f"{self.folder.path}: {error.strerror or error}. The cache is not filled any further; the job goes on "
                "and reads what is not cached from its source. Free space there (max_bytes is "
                f"{format_bytes(self.max_bytes)}), allow writing, or choose another folder"
            )

    def __getstate__(self) -> dict[str, Any]:
        folder = CacheFolder(self.folder.path, num_samples=self.folder.num_samples, key=self.folder.key)
        return {**self.__dict__, "folder": folder, "_writer": None, "_close": None, "counts": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


def _close(writer: SegmentWriter, folder: CacheFolder) -> None:
    try:
        writer.close()
    finally:
        folder.close()


def _is_below(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")
