"""The sidecar of an index text: an Arrow IPC file with the offset and label of each line.

It holds only derived data: it is built in one pass and constant memory, published by a rename, and rebuilt when the
text has changed.

Its columns are `offset: uint64`; `label: int64` if the text has a label column; and `nbytes: int64` if sizes were
requested. Record batches are uncompressed and have 2**20 rows, so that the rows of a column are stored at regular
offsets. The schema's metadata lists these offsets and is protected by its own checksum. Therefore opening a sidecar
takes only a few small reads, and processes read columns without pyarrow (`mpload.index.lookup`). The metadata of each
record batch holds the checksums of its rows, block by block.
"""

import contextlib
import hashlib
import json
import mmap
import operator
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mpload.errors import SidecarError
from mpload.index.columns import format_columns
from mpload.index.derived import derived_paths, machine_lock
from mpload.index.lookup import BATCH_ROWS, DTYPES, BatchOffsets, SidecarFile, SidecarLayout, checks_of
from mpload.index.open_file import raise_if_limited
from mpload.index.scan import Scan
from mpload.index.text import MAX_LINE_BYTES, Header
from mpload.index.unfinished import unfinished_file
from mpload.units import MIB

__all__ = ["SIDECAR_VERSION", "Progress", "TextStamp", "ensure_sidecar", "find_sidecar", "rewrite_sidecar", "stamp_in"]

SIDECAR_VERSION = 2
_LOCK_SECONDS = 3600.0
_CHECKS = "mpload.checks"
_TOTALS = b"mpload.totals"
_ARROW, _END_BYTES = b"ARROW1\0\0", 10
"""The first bytes of an Arrow file, and the size of its end: the footer's length, then six of the same bytes."""
_MAX_HEAD_BYTES = 4096
"""Upper bound on what precedes the rows in a record batch's message, apart from the checksums."""
_SMALL_BYTES = 4 * MIB
"""A sidecar of up to this size is verified when opened, within a few milliseconds. Larger ones are verified as read."""
_TOTALS_BYTES = 512
"""Space reserved for values that are known only at the end: at most 430 bytes, given numbers of 15 digits."""

Progress = Callable[[int], None]
"""Called from time to time with the number of samples processed so far."""

_Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStamp:
    """Size and modification time of a text file, to detect changes without reading it."""

    num_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, file: Path | int) -> "TextStamp":
        """Return the stamp of a path or an open descriptor."""
        status = os.stat(file)  # noqa: PTH116  descriptors too
        return cls(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


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
        scan = Scan(path=text, header=header)
        return _publish(text, header, _rows_of(scan), lambda: (scan.num_samples, scan.digest), progress)


def rewrite_sidecar(
    text: Path,
    header: Header,
    rows: Iterable[_Rows],
    *,
    num_samples: int,
    digest: str,
    progress: Progress | None = None,
) -> SidecarLayout:
    """Replace the sidecar of `text` by one with the columns in `rows`. The text is not scanned again."""
    with _lock(text):
        return _publish(text, header, rows, lambda: (num_samples, digest), progress)


def _rows_of(scan: Scan) -> Iterator[_Rows]:
    for block in scan:
        yield {"offset": block.offsets} | ({} if block.labels is None else {"label": block.labels})


def _candidates(text: Path) -> list[Path]:
    return derived_paths(text, suffix=".mpx", folder="sidecars")


def _lock(text: Path) -> contextlib.AbstractContextManager[bool]:
    busy = f"{text}: another process has been building the sidecar for {_LOCK_SECONDS:.0f} s. Try again later"
    return machine_lock(_candidates(text)[1].stem, limit_seconds=_LOCK_SECONDS, busy=SidecarError(busy))


def _publish(
    text: Path,
    header: Header,
    rows: Iterable[_Rows],
    totals: Callable[[], tuple[int, str]],
    progress: Progress | None,
) -> SidecarLayout:
    stamp = TextStamp.of(text)
    failures: list[OSError] = []
    for path in _candidates(text):
        with contextlib.ExitStack() as stack:
            try:
                unfinished = stack.enter_context(unfinished_file(path))
            except OSError as error:  # a read-only file system, or permission denied
                raise_if_limited(path, error)
                failures.append(error)
                continue
            try:
                _write(unfinished, header, stamp, rows, totals, progress)
                if TextStamp.of(text) != stamp:
                    raise SidecarError(f"{text}: changed while its sidecar was being built. Try again when it is done")
                unfinished.replace(path)
            except OSError as error:
                raise_if_limited(path, error)
                raise SidecarError(
                    f"{path}: the sidecar cannot be written: {error.strerror or error}. It takes 16 bytes per sample. "
                    "Free some space, or put the index on another disk"
                ) from error
        return _locate(path, text, header)
    raise SidecarError(
        f"{text}: its sidecar cannot be written anywhere ({'; '.join(map(str, failures))}). "
        "Make the folder writable, or set XDG_CACHE_HOME to a writable folder"
    )


def _write(
    path: Path,
    header: Header,
    stamp: TextStamp,
    rows: Iterable[_Rows],
    totals: Callable[[], tuple[int, str]],
    progress: Progress | None,
) -> None:
    """Write the file. Values known only at the end are patched in later, over a token that reserves their space."""
    token = secrets.token_hex(_TOTALS_BYTES // 2)
    known = {
        "mpload.version": str(SIDECAR_VERSION),
        "mpload.text": json.dumps({"num_bytes": stamp.num_bytes, "mtime_ns": stamp.mtime_ns}),
        "mpload.columns": format_columns(header.columns),
        "mpload.root": header.root or "",
        "mpload.classes": json.dumps(header.classes),
    }
    metadata = {key.encode(): text.encode("utf-8", "replace") for key, text in known.items()}
    seed = _seed_of(metadata)
    with path.open("wb") as file:
        writer = None
        done = 0
        for batch in _regroup(rows):
            if writer is None:
                fields = [pa.field(name, pa.from_numpy_dtype(DTYPES[name]), nullable=False) for name in batch]
                schema = pa.schema(fields, metadata=dict([*metadata.items(), (_TOTALS, token.encode())]))
                writer = pa.ipc.new_file(file, schema)
            data = [values.tobytes() for values in batch.values()]
            checks = b"".join(checks_of(each, done, seed=seed) for each in data)
            buffers = zip(schema.types, map(pa.py_buffer, data), strict=True)  # `pa.array` would import pandas
            arrays = [pa.Array.from_buffers(kind, len(batch["offset"]), [None, buffer]) for kind, buffer in buffers]
            writer.write_batch(pa.record_batch(arrays, schema=schema), custom_metadata={_CHECKS.encode(): checks})
            done += len(batch["offset"])
            if progress is not None:
                progress(done)
        assert writer is not None, "a scan raises for a text without samples"
        writer.close()
    num_samples, digest = totals()
    found = {"num_samples": num_samples, "digest": digest, "file_bytes": path.stat().st_size} | _offsets_in(path, done)
    text = json.dumps({"check": _check_of(metadata, found)} | found)
    _patch(path, token.encode(), text.encode().ljust(_TOTALS_BYTES))


def _check_of(metadata: Mapping[bytes, bytes], totals: Mapping[str, Any]) -> str:
    """Return the checksum of a sidecar's metadata."""
    words = [word for pair in sorted(metadata.items()) for word in pair]
    text = json.dumps(totals, sort_keys=True).encode()
    return hashlib.blake2b(b"\n".join([*words, text]), digest_size=16).hexdigest()


def _seed_of(metadata: Mapping[bytes, bytes]) -> int:
    """Return the initial value of the row checksums. It depends on the text, so rows of another text do not match."""
    return zlib.crc32(metadata[b"mpload.text"])


def _offsets_in(path: Path, num_rows: int) -> dict[str, Any]:
    """Return the offsets of columns and checksums in a file just written, as determined by reading it with Arrow."""
    num_full = num_rows // BATCH_ROWS
    with path.open("rb") as file:
        buffer = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # `pa.memory_map` needs UTF-8
        reader = pa.ipc.open_file(pa.BufferReader(buffer))
        names = reader.schema.names

        def starts(number: int) -> dict[str, int]:
            batch, metadata = reader.get_batch_with_custom_metadata(number)
            rows = {name: batch.column(name).buffers()[1] for name in names}
            offsets = {name: values.address - buffer.address for name, values in rows.items() if values is not None}
            checks = metadata[_CHECKS.encode()]
            end = offsets[names[0]]
            before = max(end - len(checks) - _MAX_HEAD_BYTES, 0)
            offsets[_CHECKS] = before + buffer.slice(before, end - before).to_pybytes().rindex(checks)
            return offsets

        first = starts(0)
        second = starts(1) if num_full > 1 else first
        last = starts(num_full) if num_rows > num_full * BATCH_ROWS else dict.fromkeys(first, 0)
        strides = {name: second[name] - first[name] for name in first}
        if num_full > 1 and starts(num_full - 1) != {n: first[n] + (num_full - 1) * strides[n] for n in first}:
            raise SidecarError(f"{path}: its record batches are not at regular offsets. Install an older pyarrow")
    offsets = {name: [first[name], strides[name], last[name]] for name in first}
    return {"checks": offsets.pop(_CHECKS), "columns": offsets}


def _regroup(rows: Iterable[_Rows]) -> Iterator[_Rows]:
    """Yield the rows in groups of exactly `BATCH_ROWS`; the last group may be smaller."""
    buffer: _Rows = {}
    filled = 0
    for block in rows:
        if not buffer:
            buffer = {name: np.empty(BATCH_ROWS, values.dtype) for name, values in block.items()}
        start = 0
        while start < len(block["offset"]):
            count = min(len(block["offset"]) - start, BATCH_ROWS - filled)
            for name, values in block.items():
                buffer[name][filled : filled + count] = values[start : start + count]
            start += count
            filled += count
            if filled == BATCH_ROWS:
                yield buffer
                filled = 0
    if filled:
        yield {name: values[:filled] for name, values in buffer.items()}


def _patch(path: Path, token: bytes, value: bytes) -> None:
    """Replace `token` in both copies of the schema, one at the start of an Arrow file and one at its end."""
    size = path.stat().st_size
    window = min(1 << 16, size)
    with path.open("r+b") as file:
        while len(offsets := _find_at_ends(file, token, size, window)) < 2 and window < size:
            window = min(4 * window, size)  # a large schema: many classes or record batches
        for offset in offsets:
            file.seek(offset)
            file.write(value)


def _find_at_ends(file: BinaryIO, token: bytes, size: int, window: int) -> set[int]:
    """Return the offsets of the first `token` in the first `window` bytes of a file, and the last in its last ones."""
    file.seek(0)
    offsets = {file.read(window).find(token)}
    file.seek(size - window)
    if (offset := file.read(window).rfind(token)) >= 0:
        offsets.add(size - window + offset)
    return offsets - {-1}


def _locate(path: Path, text: Path, header: Header) -> SidecarLayout:
    """Return the layout of the sidecar at `path`, after checking that it matches the current state of `text`."""
    try:
        layout = _read(path, text, header)
        if layout.file_bytes <= _SMALL_BYTES:
            _check_rows(layout)
        _check_boundaries(layout, text, header)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise_if_limited(path, error)
        raise SidecarError(f"{path}: is not a sidecar, or is damaged: {error}. It is rebuilt from the text") from error
    return layout


def _footer(file: BinaryIO) -> pa.BufferReader:
    """Return the end of an Arrow file, which is all that Arrow needs to read the schema.

    If given the file itself, Arrow would read it by threads of its own. A process that may fork should not have these,
    and with pyarrow 17 they abort a process that exits soon afterwards.
    """
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, num_bytes - _END_BYTES))
    end = file.read()
    footer_bytes = int.from_bytes(end[:4], "little")
    if len(end) != _END_BYTES or footer_bytes > num_bytes - _END_BYTES:
        raise ValueError("it is truncated")
    file.seek(num_bytes - _END_BYTES - footer_bytes)
    return pa.BufferReader(_ARROW + file.read())


