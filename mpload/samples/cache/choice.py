"""`PartialCache`: the value of `cache=`, and the fraction of an index's samples that fits its size limit."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum, auto
from numbers import Real
from pathlib import Path
from typing import Literal

import numpy as np

from mpload.errors import ArgumentError, MploadError
from mpload.index.index import Index, Record
from mpload.index.mixture_index import MixtureIndex, roots_of
from mpload.samples.cache.compact import Compact
from mpload.samples.cache.entries import HEAD_BYTES
from mpload.samples.cache.folder import FORMAT, CacheFolder, key_of
from mpload.samples.cache.machines import check_machines, machines_of
from mpload.samples.cache.opened import OpenCache
from mpload.units import MIB, format_bytes, format_count, parse_bytes

__all__ = ["CachedForm", "PartialCache", "open_cache"]

_MAX_MEASURED = 256
_MAX_RESIZED = 48
_USABLE_FRACTION = 0.97  # the rest allows for space that writers have reserved, and for an inexact mean size


class CachedForm(StrEnum):
    """The form in which a cache keeps samples."""

    BYTES = auto()
    """The source's bytes, unchanged."""
    RESIZED = auto()
    """Images as JPEGs with a shorter side of 256 pixels."""


@dataclass(frozen=True, slots=True)
class PartialCache:
    """Keep a fixed pseudo-random subset of the samples on a fast disk or tmpfs, for all processes and later runs.

    A training run reads every sample once per epoch. A cache of the latest reads would almost never hit; a fixed subset
    hits for exactly its share of the samples from the second epoch on. A checksum is verified on each hit, so that
    damaged files never change a sample: it is then read from its source. If the disk is full or read-only, the cache
    stops filling, with one warning.

    The checksum detects damage, not forgery: every user who may write to the cache can change what it returns. In a
    folder that every user may write to (`/tmp`, `/dev/shm`), only files of this user and of root are therefore used,
    and a folder that belongs to another user is refused with one warning. Users who trust each other can share a cache
    in a folder of their group (`chgrp GROUP DIR; chmod 2770 DIR`) with `umask 002`. With another umask, only the user
    who created the cache can write to it.

    Attributes:
        dir: The folder. Each data set (index, root, form and storage) has its own folder below it.
        max_bytes: Limit of the size of one data set's files, over all processes and runs: a number of bytes, or text
            such as `"20GiB"`.
        fraction: Fraction of the samples to keep on a machine, in (0, 1]. None keeps as many as fit into `max_bytes`,
            judging by the sizes in the index's sidecar (`mpload index --stat`) or, without them, of up to 256 samples.
        what: `"bytes"` keeps the sources unchanged. `"resized"` keeps images as JPEGs with a shorter side of 256
            pixels, so that later epochs decode less. Samples in the subset are resized in the first epoch too, whether
            they are kept or not, so that an epoch's pixels do not depend on what the cache holds. They do depend on the
            subset: set `fraction` if runs with different limits must see the same pixels.
        check_source: Compare size and modification time of a local source before each hit (one `stat`, 2 microseconds;
            more on network disks), so that a changed file is read again. False trusts the index.
        machines: URLs of the servers (`mpload serve`) of all machines that share the cache, in the same order on each.
            Each machine keeps different samples, and reads the others' over the network. So n machines with a share f
            each hit min(1, n f). Give all of them the same limits. Stored as a tuple.
        machine: The place of this machine in `machines`. None takes the URL whose host has an address of this machine.
        token: The secret that the servers want to see, the `MPLOAD_TOKEN` of `mpload serve`; None if they want none.

    Raises:
        ArgumentError: `max_bytes`, `fraction` or `what` is out of range, or the machines are no URLs of servers.
    """

    dir: str | os.PathLike[str]
    _: KW_ONLY
    max_bytes: int | str = "20GiB"
    fraction: float | None = None
    what: CachedForm | Literal["bytes", "resized"] = CachedForm.BYTES
    check_source: bool = True
    machines: Sequence[str] = ()
    machine: int | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if parse_bytes(self.max_bytes) < MIB:
            raise ArgumentError(f"max_bytes must be at least 1 MiB, got {self.max_bytes}")
        given: object = self.dir
        folder: object = os.fspath(given) if isinstance(given, str | os.PathLike) else None
        if not isinstance(folder, str) or not folder:
            raise ArgumentError(f"dir must be the path of a folder, got {self.dir!r}")
        fraction: object = self.fraction
        if fraction is not None:
            share = float(fraction) if isinstance(fraction, Real) else 0.0
            if not 0 < share <= 1:
                raise ArgumentError(f"fraction must be in (0, 1], or None to fill max_bytes, got {fraction!r}")
            object.__setattr__(self, "fraction", share)
        if self.what not in list(CachedForm):
            raise ArgumentError(f'what must be "bytes" or "resized", got {self.what!r}')
        object.__setattr__(self, "machines", check_machines(self.machines, self.machine, self.token))


