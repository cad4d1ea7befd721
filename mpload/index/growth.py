"""Indexes that grow: an index with further lines still contains the index that it was.

The fingerprint of the first n samples is that of an index with just these lines. So what belongs to the shorter index,
such as a checkpoint, is recognised in the longer one. To find out takes reading the first lines, about a second for a
gigabyte, and is only done if the fingerprints differ.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mpload.errors import IndexChangedError
from mpload.index.index import Index, fingerprint_of, header_of, read_text, sidecar_of, text_bytes
from mpload.index.opening import open_index
from mpload.index.parts import num_listed
from mpload.index.parts_index import PartsIndex
from mpload.index.parts_table import fingerprint_of_parts
from mpload.storage.remote import RemoteStorage
from mpload.storage.urls import redacted
from mpload.units import MIB, format_count

__all__ = ["first_samples", "grown", "is_prefix", "listed_part", "same_samples"]

_ENDS = b"", b"\n", b"\r\n"
"""How the last line of an index may have ended before others were appended. Without a newline, one was added."""


def first_samples(index: Index, num_samples: int, *, fingerprint: str | None = None) -> Index:
    """Return an index of the first samples of `index`, which shares its open files.

    Args:
        index: an index with a text of its own, so no mixture.
        num_samples: in [1, number of lines in the text].
        fingerprint: the fingerprint, if it is known; otherwise the lines are read to compute it.

    Raises:
        IndexChangedError: the text has fewer lines.
    """
    if num_samples == len(index):
        return index
    if not 0 < num_samples <= num_listed(index):
        raise IndexChangedError(
            f"{index.path}: has {format_count(num_listed(index))} samples, but the run needs "
            f"{format_count(num_samples)}. Give every process the same file"
        )
    if fingerprint is None:
        fingerprint = _fingerprint(index, num_samples)
    shorter = object.__new__(type(index))
    shorter.__dict__.update(index.__dict__, _num_samples=num_samples, _fingerprint=fingerprint)
    return shorter


def is_prefix(index: Index, num_samples: int, fingerprint: str) -> bool:
    """Return whether the first samples of `index` are those of the index with this fingerprint."""
    if num_samples == len(index) and fingerprint == index.fingerprint:
        return True
    return 0 < num_samples <= num_listed(index) and fingerprint in _fingerprints(index, num_samples)


def grown(index: Index, *, storage: RemoteStorage | None = None) -> Index:
    """Open an index again, which may have more lines by now.

    Args:
        index: the index, with a text of its own.
        storage: the time limits for copying it again if it is at a URL.

    Raises:
        IndexChangedError: the text has changed in another way.
        MploadError: the index cannot be opened, see `open_index`.
    """
    now = open_index(
        index._source,  # noqa: SLF001
        allow_outside_root=index.allow_outside_root,
        storage=storage,
        local_copy=index._copies,  # noqa: SLF001
    )
    if not is_prefix(now, len(index), index.fingerprint) or now.columns != index.columns or now.root != index.root:
        raise IndexChangedError(
            f"{index.path}: was changed in another way than by appending lines: it no longer begins with the "
            f"{format_count(len(index))} samples that it had, or has another root. Restart the job with it, or bring "
            "the old one back"
        )
    return now


def same_samples(index: Index) -> Index:
    """Return an index of the same samples, over the text that is at the path of `index` now.

    Raises:
        IndexChangedError: the text has changed otherwise than by further lines.
        MploadError: the index cannot be opened, see `open_index`.
    """
    return first_samples(grown(index), len(index), fingerprint=index.fingerprint)


def listed_part(
    source: str, num_samples: int, fingerprint: str, *, allow_outside_root: bool, copies: Path | None
) -> Index:
    """Open a part of an index, which may have more lines by now than its list says.

    Raises:
        IndexChangedError: its first lines are not those of the list.
        MploadError: the part cannot be opened, see `open_index`.
    """
    now = open_index(source, allow_outside_root=allow_outside_root, local_copy=copies)
    if not is_prefix(now, num_samples, fingerprint):
        raise IndexChangedError(
            f"its part {redacted(source)} does not begin with the {format_count(num_samples)} samples that it had. "
            "Bring it back, or list the parts again: mpload merge PART ... -o LIST --as-parts"
        )
    return first_samples(now, num_samples, fingerprint=fingerprint)


def _fingerprint(index: Index, num_samples: int) -> str:
    if isinstance(index, PartsIndex) or num_samples < num_listed(index):
        return next(_fingerprints(index, num_samples))
    return fingerprint_of(sidecar_of(index).digest, num_samples, header_of(index))


def _fingerprints(index: Index, num_samples: int) -> Iterator[str]:
    """Yield the fingerprints that the first samples may have had as an index of their own."""
    if isinstance(index, PartsIndex):
        yield from _fingerprints_of_parts(index, num_samples)
        return
    header, start, end = header_of(index), header_of(index).body_bytes, _end_of(index, num_samples)
    tail_bytes = min(len(_ENDS[-1]), end - start)
    digest = hashlib.blake2b(digest_size=32)
    for offset in range(start, end - tail_bytes, MIB):
        digest.update(read_text(index, offset, min(MIB, end - tail_bytes - offset)))
    tail = read_text(index, end - tail_bytes, tail_bytes)
    for ending in _ENDS:
        if tail.endswith(ending):
            whole = digest.copy()
            whole.update(tail.removesuffix(ending))
            yield fingerprint_of(whole.hexdigest(), num_samples, header)


def _fingerprints_of_parts(index: PartsIndex, num_samples: int) -> Iterator[str]:
    whole, last, num_last = index.cut(num_samples)
    if last is None:
        yield fingerprint_of_parts(whole, index.columns)
        return
    for fingerprint in _fingerprints(last, num_last):
        yield fingerprint_of_parts([*whole, fingerprint], index.columns)


def _end_of(index: Index, num_samples: int) -> int:
    """Return where the first samples end in the text."""
    if num_samples == sidecar_of(index).num_samples:
        return text_bytes(index)
    return int(index._line_reader().bounds(np.array([num_samples - 1]))[1][0])  # noqa: SLF001  of the files that are open
