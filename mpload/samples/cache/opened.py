"""One index's cache, as the pipeline of each process asks it."""

import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from xxhash import xxh3_64_intdigest

from mpload.errors import MploadWarning
from mpload.samples.cache.compact import compact
from mpload.samples.cache.entries import make_entry, split_parts
from mpload.samples.cache.folder import CacheFolder
from mpload.samples.cache.writer import SegmentWriter
from mpload.units import format_bytes

__all__ = ["CacheCounts", "OpenCache"]

_SUBSET_KEY = 0x9D3F_2A61_C85B_E704  # of nothing else: the subset must not go with any shuffle
_MIN_STALE = 16
_MASK = (1 << 64) - 1


@dataclass(slots=True, kw_only=True)
class CacheCounts:
    """What became of the samples that a cache was asked for in this process."""

    hits: int = 0
    misses: int = 0
    """In the subset, and not in the cache (yet)."""
    outside: int = 0
    """Not in the subset: always read from their source."""
    damaged: int = 0
    """Misses whose entry was there but did not fit: damaged, cleared, or the source has changed."""


class OpenCache:
    """A `PartialCache` over one index: made by `PartialCache.open`.

    Memory: constant; a descriptor per segment read.
    Process: may be forked and pickled; each process fills a segment of its own. One thread at a time.
    """

    def __init__(
        self,
        folder: CacheFolder,
        *,
        about: dict[str, Any],
        max_bytes: int,
        fraction: float,
        is_resized: bool,
        root: str | None,
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.fraction = fraction
        self.is_resized = is_resized
        self._root = root  # None: sources are not looked at before a hit
        self._below = min(round(fraction * 2**64), 2**64)
        self._run = int.from_bytes(os.urandom(8), "little") | 1
        self._is_off = False
        try:
            folder.prepare(about)
        except OSError as error:
            self._turn_off(error)
        self._start()

    def _start(self) -> None:
        self.counts = CacheCounts()
        self._damaged: Counter[int] = Counter()  # entries in each segment that did not fit
        self._hits_before = 0  # when stale segments were given up last
        self._writer = SegmentWriter(self.folder, max_bytes=self.max_bytes)
        try:
            self.folder.open()
        except OSError as error:
            if not self._is_off:
                self._turn_off(error)
        self._is_off = self._is_off or not self.folder.is_writable
        self._close = weakref.finalize(self, _close, self._writer, self.folder)

    def holds(self, sample_id: int) -> bool:
        """Whether a sample is in the fixed subset that the cache keeps."""
        return xxh3_64_intdigest(sample_id.to_bytes(8, "little"), seed=_SUBSET_KEY) < self._below

    def has(self, sample_id: int) -> bool:
        """Whether an entry of a sample is there, good or damaged: then its sources will hardly be read."""
        return self.holds(sample_id) and self.folder.table >= 0 and any(self.folder.place_of(sample_id))

    def read(self, sample_id: int, paths: Sequence[str], read: Callable[[], list[bytes]]) -> list[bytes]:
        """Return the bytes of a sample's sources: kept ones, else what `read` returns, which is then kept.

        Args:
            sample_id: in [0, N).
            paths: the files that hold the sources, relative to the index's root.
            read: reads the sources; what it raises passes through.
        """
        if not self.holds(sample_id):
            self.counts.outside += 1
            return read()
        stamp = self._stamp(paths)
        place = self.folder.place_of(sample_id) if self.folder.table >= 0 else b""
        if any(place) and stamp is not None:
            entry = self.folder.read(sample_id, place)
            if entry is not None and (self._root is None or entry[0].stamp == stamp):
                self.counts.hits += 1
                return split_parts(entry[1], entry[0].num_parts)
            self.counts.damaged += 1
            self._damaged[self.folder.segment_of(place)] += 1
        self.counts.misses += 1
        parts = read()
        if self.is_resized:
            parts = [compact(part) for part in parts]
        if not self._is_off and stamp is not None:
            self._keep(sample_id, stamp, place, parts)
        return parts

    def used_bytes(self) -> int:
        """Return the bytes on disk, or in memory, that the cache takes, reserved ones included."""
        return self.folder.used_bytes()

    def is_tmpfs(self) -> bool:
        """Whether the cache lies in memory, so that its bytes are part of a memory budget."""
        path = os.path.realpath(self.folder.path)
        mounts = [part for part in psutil.disk_partitions(all=True) if _lies_below(path, part.mountpoint)]
        return bool(mounts) and max(mounts, key=lambda part: len(part.mountpoint)).fstype in {"tmpfs", "ramfs"}

    def shrink(self, to_bytes: int) -> None:
        """Give up whole segments, oldest first, until the cache takes at most `to_bytes` beside its table.

        Space comes back at once, in all processes; samples that were kept there are misses, and none of the running
        processes takes more than `to_bytes` again.
        """
        self.folder.shrink(to_bytes)

    def close(self) -> None:
        """Close all files, and give back what was reserved and not used."""
        self._close()

    def _stamp(self, paths: Sequence[str]) -> int | None:
        """Return a number that changes when a source's size or time of modification does; None: it cannot be seen."""
        if self._root is None:
            return 0
        stamp = 0
        try:
            for path in paths:
                if "://" in path:  # trusted: a request for each hit would cost what the hit is to save
                    continue
                facts = os.stat(path if path[0] == "/" else self._root + path)  # noqa: PTH116  for every sample
                stamp = (stamp * 31 + facts.st_mtime_ns * 0x9E37_79B9_7F4A_7C15 + facts.st_size) & _MASK
        except (OSError, ValueError, IndexError):
            return None
        return stamp | 1

    def _keep(self, sample_id: int, stamp: int, place: bytes, parts: list[bytes]) -> None:
        try:
            if self.folder.place_of(sample_id) != place:  # another process was faster
                return
            entry = make_entry(parts, sample_id=sample_id, stamp=stamp, key=self.folder.key)
            kept = self._writer.append(*entry)
            if kept is None and self._give_up_stale_segments():
                kept = self._writer.append(*entry)
            if kept is not None:
                self.folder.publish(sample_id, kept)
        except OSError as error:
            self._turn_off(error)

    def _give_up_stale_segments(self) -> bool:
        """Make room: delete segments in which this process has met more stale entries than a segment has good ones."""
        if not self._damaged:
            return False
        mean_hits = (self.counts.hits - self._hits_before) / max(1, len(self.folder.segments()))
        stale = [number for number, count in self._damaged.items() if count >= max(_MIN_STALE, mean_hits)]
        for number in stale:
            self._writer.leave(number)
            self.folder.drop(number)
            del self._damaged[number]
        if stale:
            self._hits_before = self.counts.hits
        return bool(stale)

    def _turn_off(self, error: OSError) -> None:
        self._is_off = True
        if self.folder.claim_warning(self._run):
            warnings.warn(
                f"{self.folder.path}: {error.strerror or error}. The cache is not filled any further; the job goes on, "
                "and reads what is not in it from its source. Free space there (max_bytes is "
                f"{format_bytes(self.max_bytes)}), allow writing, or choose another folder",
                MploadWarning,
                stacklevel=2,
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


def _lies_below(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")
