"""The row index: where the rows of each JPEG begin, so that later crops of it are decoded faster.

An entry says where each row of blocks of a photo begins in the file. With it, the native decoder decodes neither the
rows above a crop nor the columns to the right of it. Entries take 0.1 to 0.5 % of the photos' size.

There is one file per index, beside its sidecar or in the user's cache folder. It starts with a header page. Then come 8
bytes per photo: offset and length of its entry, and how often that was made; or 0 if there is none. The entries follow,
appended by all processes. The file is sparse. It is read and written by position, not memory-mapped: a process is
killed if it writes to a map of a sparse file on a full disk.

An entry is written first; then its place is published in a single 8-byte write. An entry has a checksum that covers the
photo too. So an entry that a crash or a full disk has damaged, or whose photo has changed, costs time but never changes
a pixel. Only a program that forges an entry and its checksum can change pixels.
"""

import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from mpload.errors import ArgumentError, StorageError, warn
from mpload.images.backends import can_note_rows
from mpload.images.claims import Claim, unclaimed
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.geometry import Geometry, open_as, show
from mpload.images.jpeg import Jpeg
from mpload.images.jpeg_header import ImageBytes
from mpload.images.resize import Pixels
from mpload.images.row_starts import RowStarts
from mpload.index.derived import derived_paths
from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.samples.cache.trusted import open_file, open_folder

__all__ = ["RowIndex", "create_row_index", "decode_with_rows", "find_row_index", "make_row_index", "open_row_index"]

_MAGIC = b"mprows01"
_PAGE_BYTES = 4096
_RUN_AT = 16  # offset in the header page
_LENGTH_BITS, _TIMES_BITS = 16, 8
_MAX_OFFSET = 1 << (64 - _LENGTH_BITS - _TIMES_BITS)
_MAX_LENGTH = (1 << _LENGTH_BITS) - 1
_MAX_TIMES = 8  # a photo whose bytes differ each time it is read must not fill the disk
_SCANNED_PHOTOS = 1 << 20


def open_row_index(choice: bool | None, index: Index, decode: object) -> "RowIndex | None":
    """Return the row index that `MPDataset(row_index=choice)` uses; None if it uses none.

    Raises:
        ArgumentError: A row index was chosen for a decoder that does not use it, or for a mixture.
    """
    if isinstance(index, MixtureIndex):
        if choice:
            raise ArgumentError("row_index=True is not for mixtures. Leave it out")
        return None
    if type(decode) not in {RandomResizedCrop, ResizeCenterCrop}:
        if choice:
            raise ArgumentError(
                "row_index=True is for RandomResizedCrop and ResizeCenterCrop as the only decoder, not in a dict, got "
                f"decode={decode!r:.80}. Leave it out"
            )
        return None
    if choice is False or not can_note_rows():
        return None
    return make_row_index(index) if choice else find_row_index(index)


def find_row_index(index: Index) -> "RowIndex | None":
    """Return the row index of `index`, for reading only; None if there is none for its current state."""
    for path in _candidates(index):
        found = _row_index_at(path, index, is_filled=False)
        if found.fits():
            return found
    return None


def make_row_index(index: Index) -> "RowIndex | None":
    """Return the row index of `index`, to be filled. Make it, or warn that it cannot be made and return None."""
    try:
        return create_row_index(index)
    except StorageError as error:
        warn(f"{error}. The job goes on without it")
        return None


def create_row_index(index: Index) -> "RowIndex":
    """Return the row index of `index`, to be filled. Make it unless it exists.

    Raises:
        StorageError: It can be written neither beside the index nor in the user's cache folder.
    """
    candidates = [_row_index_at(path, index, is_filled=True) for path in _candidates(index)]
    for candidate in candidates:
        if candidate.fits():
            return candidate
    failures = []
    for candidate in candidates:
        try:
            candidate.create()
        except OSError as error:
            failures.append(f"{candidate.path}: {error.strerror or error}")
        else:
            return candidate
    raise StorageError(
        f"no row index can be made ({'; '.join(failures)}). Make the folder of the index writable, or set "
        "XDG_CACHE_HOME to a writable folder"
    )


