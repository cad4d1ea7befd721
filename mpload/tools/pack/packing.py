"""Rewrite the samples of an index into tar shards or LMDB files, and write the index for them.

Shard `k` holds samples `[k S, (k + 1) S)` of the order: any number of workers makes the same bytes, and `verify_pack`
makes each shard again and compares. Sample 42 is `000000042.jpg` with label `000000042.cls`, in plain ustar or LMDB.
"""

import json
import os
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from mpload.errors import ArgumentError, SampleError, StorageError
from mpload.images.decoders import RawBytes
from mpload.index.columns import Cell, Column, ColumnType
from mpload.index.index import Index, Record
from mpload.index.opening import open_index
from mpload.index.text import Dialect, Header, format_line, parse_line
from mpload.ingest.rows import Rows
from mpload.ingest.writing import new_file, new_path, write_texts
from mpload.plan.order import Sequential, Shuffle
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.storage.ranges import LmdbValue, Span
from mpload.tools.pack.lmdb_writer import ComparingLmdb, LmdbWriter
from mpload.tools.pack.options import PackOptions, ShardFormat, stored_as

__all__ = ["PackOptions", "ShardFormat", "pack_index", "verify_pack"]

_VERSION = 1
_INDEX, _MANIFEST, _LOCK = "index.txt", "pack.json", ".lock"
_PROBED_SAMPLES = 256  # to tell how large samples are once they are packed
_BLOCK_BYTES = tarfile.BLOCKSIZE
_GUARD = (
    "workers cannot start: each of them imports the script that called this, and ended over it. Put what the script "
    'does under `if __name__ == "__main__":`, or give num_workers=1'
)


