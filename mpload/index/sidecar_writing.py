"""Writes a sidecar in one pass and constant memory. `mpload.index.sidecar` describes the file."""

import json
import mmap
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from mpload.errors import SidecarError
from mpload.index.columns import format_columns
from mpload.index.lookup import BATCH_ROWS, DTYPES, checks_of
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
from mpload.index.text import Header

__all__ = ["write_sidecar"]

_CHECKS = "mpload.checks"
_MAX_HEAD_BYTES = 4096
"""Upper bound on what precedes the rows in a record batch's message, apart from the checksums."""
_TOTALS_BYTES = 512
"""Space reserved for values that are known only at the end: at most 430 bytes, given numbers of 15 digits."""


def write_sidecar(
    path: Path,
    header: Header,
    stamp: TextStamp,
    rows: Iterable[Rows],
    totals: Callable[[], tuple[int, str]],
    progress: Progress | None,
) -> None:
    """Write a sidecar; `totals` returns the number of samples and the digest when all rows were read.

    Values known only at the end are patched in later, over a token that reserves their space.
    """
    token = secrets.token_hex(_TOTALS_BYTES // 2)
    known = {
        "mpload.version": str(SIDECAR_VERSION),
        "mpload.text": json.dumps({"num_bytes": stamp.num_bytes, "mtime_ns": stamp.mtime_ns}),
        "mpload.columns": format_columns(header.columns),
        "mpload.root": header.root or "",
        "mpload.classes": json.dumps(header.classes),
    }
    if label := unlike_before(header):
        known[LABEL_KEY.decode()] = label
    metadata = {key.encode(): text.encode("utf-8", "replace") for key, text in known.items()}
    seed = seed_of(metadata)
    with path.open("wb") as file:
        writer = None
        done = 0
        for batch in _regroup(rows):
            if writer is None:
                fields = [pa.field(name, pa.from_numpy_dtype(DTYPES[name]), nullable=False) for name in batch]
                schema = pa.schema(fields, metadata=dict([*metadata.items(), (TOTALS_KEY, token.encode())]))
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
    text = json.dumps({"check": check_of(metadata, found)} | found)
    _patch(path, token.encode(), text.encode().ljust(_TOTALS_BYTES))


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


def _regroup(rows: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the rows in groups of exactly `BATCH_ROWS`; the last group may be smaller."""
    buffer: Rows = {}
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
