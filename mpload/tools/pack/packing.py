"""Writes the samples of an index into tar shards, LMDB files or arrays, with an index of the shards.

With `S` samples per shard, shard `k` holds the positions `[k S, (k + 1) S)` of the order. Therefore the bytes do not
depend on the number of workers, and `verify_pack` can make each shard again and compare. Sample 42 is stored as
`000000042.jpg` with its label in `000000042.cls`: as members of a ustar file, or as keys of an LMDB file. In arrays it
is row `42 - k S` of shard `k`, and the index alone has its label.
"""

import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from shutil import copyfileobj

import numpy as np

from mpload.errors import ArgumentError, OutageError, SampleError, StorageError
from mpload.images.arrays import RawArray
from mpload.images.baseline import HuffmanTables, tables_for
from mpload.images.decoders import ResizeCenterCrop
from mpload.index.columns import Cell, Column, ColumnType
from mpload.index.index import Index, Record, require_files
from mpload.index.mixture_index import roots_of
from mpload.index.opening import open_index
from mpload.index.publishing import new_file, new_path
from mpload.index.text import format_header, format_line
from mpload.ingest.cluster import Cluster
from mpload.ingest.writing import check_text
from mpload.plan.order import Sequential, Shuffle
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.storage.ranges import LmdbValue, Span
from mpload.tools.bounded import LIMIT_ADVICE, BoundedBytes
from mpload.tools.pack.columns import kept_columns
from mpload.tools.pack.comparing import compare_file, line_comparer
from mpload.tools.pack.folder import begun_in, changed_shards, check_remade, folder_at, locked, note_sizes, swept
from mpload.tools.pack.lmdb_file import compare_lmdb, write_lmdb
from mpload.tools.pack.manifest import ANTIALIAS, MANIFEST, read_manifest, rows_in, tables_in
from mpload.tools.pack.options import JpegForm, PackOptions, ShardFormat, stored_as
from mpload.tools.pack.rows import header_of, row_of, rows_like
from mpload.tools.pack.workers import check_workers, done_shards

__all__ = ["PackOptions", "ShardFormat", "pack_index", "pack_rows", "verify_pack"]

_VERSION = 1
_INDEX = "index.txt"
_REMOVE = "Remove it from the index"
_PROBED_SAMPLES = 256  # to estimate the size of a packed sample, and to count Huffman symbols
_BLOCK_BYTES = tarfile.BLOCKSIZE
_UNCHANGED = PackOptions()


