"""`PartialCache`: what users write as `cache=`, and the fraction of an index that a size limit allows."""

import math
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import Literal

import numpy as np

from mpload.errors import ArgumentError, MploadError
from mpload.index.index import Index, Record
from mpload.samples.cache.compact import COMPACT_FORM, compact
from mpload.samples.cache.entries import HEAD_BYTES
from mpload.samples.cache.folder import FORMAT, CacheFolder, key_of
from mpload.samples.cache.opened import OpenCache
from mpload.units import MIB, format_bytes, format_count, parse_bytes

__all__ = ["CachedForm", "PartialCache", "open_cache"]

_MAX_MEASURED = 256
_MAX_READ = 48
_FILLED = 0.97  # the rest is for what writers have reserved, and for a mean that is not exact


class CachedForm(StrEnum):
    """What a cache keeps of a sample."""

    BYTES = auto()
    """Its bytes, as they are."""
    RESIZED = auto()
    """Images as JPEGs with a short side of 256 pixels."""


@dataclass(frozen=True, slots=True)
class PartialCache:
    """Keep a fixed pseudo-random part of the samples on a fast disk or tmpfs, for all processes and later runs.

    A training run reads everything once an epoch: a cache of the latest reads hits almost never, a fixed subset hits
    exactly its share from the second epoch on. Whatever happens to the cache's files, a sample's bytes are those of its
    source, checked by a checksum on each hit; a full or read-only disk ends the filling with one warning.

    The checksum finds damage, not forgery: whoever may write to the cache decides what is in it. So in a folder that
    every user may write to (`/tmp`, `/dev/shm`) only files of this user and root are used, and a folder of another user
    is refused with one warning. Users who trust each other share a cache in a folder of their group
    (`chgrp GROUP DIR; chmod 2770 DIR`) with `umask 002`; with another umask those who came later can only read it.

    Attributes:
        dir: folder; every data set (index, root and form) has its own below it.
        max_bytes: limit of one data set's files, over all processes and runs: bytes, or a text like `"20GiB"`.
        fraction: part of the samples to keep, in (0, 1]; None: as many as `max_bytes` are enough for, by the sizes in
            the index's sidecar (`mpload index --stat`) or of a few hundred samples.
        what: `"bytes"`: as they are. `"resized"`: images as JPEGs with a short side of 256 pixels, so that later
            epochs decode less; samples in the subset are resized in the first epoch too, kept or not: an epoch's pixels
            do not depend on what the cache holds. They do depend on the subset: give `fraction` where runs with other
            limits have to see the same pixels.
        check_source: look at size and modification time of a local source before each hit (a `stat`, 2 microseconds;
            more on network disks), so that a changed file is read anew. False trusts the index.

    Raises:
        ArgumentError: a value breaks a rule.
    """

    dir: str | os.PathLike[str]
    _: KW_ONLY
    max_bytes: int | str = "20GiB"
    fraction: float | None = None
    what: CachedForm | Literal["bytes", "resized"] = CachedForm.BYTES
    check_source: bool = True

    def __post_init__(self) -> None:
        if parse_bytes(self.max_bytes) < MIB:
            raise ArgumentError(f"max_bytes must be at least 1 MiB, got {self.max_bytes}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ArgumentError(f"fraction must be in (0, 1], or None for what max_bytes allow, got {self.fraction}")
        if self.what not in set(CachedForm):
            raise ArgumentError(f'what must be "bytes" or "resized", got {self.what!r}')


def open_cache(
    choice: PartialCache,
    index: Index,
    *,
    read: Callable[[Record], list[bytes]],
    sources_are_files: bool = True,
) -> OpenCache:
    """Return the cache over an index; makes its folder, or says in one warning that it cannot.

    Args:
        choice: what the user wrote as `cache=`.
        index: whose samples are to be kept.
        read: reads a record's sources; asked for a few of them where sizes are not known.
        sources_are_files: whether paths of the index name files that `check_source` can look at.

    Raises:
        ArgumentError: `max_bytes` do not even hold the table of places, 8 bytes a sample.
    """
    is_resized = choice.what == CachedForm.RESIZED
    about = {
        "format": FORMAT,
        "fingerprint": index.fingerprint,
        "root": index.root,
        "form": COMPACT_FORM if is_resized else str(CachedForm.BYTES),
        "num_samples": len(index),
        "index": str(index.path),
    }
    key = key_of(about)
    path = Path(choice.dir).absolute() / f"{index.path.stem}-{choice.what}-{key:016x}"
    folder = CacheFolder(path, num_samples=len(index), key=key)
    max_bytes = parse_bytes(choice.max_bytes)
    if folder.table_bytes > max_bytes // 2:
        raise ArgumentError(
            f"max_bytes={format_bytes(max_bytes)} is too little for {format_count(len(index))} samples: where they "
            f"lie takes {format_bytes(folder.table_bytes)} alone. Give the cache at least twice as much"
        )
    fraction = choice.fraction
    if fraction is None:
        sample_bytes = HEAD_BYTES + _mean_bytes(index, read, is_resized=is_resized)
        fraction = min(1.0, (max_bytes * _FILLED - folder.table_bytes) / (max(1, len(index)) * sample_bytes))
    is_checked = choice.check_source and sources_are_files and "://" not in index.root
    root = os.path.join(index.root, "") if is_checked else None  # noqa: PTH118  a prefix for strings
    return OpenCache(
        folder,
        about=about,
        max_bytes=max_bytes,
        fraction=fraction,
        is_resized=is_resized,
        root=root,
    )


def _mean_bytes(index: Index, read: Callable[[Record], list[bytes]], *, is_resized: bool) -> float:
    """Return the mean size of a sample's kept bytes: from the sidecar, of evenly spread samples."""
    known = None if is_resized else index.nbytes
    wanted = min(1 << 16, len(index))
    if known is not None and wanted:
        return float(known.take(np.linspace(0, len(index) - 1, wanted).astype(np.int64)).mean())
    wanted = min(len(index), _MAX_READ if is_resized else _MAX_MEASURED)
    sizes = []
    for record in index.records(np.linspace(0, len(index) - 1, wanted).astype(np.int64) if wanted else []):
        try:
            sizes.append(sum(len(compact(part) if is_resized else part) for part in read(record)))
        except (MploadError, OSError):  # the policy for bad samples meets it when its turn comes
            continue
    return math.fsum(sizes) / len(sizes) if sizes else float(MIB)
