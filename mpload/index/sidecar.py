"""The sidecar of an index text: an Arrow IPC file with the offset and label of each line.

It holds only derived data: it is built in one pass and constant memory, published by a rename, and rebuilt when the
text has changed. The text's size and modification time tell whether it has, see `mpload.index.settling`.

Its columns are `offset: uint64`; `label: int64` if the text has a label column; and `nbytes: int64` if sizes were
requested. Record batches are uncompressed and have 2**20 rows, so that the rows of a column are stored at regular
offsets. The schema's metadata lists these offsets and is protected by its own checksum. Therefore opening a sidecar
takes only a few small reads, and processes read columns without pyarrow (`mpload.index.lookup`). The metadata of each
record batch holds the checksums of its rows, block by block.
"""

import contextlib
import errno
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mpload.errors import MploadError, SidecarError
from mpload.index.arrow_metadata import arrow_metadata
from mpload.index.columns import format_columns
from mpload.index.derived import derived_name, derived_paths, machine_lock
from mpload.index.lookup import BATCH_ROWS, BatchOffsets, SidecarFile, SidecarLayout
from mpload.index.open_file import raise_if_limited
from mpload.index.scan import Scan
from mpload.index.settling import settled_stamp
from mpload.index.sidecar_metadata import (
    LABEL_KEY,
    SIDECAR_VERSION,
    TOTALS_KEY,
    Progress,
    Rows,
    TextStamp,
    check_of,
    seed_of,
    unlike_before,
)
from mpload.index.text import MAX_LINE_BYTES, Header
from mpload.index.trusted import check_trusted, places_to_write
from mpload.index.unfinished import unfinished_file
from mpload.units import MIB

__all__ = ["SIDECAR_VERSION", "Progress", "TextStamp", "ensure_sidecar", "find_sidecar", "rewrite_sidecar", "stamp_in"]