def pack_index(
    index: str | os.PathLike[str] | Index,
    out: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    num_workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write the samples of `index` as tar shards or LMDB files into the folder `out`; return the path of their index.

    Run again after a kill, it goes on where it was.

    Args:
        index: what to pack; labels and other cells come along.
        out: a folder, made where it is missing.
        options: what the shards hold.
        num_workers: processes; the bytes written do not depend on it. Several import the script that calls this, which
            must do so under `if __name__ == "__main__":`.
        progress: told the number of samples packed so far.

    Memory: constant: one sample for each worker.

    Raises:
        ArgumentError: `out` holds something else, or another pack; workers cannot start.
        SampleError: a sample cannot be read or decoded. Shards that are finished are kept.
        StorageError: a shard cannot be written, or a worker was killed. Shards that are finished are kept.
    """
    _check_workers(num_workers)
    folder = Path(out).absolute()
    packer = _prepare(index, folder, options or PackOptions())
    with _locked(folder):
        has_index = (folder / _INDEX).exists()
        if not has_index or any(folder.glob("*.lines")):  # else a reader may be making the sidecar
            for unfinished in folder.glob("*.tmp"):
                unfinished.unlink()
        if not has_index:
            packer.pack(num_workers, progress)
        for lines in folder.glob("*.lines"):
            lines.unlink()
    return folder / _INDEX


def verify_pack(
    index: str | os.PathLike[str] | Index,
    out: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    num_workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Make every shard of a finished pack once more, in memory a sample at a time, and compare.

    Args:
        index: what was packed.
        out: the folder of the pack.
        options: those that it was packed with.
        num_workers: processes, as in `pack_index`.
        progress: told the number of samples compared so far.

    Raises:
        ArgumentError: `out` holds no such pack.
        StorageError: a shard is not, byte for byte, what the index makes; which one and where.
    """
    _check_workers(num_workers)
    folder = Path(out).absolute()
    if not (folder / _INDEX).exists():
        raise ArgumentError(f"{folder}: holds no finished pack. Pack it first: mpload pack INDEX -o {folder}")
    packer = _prepare(index, folder, options or PackOptions())
    num_done = 0
    for shard in _each(packer.compare, range(packer.num_shards), num_workers):
        num_done += packer.num_samples_of([shard])
        if progress is not None:
            progress(num_done)


@dataclass(kw_only=True)
class _Packer:
    """Makes any shard of a pack."""

    source: Index
    folder: Path
    options: PackOptions
    samples_per_shard: int

    def __post_init__(self) -> None:
        self._pipeline = Pipeline(index=self.source, decode=RawBytes(), policy=ErrorPolicy())

    @property
    def num_shards(self) -> int:
        return -(-len(self.source) // self.samples_per_shard)

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(name=column.name, type=self.cell_type) if column.type.is_source else column
            for column in self.source.columns
        )

    @property
    def cell_type(self) -> ColumnType:
        return ColumnType.LMDB if self.options.format is ShardFormat.LMDB else ColumnType.SPAN

    def positions(self, shard: int) -> range:
        return range(shard * self.samples_per_shard, min(len(self.source), (shard + 1) * self.samples_per_shard))

    def num_samples_of(self, shards: Sequence[int] | range) -> int:
        return sum(len(self.positions(shard)) for shard in shards)

    def name(self, shard: int) -> str:
        return f"shard-{shard:06d}.{self.options.format}"

    def lines_path(self, shard: int) -> Path:
        """Where the index lines of a finished shard wait until all are finished."""
        return self.folder / f"{self.name(shard)}.lines"

    def pack(self, num_workers: int, progress: Callable[[int], None] | None) -> None:
        """Make the shards that are missing, then the index."""
        todo = [shard for shard in range(self.num_shards) if not self.lines_path(shard).exists()]
        num_done = len(self.source) - self.num_samples_of(todo)
        for shard in _each(self.write, todo, num_workers):
            num_done += self.num_samples_of([shard])
            if progress is not None:
                progress(num_done)
        rows = Rows(columns=self.columns, root=str(self.folder), classes=self.source.classes, cells=self.all_cells())
        write_texts(rows, self.folder / _INDEX, split=None, relative=True, progress=None)
        open_index(self.folder / _INDEX)

    def write(self, shard: int) -> int:
        """Make a shard; its lines appear when the shard is complete on disk."""
        path = self.folder / self.name(shard)
        with new_file(self.lines_path(shard)) as lines:
            if self.options.format is ShardFormat.LMDB:
                with new_path(path) as unfinished, LmdbWriter(unfinished) as writer:
                    lines.writelines(map(format_line, self._fill_lmdb(writer, shard)))
            else:
                with new_file(path) as file:
                    lines.writelines(map(format_line, self._fill(file, shard)))
        return shard

    def compare(self, shard: int) -> int:
        if self.options.format is ShardFormat.LMDB:
            with ComparingLmdb(self.folder / self.name(shard)) as same:
                for _ in self._fill_lmdb(same, shard):
                    pass
            return shard
        with (self.folder / self.name(shard)).open("rb") as there:
            comparing = _Comparing(there, self.folder / self.name(shard))
            for _ in self._fill(comparing, shard):
                pass
            comparing.expect_end()
        return shard

    def all_cells(self) -> Iterator[Sequence[Cell]]:
        header = Header(columns=self.columns, dialect=Dialect.NATIVE)
        for shard in range(self.num_shards):
            with self.lines_path(shard).open("rb") as file:
                for line in file:
                    yield parse_line(header, line.rstrip(b"\n"))

    def mean_bytes(self) -> float:
        """Return how many bytes a sample takes in a shard, by some that can be packed; others are met later."""
        step = max(1, len(self.source) // _PROBED_SAMPLES)
        sizes: list[int] = []
        for record in self.source.records(np.arange(0, len(self.source), step)[:_PROBED_SAMPLES]):
            with suppress(SampleError):
                sizes.append(sum(_BLOCK_BYTES + _padded(len(data)) for _, data in self._members(record)))
        return max(1.0, sum(sizes) / max(1, len(sizes)))

    def _fill(self, file: "BinaryIO | _Comparing", shard: int) -> Iterator[list[Cell]]:
        offset_bytes = 0
        for name, record in self._records(shard):
            cells: list[Cell] = list(record.cells)
            sources = iter(self._pipeline.sources)
            for ending, data in self._members(record):
                member = tarfile.TarInfo(f"{name}.{ending}")
                member.size = len(data)
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
                file.write(data)
                file.write(bytes(_padded(len(data)) - len(data)))
                if (number := next(sources, None)) is not None:
                    cells[number] = Span(self.name(shard), offset_bytes + _BLOCK_BYTES, len(data))
                offset_bytes += _BLOCK_BYTES + _padded(len(data))
            yield cells
        file.write(bytes(-offset_bytes % tarfile.RECORDSIZE or tarfile.RECORDSIZE))

    def _fill_lmdb(self, writer: "LmdbWriter | ComparingLmdb", shard: int) -> Iterator[list[Cell]]:
        for name, record in self._records(shard):
            cells: list[Cell] = list(record.cells)
            members = {f"{name}.{ending}".encode(): data for ending, data in self._members(record)}
            for number, key in zip(self._pipeline.sources, members, strict=False):
                cells[number] = LmdbValue(self.name(shard), key)
            for key in sorted(members):
                writer.put(key, members[key])
            yield cells

    def _records(self, shard: int) -> Iterator[tuple[str, Record]]:
        """Yield name and record of each sample of a shard."""
        order = Sequential() if self.options.shuffle_seed is None else Shuffle()
        seed = self.options.shuffle_seed or 0
        ids = order.order(num_samples=len(self.source), seed=seed, epoch=0)
        positions = self.positions(shard)
        width = max(9, len(str(len(self.source))))
        for first in range(positions.start, positions.stop, 256):
            block = np.arange(first, min(first + 256, positions.stop))
            for position, record in zip(block.tolist(), self.source.records(ids.sample_ids(block)), strict=True):
                yield f"{position:0{width}d}", record

    def _members(self, record: Record) -> Iterator[tuple[str, bytes]]:
        """Yield ending and bytes of each member of a sample: its sources, then its label or other cells."""
        names = [self.source.columns[number].name for number in self._pipeline.sources]
        try:
            found = self._pipeline.read(record)
            for name, data in zip(names, found, strict=True):
                ending, stored = stored_as(data, self.options)
                yield (ending if len(names) == 1 else f"{name}.{ending}"), stored
        except (OSError, ValueError) as error:  # StorageError and DecodeError are such
            raise SampleError(f"{self.source.where(record.sample_id)}: {error}. Take it out of the index") from error
        others = {
            column.name: record.cells[number]
            for number, column in enumerate(self.source.columns)
            if not column.type.is_source
        }
        if list(others) == ["label"] and isinstance(others["label"], int):
            yield "cls", str(others["label"]).encode()
        elif others:
            yield "json", json.dumps(others, sort_keys=True).encode()


def _prepare(index: str | os.PathLike[str] | Index, folder: Path, options: PackOptions) -> _Packer:
    """Find out what a pack is to be, or was, and see that the folder is for it."""
    source = index if isinstance(index, Index) else open_index(index)
    wanted = {"version": _VERSION, "index": source.fingerprint, **asdict(options)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = json.loads((folder / _MANIFEST).read_text()) if (folder / _MANIFEST).exists() else None
        if isinstance(there, dict):
            there.setdefault("format", ShardFormat.TAR)  # a pack of before there were others
    except OSError as error:
        raise StorageError(f"{folder}: cannot be a folder of shards: {error.strerror}. Give another") from error
    except ValueError as error:
        raise ArgumentError(f"{folder / _MANIFEST}: is damaged: {error}. Remove the folder and pack again") from error
    if there is None:
        unfinished = set(folder.glob(f".{_MANIFEST}.*.tmp"))  # by a process that was killed
        if any(entry.name != _LOCK and entry not in unfinished for entry in folder.iterdir()):
            raise ArgumentError(f"{folder}: is not empty and holds no pack. Give a folder of its own")
        packer = _Packer(source=source, folder=folder, options=options, samples_per_shard=1)
        there = wanted | {"samples_per_shard": max(1, round(options.shard_bytes / packer.mean_bytes()))}
        with new_file(folder / _MANIFEST) as file:
            file.write(json.dumps(there, indent=2).encode())
    elif {name: there.get(name) for name in wanted} != wanted:
        different = sorted(name for name in wanted if there.get(name) != wanted[name])
        raise ArgumentError(
            f"{folder}: holds another pack, which differs in {', '.join(different)}. Give a folder of its own"
        )
    return _Packer(source=source, folder=folder, options=options, samples_per_shard=there["samples_per_shard"])


def _padded(num_bytes: int) -> int:
    return num_bytes + -num_bytes % _BLOCK_BYTES


def _check_workers(num_workers: int) -> None:
    if num_workers < 1:
        raise ArgumentError(f"num_workers must be at least 1, got {num_workers}")
    if num_workers > 1 and getattr(current_process(), "_inheriting", False):  # a worker is importing the script
        raise ArgumentError(_GUARD)


def _each(work: Callable[[int], int], shards: Sequence[int] | range, num_workers: int) -> Iterator[int]:
    """Do the shards, at most twice as many at once as there are workers; yield those that are done."""
    if num_workers == 1:
        yield from map(work, shards)
        return
    context = get_context("spawn")
    end, ours = context.Pipe(duplex=False)  # closed when workers are to end, also where this process is killed
    begun, begins = context.Pipe(duplex=False)  # readable as soon as a worker has started
    with ProcessPoolExecutor(num_workers, context, initializer=_begin, initargs=(end, begins)) as pool:
        todo = iter(shards)
        try:
            with _ignoring_interrupts():
                running: set[Future[int]] = {pool.submit(work, shard) for shard in islice(todo, 2 * num_workers)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    running |= {pool.submit(work, shard) for shard in [next(todo, None)] if shard is not None}
        except BrokenProcessPool as error:
            if not begun.poll():
                raise ArgumentError(_GUARD) from error
            raise StorageError(
                "a worker was killed, for lack of memory perhaps. Run the same command again: finished shards are kept"
            ) from error
        except BaseException:
            ours.close()
            raise


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a moment, and for good in the processes that are started meanwhile."""
    if threading.current_thread() is not threading.main_thread():  # the only one that may say so
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(end: Connection, begins: Connection) -> None:
    """Tell that this worker has started, and end it as soon as the other side of `end` is closed."""
    begins.send_bytes(b"begun")

    def watch() -> None:
        end.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        with FileLock(folder / _LOCK, timeout=0):
            yield
    except Timeout as error:
        raise StorageError(f"{folder}: another process packs into it. Wait for it") from error


class _Comparing:
    """Takes what would be written, and compares it with what is there."""

    def __init__(self, there: BinaryIO, path: Path) -> None:
        self._there = there
        self._path = path

    def write(self, data: bytes) -> int:
        at = self._there.tell()
        if self._there.read(len(data)) != data:
            raise StorageError(
                f"{self._path}: differs from what the index makes, within bytes {at} to {at + len(data)}"
            )
        return len(data)

    def expect_end(self) -> None:
        if self._there.read(1):
            raise StorageError(f"{self._path}: goes on where it should end, at byte {self._there.tell() - 1}")
