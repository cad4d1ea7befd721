"""The sidecar of an index text: an Arrow IPC file that says where each line starts, and its label.

It is derived and disposable: built in one pass and constant memory, published by a rename, rebuilt when the text has
changed.
Columns: `offset: uint64`, `label: int64` where the text has a label column, `nbytes: int64` where sizes were asked for.
Uncompressed record batches of 2**20 rows, so that a column's rows lie at regular places of the file. The schema's
metadata name those places, under a checksum of their own, so that opening takes a few small reads and every process
reads columns without pyarrow (`mpload.index.lookup`). The metadata of each record batch hold the checksums of its rows,
block by block.
"""

import contextlib
import hashlib
import json
import operator
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs
import pyarrow as pa
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from mpload.errors import SidecarError
from mpload.index.columns import format_columns
from mpload.index.lookup import BATCH_ROWS, DTYPES, Place, SidecarFile, SidecarLayout, checks_of
from mpload.index.scan import Scan
from mpload.index.text import MAX_LINE_BYTES, Header
from mpload.units import MIB

__all__ = ["SIDECAR_VERSION", "Progress", "TextStamp", "ensure_sidecar", "find_sidecar", "rewrite_sidecar"]

SIDECAR_VERSION = 2
_LOCK_SECONDS = 3600.0
_CHECKS = "mpload.checks"
_TOTALS = b"mpload.totals"
_ARROW, _END_BYTES = b"ARROW1\0\0", 10
"""How an Arrow file begins; its last bytes are the footer's length and the first six of these."""
_MAX_HEAD_BYTES = 4096
"""What a record batch's message holds above its rows besides the checksums."""
_SMALL_BYTES = 4 * MIB
"""A sidecar of so many bytes is checked when it is opened, in some milliseconds; a larger one where it is read."""
_TOTALS_BYTES = 512
"""Room for what is known at the end only: at most 430, with numbers of 15 digits."""

Progress = Callable[[int], None]
"""Told now and then how many samples are done."""

_Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStamp:
    """What tells one state of a text file from another without reading it."""

    num_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, file: Path | int) -> "TextStamp":
        """Return the stamp of a path or an open descriptor."""
        status = os.stat(file)  # noqa: PTH116  descriptors too
        return cls(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def find_sidecar(text: Path, header: Header) -> SidecarLayout | None:
    """Return the layout of a sidecar that fits `text` as it is now, or None."""
    for path in _places(text):
        with contextlib.suppress(SidecarError, FileNotFoundError):
            return _locate(path, text, header)
    return None


def ensure_sidecar(text: Path, header: Header, *, progress: Progress | None = None) -> SidecarLayout:
    """Return the layout of the sidecar of `text`, which is built where there is none that fits.

    Process: of several processes that come at once on a machine, one builds and the others wait.

    Raises:
        IndexFormatError: a line of the text breaks the format.
        SidecarError: no sidecar can be written, beside the text or in the cache folder.
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
    """Publish a sidecar with other columns for a text whose number of samples and digest are known."""
    with _lock(text):
        return _publish(text, header, rows, lambda: (num_samples, digest), progress)


def _rows_of(scan: Scan) -> Iterator[_Rows]:
    for block in scan:
        yield {"offset": block.offsets} | ({} if block.labels is None else {"label": block.labels})


def _places(text: Path) -> list[Path]:
    """Return where a sidecar may lie: beside the text, else in the user's cache folder."""
    name = hashlib.blake2b(os.fsencode(text.absolute()), digest_size=16).hexdigest()
    return [text.with_name(text.name + ".mpx"), platformdirs.user_cache_path("mpload") / "sidecars" / f"{name}.mpx"]


@contextlib.contextmanager
def _lock(text: Path) -> Iterator[None]:
    # Not beside the text: flock wants a file that stays, and a rename makes a race between machines harmless.
    folder = platformdirs.user_cache_path("mpload") / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _places(text)[1].with_suffix(".lock").name, timeout=_LOCK_SECONDS)
        lock.acquire()
    except Timeout as error:
        raise SidecarError(
            f"{text}: another process has been building the sidecar for {_LOCK_SECONDS:.0f} s"
        ) from error
    except OSError:  # no place for locks: build twice rather than not at all
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _publish(
    text: Path,
    header: Header,
    rows: Iterable[_Rows],
    totals: Callable[[], tuple[int, str]],
    progress: Progress | None,
) -> SidecarLayout:
    stamp = TextStamp.of(text)
    refused: list[OSError] = []
    for path in _places(text):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
            unfinished.touch(exist_ok=False)
        except OSError as error:  # read-only, or no right to write there
            refused.append(error)
            continue
        try:
            _write(unfinished, header, stamp, rows, totals, progress)
            if TextStamp.of(text) != stamp:
                raise SidecarError(f"{text}: changed while its sidecar was being built. Try again when it is finished")
            unfinished.replace(path)
        except OSError as error:
            raise SidecarError(
                f"{path}: the sidecar cannot be written: {error.strerror or error}. It takes 16 bytes a sample; "
                "make room there, or put the index on another disk"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
        return _locate(path, text, header)
    raise SidecarError(
        f"{text}: no place for its sidecar ({'; '.join(map(str, refused))}). "
        "Make the folder writable, or set XDG_CACHE_HOME to a folder that is"
    )


def _write(
    path: Path,
    header: Header,
    stamp: TextStamp,
    rows: Iterable[_Rows],
    totals: Callable[[], tuple[int, str]],
    progress: Progress | None,
) -> None:
    """Write the file. What is known at the end only is patched in, over a token as long as its room."""
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
            checks = b"".join(checks_of(values.tobytes(), done, seed=seed) for values in batch.values())
            arrays = [pa.array(values) for values in batch.values()]
            writer.write_batch(pa.record_batch(arrays, schema=schema), custom_metadata={_CHECKS.encode(): checks})
            done += len(batch["offset"])
            if progress is not None:
                progress(done)
        assert writer is not None, "a text without samples does not come this far"
        writer.close()
    num_samples, digest = totals()
    found = {"num_samples": num_samples, "digest": digest, "file_bytes": path.stat().st_size} | _places_in(path, done)
    text = json.dumps({"check": _check_of(metadata, found)} | found)
    _patch(path, token.encode(), text.encode().ljust(_TOTALS_BYTES))


def _check_of(metadata: Mapping[bytes, bytes], totals: Mapping[str, Any]) -> str:
    """Return the checksum of a sidecar's metadata."""
    words = [word for pair in sorted(metadata.items()) for word in pair]
    text = json.dumps(totals, sort_keys=True).encode()
    return hashlib.blake2b(b"\n".join([*words, text]), digest_size=16).hexdigest()


def _seed_of(metadata: Mapping[bytes, bytes]) -> int:
    """Return what the checksums of rows start from: rows of another text are not taken for those of this one."""
    return zlib.crc32(metadata[b"mpload.text"])


def _places_in(path: Path, num_rows: int) -> dict[str, Any]:
    """Return where columns and checksums lie in a file just written, as Arrow finds them there."""
    num_full = num_rows // BATCH_ROWS
    with pa.memory_map(str(path)) as source:
        buffer = source.read_buffer()
        reader = pa.ipc.open_file(pa.BufferReader(buffer))
        names = reader.schema.names

        def starts(number: int) -> dict[str, int]:
            batch, metadata = reader.get_batch_with_custom_metadata(number)
            rows = {name: batch.column(name).buffers()[1] for name in names}
            found = {name: values.address - buffer.address for name, values in rows.items() if values is not None}
            checks = metadata[_CHECKS.encode()]
            end = found[names[0]]
            before = max(end - len(checks) - _MAX_HEAD_BYTES, 0)
            found[_CHECKS] = before + buffer.slice(before, end - before).to_pybytes().rindex(checks)
            return found

        first = starts(0)
        second = starts(1) if num_full > 1 else first
        last = starts(num_full) if num_rows > num_full * BATCH_ROWS else dict.fromkeys(first, 0)
        strides = {name: second[name] - first[name] for name in first}
        if num_full > 1 and starts(num_full - 1) != {n: first[n] + (num_full - 1) * strides[n] for n in first}:
            raise SidecarError(f"{path}: its record batches do not lie at regular places. Is this Arrow a new one?")
    places = {name: [first[name], strides[name], last[name]] for name in first}
    return {"checks": places.pop(_CHECKS), "columns": places}


def _regroup(rows: Iterable[_Rows]) -> Iterator[_Rows]:
    """Yield the rows in groups of exactly `BATCH_ROWS`, but for the last."""
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
    """Replace `token` in the schema, which an Arrow file holds at its start and again at its end."""
    size = path.stat().st_size
    window = min(1 << 16, size)
    with path.open("r+b") as file:
        while len(places := _find_at_ends(file, token, size, window)) < 2 and window < size:
            window = min(4 * window, size)  # many classes or record batches: never read much more than the schema
        for place in places:
            file.seek(place)
            file.write(value)


def _find_at_ends(file: BinaryIO, token: bytes, size: int, window: int) -> set[int]:
    """Return where `token` stands first in the first `window` bytes of a file, and last in its last ones."""
    file.seek(0)
    places = {file.read(window).find(token)}
    file.seek(size - window)
    if (place := file.read(window).rfind(token)) >= 0:
        places.add(size - window + place)
    return places - {-1}


def _locate(path: Path, text: Path, header: Header) -> SidecarLayout:
    """Find the columns in the file, and check that it belongs to `text` as it is."""
    try:
        layout = _read(path, text, header)
        if layout.file_bytes <= _SMALL_BYTES:
            _check_rows(layout)
        _check_boundaries(layout, text, header)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise SidecarError(
            f"{path}: is not a sidecar, or a broken one: {error}. It is rebuilt from the text"
        ) from error
    return layout


def _footer(file: BinaryIO) -> pa.BufferReader:
    """Return the end of an Arrow file, which says all that a reader wants to know at first.

    From a file Arrow would read it by threads of its own: no process that may fork should have them, and with
    pyarrow 17 they abort a process that ends soon.
    """
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, num_bytes - _END_BYTES))
    end = file.read()
    footer_bytes = int.from_bytes(end[:4], "little")
    if len(end) != _END_BYTES or footer_bytes > num_bytes - _END_BYTES:
        raise ValueError("it is cut off")
    file.seek(num_bytes - _END_BYTES - footer_bytes)
    return pa.BufferReader(_ARROW + file.read())