def _candidates(index: Index) -> list[Path]:
    return derived_paths(index.path, suffix=".mpr", folder="rows")


def _row_index_at(path: Path, index: Index, *, is_filled: bool) -> "RowIndex":
    num_sources = sum(column.type.is_source for column in index.columns)
    words = f"{index.fingerprint}\0{len(index)}\0{num_sources}"
    key = xxh3_64_intdigest(words.encode("utf-8", "surrogateescape"))
    return RowIndex(path, num_samples=len(index), num_sources=num_sources, key=key, is_filled=is_filled)


class RowIndex:
    """The row index of one index. `find_row_index` and `make_row_index` return it.

    Memory: constant.
    Process: may be forked and pickled; each process opens the file when it makes its first sample. Not thread-safe.
    """

    def __init__(self, path: Path, *, num_samples: int, num_sources: int, key: int, is_filled: bool) -> None:
        self.path = path
        self.num_photos = num_samples * num_sources
        self.is_filled = is_filled
        """Whether entries are made where they are missing."""
        self._num_sources = num_sources
        self._head = _MAGIC + key.to_bytes(8, "little")
        self._end_of_table = _PAGE_BYTES + 8 * self.num_photos
        self._run = os.urandom(8)
        self._is_off = False
        self._files: _Files | None = None

    def fits(self) -> bool:
        """Return whether there is a file for the index in its current state."""
        try:
            files = self._open(is_written=False)
            return os.fstat(files.table).st_size >= self._end_of_table
        except OSError:
            return False

    def create(self) -> None:
        """Replace the file by one without entries.

        Raises:
            OSError: It cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        name = f".{self.path.name}.{os.urandom(4).hex()}"  # several processes may do this at once
        folder = open_folder(_resolved(self.path.parent))
        try:
            descriptor = open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
            try:
                if os.write(descriptor, self._head.ljust(_PAGE_BYTES, b"\0")) != _PAGE_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(descriptor, self._end_of_table)
                os.rename(name, self.path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
        finally:
            os.close(folder)

    def decoder(self, decode: Callable[..., Any], sample_id: int, place: int) -> Callable[..., Pixels]:
        """Return `decode` for one photo, the sample's source number `place`."""
        number = (sample_id * self._num_sources + place) % self.num_photos  # the id of a repeated draw is greater
        return partial(decode_with_rows, decode, _PhotoRows(self, number))

    def read(self, number: int) -> bytes | None:
        """Return the entry of photo `number`. If there is none: an empty one if it should be made, otherwise None."""
        if self._is_off:
            return None
        try:
            files = self._opened()
            offset, length, num_times = _unpacked(os.pread(files.table, 8, _PAGE_BYTES + 8 * number))
            if num_times >= _MAX_TIMES:
                return None
            if num_times and (entry := os.pread(files.table, length, offset)):
                return entry
        except OSError as error:
            self._stop(error)
        return b"" if self.is_filled else None

    def read_many(self, sample_ids: NDArray[np.int64]) -> list[bytes | None]:
        """Return what `read` returns for the photo of each sample; the samples have one photo each."""
        return [self.read(number) for number in (sample_ids % max(1, self.num_photos)).tolist()]

    def write(self, number: int, entry: bytes) -> None:
        """Keep an entry of photo `number`."""
        if not self.is_filled or len(entry) > _MAX_LENGTH:
            return
        try:
            files = self._opened()
            place = _PAGE_BYTES + 8 * number
            num_times = min(_unpacked(os.pread(files.table, 8, place))[2] + 1, _MAX_TIMES)
            if os.write(files.end, entry) != len(entry):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            offset = os.lseek(files.end, 0, os.SEEK_CUR) - len(entry)  # where the kernel has appended it
            if self._end_of_table <= offset < _MAX_OFFSET:  # not if another program has cut the file off
                os.pwrite(files.table, _packed(offset, len(entry), num_times), place)
        except OSError as error:
            self._stop(error)

    def num_entries(self) -> int:
        """Return the number of photos that have an entry, in constant memory."""
        files = self._opened()
        num_entries = 0
        for start in range(0, self.num_photos, _SCANNED_PHOTOS):
            num_bytes = 8 * min(_SCANNED_PHOTOS, self.num_photos - start)
            places = os.pread(files.table, num_bytes, _PAGE_BYTES + 8 * start)  # fewer if the file was cut off
            num_entries += int(np.count_nonzero(np.frombuffer(places, np.uint64, len(places) // 8)))
        return num_entries

    def used_bytes(self) -> int:
        """Return the space on disk that the file takes."""
        return self.path.stat().st_blocks * 512

    def _opened(self) -> "_Files":
        if self._files is None or self._files.pid != os.getpid():  # a fork shares the position where it appends
            try:
                self._files = self._open(is_written=self.is_filled)
            except OSError:  # perhaps it may be read only
                self.is_filled = False
                self._files = self._open(is_written=False)
        return self._files

    def _open(self, *, is_written: bool) -> "_Files":
        files = _Files(self.path, is_written=is_written)
        if os.pread(files.table, len(self._head), 0) != self._head:
            raise OSError(errno.ESTALE, "is not the row index of this index in its current state")
        return files

    def _stop(self, error: OSError) -> None:
        if not self.is_filled:
            self._is_off = True
            return
        self.is_filled = False
        try:
            table = self._opened().table
            is_told = os.pread(table, 8, _RUN_AT) == self._run  # two processes may ask at once, and both warn
            os.pwrite(table, self._run, _RUN_AT)
        except OSError:
            is_told = False
        if not is_told:
            warn(
                f"{self.path}: {error.strerror or error}. The row index is not filled any further; the job goes on. "
                "Free space there or allow writing, or leave out row_index=True"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None}


@dataclass(slots=True)
class _PhotoRows:
    """One photo in a row index."""

    index: RowIndex
    number: int

    def read(self) -> bytes | None:
        return self.index.read(self.number)

    def write(self, entry: bytes) -> None:
        self.index.write(self.number, entry)


def decode_with_rows(
    crop: Callable[..., Any],
    rows: RowStarts,
    data: ImageBytes,
    *,
    rng: np.random.Generator | None = None,
    out: Pixels | None = None,
    claim: Claim = unclaimed,
    geometry: Geometry | None = None,
) -> Pixels:
    """Do what `crop` does, with the starts of the rows."""
    assert isinstance(crop, RandomResizedCrop | ResizeCenterCrop), "there is no row index for other decoders"
    image = open_as(crop, data, claim)
    if isinstance(image, Jpeg):
        image.rows = rows
    if geometry is None:
        geometry = crop.draw_geometry(image.height, image.width, rng)
    return show(crop, image, geometry, out)


class _Files:
    """The file, open in one process for as long as this object is referenced."""

    def __init__(self, path: Path, *, is_written: bool) -> None:
        self.pid = os.getpid()
        self.table = self.end = -1
        folder = open_folder(_resolved(path.parent))
        try:
            self.table = open_file(path.name, os.O_RDWR if is_written else os.O_RDONLY, folder=folder)
            weakref.finalize(self, os.close, self.table)
            if is_written:
                self.end = open_file(path.name, os.O_WRONLY | os.O_APPEND, folder=folder)
                weakref.finalize(self, os.close, self.end)
        finally:
            os.close(folder)


def _resolved(folder: Path) -> Path:
    return Path(os.path.realpath(folder))  # `Path.resolve` raises RuntimeError for links that form a circle


def _packed(offset: int, length: int, num_times: int) -> bytes:
    return ((offset << _LENGTH_BITS | length) << _TIMES_BITS | num_times).to_bytes(8, "little")


def _unpacked(place: bytes) -> tuple[int, int, int]:
    """Return offset and length of an entry, and how often it was made; all are 0 if there is none."""
    rest, num_times = divmod(int.from_bytes(place, "little"), 1 << _TIMES_BITS)
    return *divmod(rest, 1 << _LENGTH_BITS), num_times
