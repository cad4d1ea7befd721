"""Tar shards in WebDataset's layout as sources. They are indexed in place, in one pass over the headers.

`mpload.ingest.grouping` describes how members form samples.
"""

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import ColumnType
from mpload.ingest.grouping import (
    Member,
    Sample,
    choose_cells,
    column_name,
    group_members,
    is_attached,
    label_in,
    split_name,
)
from mpload.ingest.rows import LeftOut, Reason, Rows, root_and_prefix
from mpload.storage.ranges import Span
from mpload.units import MIB, printable

__all__ = ["open_tars", "refuse_compressed", "refuse_compressed_name"]

_COMPRESSED_NAMES = re.compile(r".*\.(tgz|tbz2?|txz|tzst|tar\.(gz|bz2|xz|zst|lz4|Z))", re.IGNORECASE | re.DOTALL)
_COMPRESSED_STARTS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_MAX_LABEL_MEMBER_BYTES = 16 * MIB
_BLOCK_BYTES = 512
_MAX_PADDING_BYTES = 4 * MIB  # of zeros after the end of an archive


@contextmanager
def open_tars(
    shards: Sequence[str],
    *,
    extensions: tuple[str, ...],
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Iterator[Rows]:
    """Open tar shards in the order given.

    Args:
        shards: absolute paths.
        extensions: extensions of images, in lower case.
        columns: other names for the columns, or a selection of them.
        root: a folder that contains all shards, or a URL. Their common parent by default.

    Memory: constant: one sample's members.

    Raises:
        ArgumentError: a shard is compressed, or a sample's members differ from the first sample's.
        StorageError: a shard is truncated, damaged or cannot be read.
    """
    parent = os.path.commonpath([os.path.dirname(shard) for shard in shards])  # noqa: PTH120
    base, prefix = root_and_prefix(parent, root)
    left_out = LeftOut()
    samples = chain.from_iterable(
        _samples(shard, prefix + shard[len(parent) :].lstrip("/"), extensions, left_out) for shard in shards
    )
    first = next(samples, None)
    if first is None:
        raise ArgumentError(
            f"{printable(shards[0])}{f' and {len(shards) - 1} others' if len(shards) > 1 else ''}: no image found. "
            f"Every sample needs an image. Names of images end in {', '.join(extensions)}"
        )
    chosen, cells = choose_cells(first, chain([first], samples), ColumnType.SPAN, columns, left_out)
    yield Rows(columns=chosen, root=base, cells=cells, left_out=left_out)


def refuse_compressed_name(path: str) -> None:
    """Raise `ArgumentError` if the file has the name of a compressed tar."""
    if _COMPRESSED_NAMES.fullmatch(path):
        raise ArgumentError(f"{printable(path)}: is a compressed tar. {_COMPRESSED}")


def refuse_compressed(path: str, head: bytes) -> None:
    """Raise `ArgumentError` if the file's first bytes, `head`, are those of a compressed file."""
    for start, name in _COMPRESSED_STARTS.items():
        if head.startswith(start):
            raise ArgumentError(f"{printable(path)}: is compressed with {name}. {_COMPRESSED}")


_COMPRESSED = "Its members cannot be read one by one. Decompress it: images are compressed already, so it hardly grows"


def _samples(shard: str, path: str, extensions: tuple[str, ...], left_out: LeftOut) -> Iterator[Sample]:
    """Yield the samples of a shard. `path` is the shard's path relative to the root."""
    try:
        with Path(shard).open("rb") as file:
            refuse_compressed(shard, file.read(8))
            file.seek(0)
            yield from group_members(shard, _named(shard, path, file, extensions, left_out), left_out)
    except tarfile.TarError as error:
        raise StorageError(f"{printable(shard)}: is not a complete tar file: {error}. {_COPY}") from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{printable(shard)}: cannot be read: {error.strerror or error}") from error


def _named(shard: str, path: str, file: BinaryIO, extensions: tuple[str, ...], left_out: LeftOut) -> Iterator[Member]:
    """Yield the members that are images, labels or attached files."""
    for member in _members(shard, file, left_out):
        key, extension = split_name(member.name)
        name = member.name
        cell = Span(path, member.offset_data, member.size)
        if key and f".{extension}".endswith(extensions):
            _refuse_scattered(shard, member)
            yield Member(name=name, key=key, column=column_name(extension), cell=cell)
        elif key and extension == "cls":
            _refuse_scattered(shard, member)
            label, _ = _read_label(shard, file, member, extension)
            yield Member(name=name, key=key, label=label)
        elif key and is_attached(extension) and not member.isdir():
            _refuse_scattered(shard, member)
            label, has_more = _read_label(shard, file, member, extension) if extension == "json" else (None, True)
            yield Member(name=name, key=key, cell=cell, label=label, is_column=has_more)
        elif not member.isdir():
            left_out.add(Reason.MEMBER, f"{shard}: {name}")


def _members(shard: str, file: BinaryIO, left_out: LeftOut) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # otherwise it would keep all members
            yield member
        # tarfile treats an unreadable header as the end of the archive, so check for the end marker.
        file.seek(tar.offset)
        marker = file.read(_BLOCK_BYTES)
    if not marker:
        raise StorageError(f"{printable(shard)}: ends at byte {tar.offset} without an end-of-archive marker. {_COPY}")
    if marker.strip(b"\0"):
        raise StorageError(f"{printable(shard)}: has no valid member header at byte {tar.offset}. {_COPY}")
    if _is_archive_next(file):
        left_out.add(Reason.JOINED, shard)


def _is_archive_next(file: BinaryIO) -> bool:
    """Whether the next block that is not zeros is the header of a member, as in tars that `cat` has joined."""
    end = file.tell() + _MAX_PADDING_BYTES
    while file.tell() < end and (data := file.read(_BLOCK_BYTES * 128)):
        if rest := data.lstrip(b"\0"):
            start = (len(data) - len(rest)) // _BLOCK_BYTES * _BLOCK_BYTES
            try:
                tarfile.TarInfo.frombuf(data[start : start + _BLOCK_BYTES], tarfile.ENCODING, "surrogateescape")
            except tarfile.TarError:
                return False
            return True
    return False


_COPY = "Is it a complete copy? Copy or write it again"


def _refuse_scattered(shard: str, member: tarfile.TarInfo) -> None:
    kind = "a link" if member.islnk() or member.issym() else "sparse" if member.issparse() else ""
    if kind or not member.isreg():
        raise ArgumentError(
            f"{printable(shard)}: member {printable(member.name)} is {kind or 'not a regular file'}, so its bytes are "
            "not stored in one piece. Write the shard again with plain files (tar --hard-dereference --dereference)"
        )


def _read_label(shard: str, file: BinaryIO, member: tarfile.TarInfo, extension: str) -> tuple[int | None, bool]:
    """Return the label in a member, as `label_in` does."""
    where = f"{printable(shard)}: member {printable(member.name)}"
    if member.size > _MAX_LABEL_MEMBER_BYTES:
        raise ArgumentError(f"{where} has {member.size} bytes, but a label has at most {_MAX_LABEL_MEMBER_BYTES}")
    file.seek(member.offset_data)
    data = file.read(member.size)
    if len(data) < member.size:
        raise StorageError(f"{where} is truncated at byte {member.offset_data + len(data)}. {_COPY}")
    return label_in(where, data, extension)