def pack_index(
    index: str | os.PathLike[str] | Index,
    out: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    num_workers: int = 1,
    on: Cluster | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write the samples of `index` into shards in the folder `out`; return the path of their index.

    If it is interrupted or killed, call it again with the same arguments to continue. Missing or truncated shards of a
    finished pack are made again.

    Args:
        index: The index to pack. Labels and other cells are stored too.
        out: The folder for the shards. It is created if it is missing.
        options: Format, order and contents of the shards.
        num_workers: The number of processes. The bytes written do not depend on it. If it is greater than 1, the
            processes import the calling script, which must protect its code by `if __name__ == "__main__":`.
        on: The machines that make the shards, such as a `RayCluster`; None means this one. The bytes written do not
            depend on it. They read the index and its files at the same paths as this machine, and write to `out`.
        progress: Called with the number of samples packed so far.

    Memory: Constant, at one sample per worker.

    Raises:
        ArgumentError: `out` contains other files or another pack, workers cannot start, or JPEGs are to be rewritten
            and the native module was not built.
        SampleError: A sample cannot be read or decoded. Finished shards are kept.
        StorageError: A shard cannot be written, a worker was killed, or a server does not answer. Finished shards are
            kept.
    """
    folder = folder_at(out).absolute()
    check_workers(num_workers, on)
    source = _opened(index)
    begun_in(folder)  # before a lock is written to a folder of something else
    with locked(folder):
        packer = _prepare(source, folder, options or PackOptions())
        with swept(folder, is_finished=(folder / _INDEX).exists()):
            packer.pack(num_workers, on, progress)
    return folder / _INDEX


def verify_pack(
    index: str | os.PathLike[str] | Index,
    out: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    num_workers: int = 1,
    on: Cluster | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Check a finished pack: make every shard again, one sample at a time in memory, and compare it byte for byte.

    Args:
        index: The index that was packed.
        out: The folder of the pack.
        options: The options that it was packed with.
        num_workers: The number of processes, as in `pack_index`.
        on: The machines that compare the shards, as in `pack_index`.
        progress: Called with the number of samples compared so far.

    Raises:
        ArgumentError: `out` does not contain such a pack.
        StorageError: A shard or the index differs. The message says which one and where.
    """
    folder = folder_at(out).absolute()
    check_workers(num_workers, on)
    if not (folder / _INDEX).exists():
        raise ArgumentError(f"{folder}: contains no finished pack. Make it first: mpload pack INDEX -o {folder}")
    packer = _prepare(_opened(index), folder, options or PackOptions(), is_compared=True)
    packer.compare_index()
    packer.each(packer.compare, range(packer.num_shards), num_workers, on, progress)


def pack_rows(out: str | os.PathLike[str]) -> RawArray | None:
    """Return the decoder of a finished pack of arrays in the folder `out`; None if the pack has another format."""
    manifest = read_manifest(Path(out))
    return None if manifest is None else rows_in(manifest)


@dataclass(kw_only=True)
class _Packer:
    """Makes or compares the shards of a pack."""

    source: Index
    folder: Path
    options: PackOptions
    samples_per_shard: int = 1
    rows: RawArray | None = None
    """What the rows of array shards are."""
    tables: HuffmanTables | None = None
    """What all JPEGs are rewritten with; None stores them as they are."""
    crop: ResizeCenterCrop | None = None
    """What makes the raw pixels of images; None stores encoded or whole images."""

    def __post_init__(self) -> None:
        self._pipeline = Pipeline(index=self.source, decode=BoundedBytes(), policy=ErrorPolicy())
        self.kept = kept_columns(self.source, self.options, self._pipeline.read)

    @property
    def num_shards(self) -> int:
        return -(-len(self.source) // self.samples_per_shard)

    def positions(self, shard: int) -> range:
        return range(shard * self.samples_per_shard, min(len(self.source), (shard + 1) * self.samples_per_shard))

    def each(
        self,
        work: Callable[[int], int],
        shards: Sequence[int],
        num_workers: int,
        on: Cluster | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        """Do the work for each of these shards, here or on other machines. The samples of all others count as done."""
        num_done = len(self.source) - sum(len(self.positions(shard)) for shard in shards)
        with closing(done_shards(work, shards, num_workers=num_workers, on=on, folder=self.folder)) as done:
            for shard in done:
                num_done += len(self.positions(shard))
                if progress is not None:
                    progress(num_done)

    def name(self, shard: int) -> str:
        return f"shard-{shard:06d}.{self.options.format.ending}"

    def lines_path(self, shard: int) -> Path:
        """Return the path of the index lines of a finished shard, which are kept until all shards are finished."""
        return self.folder / f"{self.name(shard)}.lines"

    def pack(self, num_workers: int, on: Cluster | None, progress: Callable[[int], None] | None) -> None:
        """Write the shards that are missing or damaged, then the index."""
        found = set(self.folder.iterdir())  # clients of NFS would remember for a while that a file was missing
        names = list(map(self.name, range(self.num_shards)))
        is_finished = self.folder / _INDEX in found
        unfinished = [n for n, name in enumerate(names) if not found >= {self.folder / name, self.lines_path(n)}]
        todo = changed_shards(self.folder, names) if is_finished else unfinished
        self.each(self.write, todo, num_workers, on, progress)
        if is_finished:
            for n in todo:
                check_remade(self.folder / names[n], self.lines_path(n), self.folder / _INDEX, self.positions(n))
            return
        note_sizes(self.folder, names)
        self._write_index()

    def write(self, shard: int) -> int:
        """Write a shard. Its index lines appear only after the shard is complete on disk."""
        path = self.folder / self.name(shard)
        with new_file(self.lines_path(shard)) as lines:
            if self.options.format is ShardFormat.LMDB:
                with new_path(path) as unfinished:
                    write_lmdb(unfinished, self._lmdb_values(shard, lines.write))
            else:
                with new_file(path) as file:
                    file.writelines(self._chunks(shard, lines.write))
        return shard

    def compare(self, shard: int) -> int:
        """Compare a shard and its lines in the index with what they should hold."""
        path = self.folder / self.name(shard)
        compare_line = line_comparer(self.folder / _INDEX, self.positions(shard), path.name)
        if self.options.format is ShardFormat.LMDB:
            compare_lmdb(path, self._lmdb_values(shard, compare_line))
        else:
            compare_file(path, self._chunks(shard, compare_line))
        return shard

    def compare_index(self) -> None:
        """Compare the number of lines, root, columns and classes of the index of the pack with what they should be."""
        found = open_index(self.folder / _INDEX)
        facts = len(found), Path(found.root), found.columns, found.classes
        if facts != (len(self.source), self.folder, self._columns, self.source.classes):
            raise StorageError(
                f"{found.path}: its number of lines, root, columns or classes differ from the packed index"
            )

    @property
    def _columns(self) -> tuple[Column, ...]:
        """The columns of the index of the pack."""
        cell_type = ColumnType.LMDB if self.options.format is ShardFormat.LMDB else ColumnType.SPAN
        return tuple(replace(each, type=cell_type) if each.type.is_source else each for each in self.source.columns)

    def _write_index(self) -> None:
        with new_file(self.folder / _INDEX) as index:
            index.write(format_header(columns=self._columns, classes=self.source.classes))
            for shard in range(self.num_shards):
                with self.lines_path(shard).open("rb") as lines:
                    copyfileobj(lines, index)
            check_text(index, self.folder / _INDEX)
        open_index(self.folder / _INDEX)

    def rows_like_first(self) -> RawArray:
        """Return what all rows must be: like the first sample of the index."""
        if len(self._pipeline.sources) != 1:
            names = ", ".join(self.source.columns[number].name for number in self._pipeline.sources) or "none"
            raise ArgumentError(
                f"{self.source.path}: format arrays packs one column of files, got {names}. Use format tar"
            )
        record = self.source[0]
        with self._located(record):
            return rows_like(self._pipeline.read(record)[0], self.crop)

    def mean_bytes(self) -> float:
        """Estimate the size of a sample in a shard from some samples."""
        if self.rows is not None:
            return max(1, self.rows.sample_bytes)
        num_blocks = [sum(1 + ceil(len(data) / _BLOCK_BYTES) for _, data in members) for members in self.probed()]
        return max(1.0, _BLOCK_BYTES * sum(num_blocks) / max(1, len(num_blocks)))

    def probed(self) -> Iterator[list[tuple[str, bytes]]]:
        """Yield the members of samples from all of the index. Samples that cannot be packed are left out."""
        step = max(1, len(self.source) // _PROBED_SAMPLES)
        for record in self.source.records(np.arange(0, len(self.source), step)[:_PROBED_SAMPLES]):
            with suppress(SampleError):
                yield list(self._members(record))

    def _chunks(self, shard: int, note: Callable[[bytes], object]) -> Iterator[bytes]:
        """Yield the bytes of a file of tar or of rows, and pass `note` the index line of each sample."""
        is_tar = self.rows is None
        header = b"" if self.rows is None else header_of(self.rows, len(self.positions(shard)))
        yield header
        offset_bytes = len(header)
        for name, record in self._records(shard):
            spans = []
            for ending, data in self._members(record):
                header = _tar_header(f"{name}.{ending}", len(data)) if is_tar else b""
                spans.append(Span(self.name(shard), offset_bytes + len(header), len(data)))
                chunks = header, data, bytes(-len(data) % _BLOCK_BYTES if is_tar else 0)
                yield from chunks
                offset_bytes += sum(map(len, chunks))
            note(self._line(record, spans))
        if is_tar:
            yield bytes(-offset_bytes % tarfile.RECORDSIZE or tarfile.RECORDSIZE)

    def _lmdb_values(self, shard: int, note: Callable[[bytes], object]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a shard, and pass `note` the index line of each sample."""
        for name, record in self._records(shard):
            members = {f"{name}.{ending}".encode(): data for ending, data in self._members(record)}
            note(self._line(record, [LmdbValue(self.name(shard), key) for key in members]))
            yield from sorted(members.items())

    def _line(self, record: Record, stored: Sequence[Cell]) -> bytes:
        """Return the index line of a sample. `stored` says where its members are, the files first."""
        places = dict(zip(self._pipeline.sources, stored, strict=False))
        return format_line([places.get(number, cell) for number, cell in enumerate(record.cells)])

    def _records(self, shard: int) -> Iterator[tuple[str, Record]]:
        """Yield the name and the record of each sample of a shard."""
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
        """Yield the extension and bytes of each member of a sample: its files, then its label or other cells."""
        names = [self.source.columns[number].name for number in self._pipeline.sources]
        with self._located(record):
            found = self._pipeline.read(record)
            if self.rows is not None:
                yield "npy", row_of(found[0], self.crop, self.rows)
                return
            for name, data in zip(names, found, strict=True):
                how = (_UNCHANGED,) if name in self.kept else (self.options, self.tables, self.crop)
                ending, stored = stored_as(data, *how)
                yield (ending if len(names) == 1 else f"{name}.{ending}"), stored
        others = {
            column.name: record.cells[number]
            for number, column in enumerate(self.source.columns)
            if not column.type.is_source
        }
        if list(others) == ["label"] and isinstance(others["label"], int):
            yield "cls", str(others["label"]).encode()
        elif others:
            yield "json", json.dumps(others, sort_keys=True).encode()

    @contextmanager
    def _located(self, record: Record) -> Iterator[None]:
        """Raise the errors of a sample as a `SampleError` that says where it is listed."""
        try:
            yield
        except (ArgumentError, OutageError):  # the sample is not to blame: a native module is missing, or a server
            raise
        except (OSError, ValueError) as error:  # StorageError and DecodeError are among them
            text = str(error).removesuffix(_REMOVE).removesuffix(LIMIT_ADVICE).rstrip(". ")
            where, end = self.source.where(record.sample_id), "" if text.endswith("?") else "."
            raise SampleError(f"{where}: {text}{end} {_REMOVE}") from error


def _opened(index: str | os.PathLike[str] | Index) -> Index:
    source = index if isinstance(index, Index) else open_index(index)
    require_files(source, what="mpload pack")
    return source


def _prepare(source: Index, folder: Path, options: PackOptions, *, is_compared: bool = False) -> _Packer:
    """Read or write the manifest in the folder of a pack, and check that the folder belongs to this pack."""
    # The files of a pack that is compared may have been moved.
    about = {} if is_compared else {"root": roots_of(source), "classes": list(source.classes)}
    wanted = {"version": _VERSION, "index": source.fingerprint, **about, **asdict(options)}
    manifest = begun_in(folder)
    crop = None
    if options.decode is not None:
        antialias = manifest is None or manifest[ANTIALIAS]
        crop = ResizeCenterCrop(options.decode, resize=options.decode, antialias=antialias)
    packer = _Packer(source=source, folder=folder, options=options, crop=crop)
    if packer.kept:
        wanted["kept"] = list(packer.kept)
    if manifest is None:
        if options.format is ShardFormat.ARRAYS:
            packer.rows = packer.rows_like_first()
            wanted["rows"] = asdict(packer.rows)
        if options.jpeg is JpegForm.BASELINE:
            packer.tables = tables_for(data for members in packer.probed() for _, data in members)
            wanted["huffman_tables"] = packer.tables.segment.hex()
        if crop is not None:
            wanted[ANTIALIAS] = True
        manifest = wanted | {"samples_per_shard": max(1, round(options.shard_bytes / packer.mean_bytes()))}
        with new_file(folder / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=2).encode())
    elif different := sorted(name for name in wanted if manifest.get(name, about.get(name)) != wanted[name]):
        moved = " If its files were only moved, correct it in pack.json." if "root" in different else ""
        raise ArgumentError(
            f"{folder} contains another pack: {', '.join(different)} differ.{moved} Name another folder"
        )
    packer.samples_per_shard = manifest["samples_per_shard"]
    packer.rows, packer.tables = rows_in(manifest), tables_in(manifest)
    return packer


def _tar_header(name: str, num_bytes: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = num_bytes
    return member.tobuf(tarfile.USTAR_FORMAT)