_LOCK_SECONDS = 3600.0
_SMALL_BYTES = 4 * MIB
"""A sidecar of up to this size is verified when opened, within a few milliseconds. Larger ones are verified as read."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_Contents = tuple[Iterable[Rows], Callable[[], tuple[int, str]]]
"""The rows of a sidecar, and what returns the number of samples and the digest when all rows were read."""


def find_sidecar(text: Path, header: Header) -> SidecarLayout | None:
    """Return the layout of a sidecar that matches the current state of `text`, or None if there is none."""
    for path in _candidates(text):
        with contextlib.suppress(SidecarError, FileNotFoundError):
            return _locate(path, text, header)
    return None


def ensure_sidecar(text: Path, header: Header, *, progress: Progress | None = None) -> SidecarLayout:
    """Return the layout of the sidecar of `text`. Build the sidecar first unless a matching one exists.

    Process: if several processes of a machine call this at once, one builds the sidecar and the others wait.

    Raises:
        IndexFormatError: a line of the text breaks the format.
        SidecarError: a sidecar can be written neither beside the text nor in the cache folder.
        StorageError: the limit of open files is reached.
    """
    if (found := find_sidecar(text, header)) is not None:
        return found
    with _lock(text):
        if (found := find_sidecar(text, header)) is not None:
            return found
        return _publish(text, header, lambda: _scanned(text, header), progress)


def rewrite_sidecar(
    text: Path,
    header: Header,
    rows: Callable[[], Iterable[Rows]],
    *,
    num_samples: int,
    digest: str,
    progress: Progress | None = None,
) -> SidecarLayout:
    """Replace the sidecar of `text` by one with the columns in `rows()`. The text is not scanned again.

    `rows` is called once more if the sidecar cannot be written beside the text, but has to be in the cache folder.
    """
    with _lock(text):
        return _publish(text, header, lambda: (rows(), lambda: (num_samples, digest)), progress)


def _scanned(text: Path, header: Header) -> _Contents:
    scan = Scan(path=text, header=header)
    return _rows_of(scan), lambda: (scan.num_samples, scan.digest)


def _rows_of(scan: Scan) -> Iterator[Rows]:
    for block in scan:
        yield {"offset": block.offsets} | ({} if block.labels is None else {"label": block.labels})


def _candidates(text: Path) -> list[Path]:
    return derived_paths(text, suffix=".mpx", folder="sidecars")


def _lock(text: Path) -> contextlib.AbstractContextManager[bool]:
    busy = f"{text}: another process has been building the sidecar for {_LOCK_SECONDS:.0f} s. Try again later"
    return machine_lock(derived_name(text, suffix=""), limit_seconds=_LOCK_SECONDS, busy=SidecarError(busy))


def _publish(text: Path, header: Header, contents: Callable[[], _Contents], progress: Progress | None) -> SidecarLayout:
    write_sidecar = _writer(text)
    stamp = settled_stamp(text)
    failures: list[str] = []
    is_full = False
    for path in places_to_write(_candidates(text), text):
        try:
            with unfinished_file(path) as unfinished:
                write_sidecar(unfinished, header, stamp, *contents(), progress)
                if TextStamp.of(text) != stamp:
                    raise SidecarError(f"{text}: changed while its sidecar was being built. Try again when it is done")
                unfinished.replace(path)
            check_trusted(path, text)  # where root is another user, as on many network file systems
        except OSError as error:  # such as a read-only file system, a full disk, or another user's file at this path
            if isinstance(error, MploadError):  # of the text
                raise
            raise_if_limited(path, error)
            failures.append(f"{path}: {error.strerror or error}")
            is_full = is_full or error.errno in _FULL
        else:
            return _locate(path, text, header)
    advice = "It takes 16 bytes per sample. Free some space" if is_full else "Make the folder writable"
    raise SidecarError(
        f"{text}: the sidecar cannot be written anywhere ({'; '.join(failures)}). {advice}, or set XDG_CACHE_HOME to a "
        "writable folder"
    )


def _writer(text: Path) -> Callable[..., None]:
    """Return what writes sidecars, which imports pyarrow."""
    try:
        from mpload.index.sidecar_writing import write_sidecar  # noqa: PLC0415
    except (ImportError, OSError) as error:
        if isinstance(error, OSError):
            raise_if_limited(text, error)
        raise SidecarError(
            f"{text}: its sidecar cannot be written, since pyarrow cannot be imported: {error}. Run pip install pyarrow"
        ) from error
    return write_sidecar


def _locate(path: Path, text: Path, header: Header) -> SidecarLayout:
    """Return the layout of the sidecar at `path`, after checking that it matches the current state of `text`."""
    try:
        check_trusted(path, text)
        layout = _read(path, text, header)
        if layout.file_bytes <= _SMALL_BYTES:
            _check_rows(layout)
        _check_boundaries(layout, text, header)
    except FileNotFoundError:
        raise
    except (OSError, LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise_if_limited(path, error)
        raise SidecarError(f"{path}: is not a sidecar, or is damaged: {error}. It is rebuilt from the text") from error
    return layout


def stamp_in(path: Path) -> TextStamp:
    """Return the stamp of the text that the sidecar at `path` was built for.

    Raises:
        SidecarError: it is not a sidecar, or is damaged.
    """
    try:
        return TextStamp(**json.loads(_metadata(path)[b"mpload.text"]))
    except (OSError, LookupError, ValueError, TypeError) as error:
        raise SidecarError(f"{path}: is not a sidecar, or is damaged: {error}") from error


def _metadata(path: Path) -> dict[bytes, bytes]:
    with open(path, "rb", opener=_open_at_once) as file:
        return arrow_metadata(file)


def _read(path: Path, text: Path, header: Header) -> SidecarLayout:
    metadata = _metadata(path)
    if metadata[b"mpload.version"] != str(SIDECAR_VERSION).encode():
        raise SidecarError(f"{path}: has version {metadata[b'mpload.version'].decode()}, not {SIDECAR_VERSION}")
    totals = json.loads(metadata.pop(TOTALS_KEY))
    if totals.pop("check") != check_of(metadata, totals):
        raise SidecarError(f"{path}: is damaged: its metadata does not match its checksum")
    stamp = TextStamp(**json.loads(metadata[b"mpload.text"]))
    if stamp != TextStamp.of(text) or metadata[b"mpload.columns"].decode() != format_columns(header.columns):
        raise SidecarError(f"{path}: belongs to another state of {text}")
    if metadata.get(LABEL_KEY, b"").decode() != unlike_before(header):
        raise SidecarError(f"{path}: has the labels of another column")
    if ("label" in totals["columns"]) != (header.label_column is not None):
        raise SidecarError(f"{path}: has labels but the text has none, or the reverse")
    return SidecarLayout(
        path=path,
        file_bytes=operator.index(totals["file_bytes"]),
        num_samples=operator.index(totals["num_samples"]),
        digest=str(totals["digest"]),
        columns={name: _batch_offsets(numbers) for name, numbers in totals["columns"].items()},
        checks=_batch_offsets(totals["checks"]),
        seed=seed_of(metadata),
    )


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, but do not block if it is a FIFO, which is no Arrow file."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _batch_offsets(numbers: list[int]) -> BatchOffsets:
    first, stride, last = map(operator.index, numbers)
    return BatchOffsets(first_bytes=first, stride_bytes=stride, last_bytes=last)


def _check_rows(layout: SidecarLayout) -> None:
    """Read all rows, which compares them with their checksums."""
    for column in SidecarFile(layout).columns.values():
        for _ in column.blocks():
            pass


def _check_boundaries(layout: SidecarLayout, text: Path, header: Header) -> None:
    """Check the lines of the text at the boundaries of record batches. Rows of other lines would not match there."""
    offsets = SidecarFile(layout).columns["offset"]
    num_full = layout.num_samples // BATCH_ROWS
    ends = {number * BATCH_ROWS for number in (1, num_full - 1, num_full) if 0 < number <= num_full}
    with text.open("rb") as file:
        num_bytes = TextStamp.of(file.fileno()).num_bytes

        def holds_a_line(sample_id: int) -> bool:
            start = int(offsets[sample_id])
            end = int(offsets[sample_id + 1]) if sample_id + 1 < layout.num_samples else num_bytes
            if not start < end <= num_bytes:
                return False
            file.seek(start)
            line, _, rest = file.read(min(end - start, MAX_LINE_BYTES + 1)).partition(b"\n")
            return bool(line) and not rest.strip()

        fits = int(offsets[0]) == header.body_bytes and all(
            holds_a_line(end - 1) for end in {*ends, layout.num_samples}
        )
    if not fits:
        raise SidecarError(f"{layout.path}: its rows do not match the lines of {text}")