def stamp_in(path: Path) -> TextStamp:
    """Return the stamp of the text that the sidecar at `path` was built for.

    Raises:
        SidecarError: it is not a sidecar, or is damaged.
    """
    try:
        return TextStamp(**json.loads(_metadata(path)[b"mpload.text"]))
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError) as error:
        raise SidecarError(f"{path}: is not a sidecar, or is damaged: {error}") from error


def _metadata(path: Path) -> dict[bytes, bytes]:
    with open(path, "rb", opener=_open_at_once) as file:
        return dict(pa.ipc.open_file(_footer(file)).schema.metadata or {})


def _read(path: Path, text: Path, header: Header) -> SidecarLayout:
    metadata = _metadata(path)
    if metadata[b"mpload.version"] != str(SIDECAR_VERSION).encode():
        raise SidecarError(f"{path}: has version {metadata[b'mpload.version'].decode()}, not {SIDECAR_VERSION}")
    totals = json.loads(metadata.pop(_TOTALS))
    if totals.pop("check") != _check_of(metadata, totals):
        raise SidecarError(f"{path}: is damaged: its metadata does not match its checksum")
    stamp = TextStamp(**json.loads(metadata[b"mpload.text"]))
    if stamp != TextStamp.of(text) or metadata[b"mpload.columns"].decode() != format_columns(header.columns):
        raise SidecarError(f"{path}: belongs to another state of {text}")
    if ("label" in totals["columns"]) != (header.label_column is not None):
        raise SidecarError(f"{path}: has labels but the text has none, or the reverse")
    return SidecarLayout(
        path=path,
        file_bytes=operator.index(totals["file_bytes"]),
        num_samples=operator.index(totals["num_samples"]),
        digest=str(totals["digest"]),
        columns={name: _batch_offsets(numbers) for name, numbers in totals["columns"].items()},
        checks=_batch_offsets(totals["checks"]),
        seed=_seed_of(metadata),
    )


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, but do not block if it is a FIFO. Arrow then fails, as a FIFO is not an Arrow file."""
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