def _read(path: Path, text: Path, header: Header) -> SidecarLayout:
    with open(path, "rb", opener=_open_at_once) as file:
        metadata = dict(pa.ipc.open_file(_footer(file)).schema.metadata or {})
    if metadata[b"mpload.version"] != str(SIDECAR_VERSION).encode():
        raise SidecarError(f"{path}: has version {metadata[b'mpload.version']!r}, not {SIDECAR_VERSION}")
    totals = json.loads(metadata.pop(_TOTALS))
    if totals.pop("check") != _check_of(metadata, totals):
        raise SidecarError(f"{path}: is damaged: its metadata do not have the checksum that was stored with them")
    stamp = TextStamp(**json.loads(metadata[b"mpload.text"]))
    if stamp != TextStamp.of(text) or metadata[b"mpload.columns"].decode() != format_columns(header.columns):
        raise SidecarError(f"{path}: belongs to another state of {text}")
    if ("label" in totals["columns"]) != (header.label_column is not None):
        raise SidecarError(f"{path}: has labels where the text has none, or none where it has")
    return SidecarLayout(
        path=path,
        file_bytes=operator.index(totals["file_bytes"]),
        num_samples=operator.index(totals["num_samples"]),
        digest=str(totals["digest"]),
        columns={name: _place(numbers) for name, numbers in totals["columns"].items()},
        checks=_place(totals["checks"]),
        seed=_seed_of(metadata),
    )


def _open_at_once(path: str, flags: int) -> int:
    """Open a FIFO without waiting for its other end: Arrow then sees that it is no file."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _place(numbers: list[int]) -> Place:
    first, stride, last = map(operator.index, numbers)
    return Place(first_bytes=first, stride_bytes=stride, last_bytes=last)


def _check_rows(layout: SidecarLayout) -> None:
    """Read all rows, which are compared with their checksums."""
    for column in SidecarFile(layout).columns.values():
        for _ in column.blocks():
            pass


def _check_boundaries(layout: SidecarLayout, text: Path, header: Header) -> None:
    """Look into the text where record batches begin and end: rows that lie elsewhere would be those of other lines."""
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
        raise SidecarError(f"{layout.path}: its rows are not those of the lines of {text}")