def open_cache(
    choice: PartialCache,
    index: Index,
    *,
    read: Callable[[Record], list[bytes]],
    compact: Compact | None = None,
    storage: object = None,
) -> OpenCache:
    """Return the cache for an index. Make its folder, or warn once that it cannot be made.

    Args:
        choice: The user's choice, the value of `cache=`.
        index: The index whose samples are cached.
        read: Reads a record's sources; called for a few records if sizes are unknown.
        compact: Makes the form of images that is kept, where `what` is `"resized"`.
        storage: The user's own storage; None if the index's paths name files or URLs.

    Raises:
        ArgumentError: The table of places, 8 bytes per sample, would take more than half of `max_bytes`, or
            `storage` has no `cache_key`.
    """
    compact = (compact or Compact()) if choice.what == CachedForm.RESIZED else None
    has_roots_in_paths = isinstance(index, MixtureIndex) and not index.has_one_root
    about = {
        "format": FORMAT,
        "fingerprint": index.fingerprint,
        "root": roots_of(index),
        "form": str(CachedForm.BYTES) if compact is None else compact.form,
        "num_samples": len(index),
        "index": str(index.path),
    }
    if storage is not None and (key_of_storage := _key_of(storage)):
        about["storage"] = key_of_storage
    key = key_of(about)
    path = Path(choice.dir).absolute() / f"{index.path.stem}-{choice.what}-{key:016x}"
    folder = CacheFolder(path, num_samples=len(index), key=key)
    max_bytes = parse_bytes(choice.max_bytes)
    if folder.table_bytes > max_bytes // 2:
        raise ArgumentError(
            f"max_bytes={format_bytes(max_bytes)} is too little for {format_count(len(index))} samples: the table of "
            f"their places alone takes {format_bytes(folder.table_bytes)}. Give the cache at least twice as much"
        )
    fraction = choice.fraction
    if fraction is None:
        sample_bytes = HEAD_BYTES + _mean_bytes(index, read, compact)
        fraction = min(1.0, (max_bytes * _USABLE_FRACTION - folder.table_bytes) / (max(1, len(index)) * sample_bytes))
    machines = machines_of(choice.machines, choice.machine, choice.token)
    prefix = "" if has_roots_in_paths else os.path.join(index.root, "")  # noqa: PTH118  a prefix for strings
    is_checked = choice.check_source and storage is None and "://" not in prefix
    return OpenCache(
        folder,
        about=about,
        max_bytes=max_bytes,
        fraction=fraction if machines is None else min(1.0, fraction * len(machines.urls)),
        compact=compact,
        root=prefix if is_checked else None,
        machines=machines,
    )


def _key_of(storage: object) -> str:
    """Return what tells the user's storage from others; empty if it reads the files that the index names.

    Raises:
        ArgumentError: it has no `cache_key`.
    """
    key = getattr(storage, "cache_key", None)
    if not isinstance(key, str):
        raise ArgumentError(
            f"cache: {type(storage).__qualname__} needs an attribute cache_key, so that it does not get what others "
            "have cached: a text that is the same for storages that read the same, such as the name of the server"
        )
    return key


def _mean_bytes(index: Index, read: Callable[[Record], list[bytes]], compact: Compact | None) -> float:
    """Return the mean number of bytes kept per sample: from the sidecar's sizes, otherwise from a few samples."""
    known = index.nbytes if compact is None else None
    wanted = min(1 << 16, len(index))
    if known is not None and wanted:
        return float(known.take(np.linspace(0, len(index) - 1, wanted).astype(np.int64)).mean())
    wanted = min(len(index), _MAX_MEASURED if compact is None else _MAX_RESIZED)
    sizes = []
    for record in index.records(np.linspace(0, len(index) - 1, wanted).astype(np.int64) if wanted else []):
        try:
            sizes.append(sum(len(part if compact is None else compact(part)) for part in read(record)))
        except (MploadError, OSError):  # handled by the error policy when the sample is made
            continue
    return math.fsum(sizes) / len(sizes) if sizes else float(MIB)
