"""LMDB data files as sources. They are indexed in place, as a column of keys, in one pass over the database.

Keys with an extension, such as `007.jpg` and `007.cls`, are members as in a tar shard (`mpload.ingest.grouping`). A key
without a known extension is a sample by itself if its value starts like an image file. If there are no images, samples
are the values that are .npz or .npy files: several arrays in one value. If no sample has a label and all
keys contain a folder, as in `cat/007.jpg`, the folders are classes, numbered in the order of their names.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.index.columns import ColumnType, parse_columns
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
from mpload.ingest.signatures import looks_like_image
from mpload.storage.lmdb_scan import scan_lmdb
from mpload.storage.ranges import LmdbValue
from mpload.units import printable

__all__ = ["LMDB_MAGIC", "data_file", "open_lmdb_rows"]

LMDB_MAGIC = slice(16, 20)  # its position in a data file made on a 64-bit machine
_MAGIC_BYTES = (b"\xde\xc0\xef\xbe", b"\xbe\xef\xc0\xde")
_ARRAYS = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # .npy, .npz, and an empty .npz
_PICKLED = re.compile(rb"\x80[\x02-\x05]")
_MAX_CLASSES = 1 << 20


def data_file(path: Path) -> Path | None:
    """Return the LMDB data file at `path`, or in the folder at `path`; None if there is none."""
    file = path / "data.mdb" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            return file if opened.read(LMDB_MAGIC.stop)[LMDB_MAGIC] in _MAGIC_BYTES else None
    except OSError:
        return None


@contextmanager
def open_lmdb_rows(
    files: Sequence[str],
    *,
    extensions: tuple[str, ...],
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Iterator[Rows]:
    """Open LMDB data files in the order given. Keys are in database order.

    Args:
        files: absolute paths of data files.
        extensions: extensions of image keys, in lower case.
        columns: other names for the columns, or a selection of them. Without an integer column, folders are not
            treated as classes.
        root: a folder that contains all files, or a URL. Their common parent by default.

    Memory: constant, apart from the names of the classes.

    Raises:
        ArgumentError: no value is an image, a sample's members differ from the first sample's, or lmdb is not
            installed.
        StorageError: a file is truncated, damaged or cannot be read.
    """
    parent = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    base, prefix = root_and_prefix(parent, root)
    left_out = LeftOut()
    unused = LeftOut()
    paths = {file: prefix + file[len(parent) :].lstrip("/") for file in files}

    def samples(left: LeftOut, *, of_arrays: bool = False) -> Iterator[Sample]:
        for file, path in paths.items():
            yield from group_members(file, _members(file, path, extensions, left, of_arrays=of_arrays), left)

    found = samples(left_out)
    first = next(found, None)
    if first is None:
        left_out = LeftOut()
        found = samples(left_out, of_arrays=True)
        first = next(found, None)
    if first is None:
        raise ArgumentError(
            f"{printable(files[0])}: no value is an image{_hint(files[0])}. Values must be the bytes of image files"
        )
    wants_labels = columns is None or any(column.type is ColumnType.INT for column in parse_columns(columns))
    classes = _classes(samples(unused)) if first.label is None and "/" in first.key and wants_labels else ()
    numbers = {name: number for number, name in enumerate(classes)}

    def labelled(sample: Sample) -> Sample:
        if classes:
            sample.label = numbers[sample.key.partition("/")[0]]
        return sample

    every = map(labelled, chain([first], found))
    chosen, cells = choose_cells(labelled(first), every, ColumnType.LMDB, columns, left_out)
    yield Rows(columns=chosen, root=base, cells=cells, classes=classes, left_out=left_out)


def _members(
    file: str, path: str, extensions: tuple[str, ...], left_out: LeftOut, *, of_arrays: bool
) -> Iterator[Member]:
    with closing(scan_lmdb(file, whole=(".cls", ".json"))) as values:
        for raw, value in values:
            name = os.fsdecode(raw)
            key, extension = split_name(name)
            if key and f".{extension}".endswith(extensions):
                yield Member(name=name, key=key, column=column_name(extension), cell=LmdbValue(path, raw))
                continue
            if key and extension == "cls":
                label, _ = label_in(f"{printable(file)}: key {printable(name)}", value, extension)
                yield Member(name=name, key=key, label=label)
            elif looks_like_image(value):
                yield Member(name=name, key=name, column="image", cell=LmdbValue(path, raw))
            elif of_arrays and value.startswith(_ARRAYS):
                yield Member(name=name, key=key or name, column="arrays", cell=LmdbValue(path, raw))
            elif key and is_attached(extension):
                label, has_more = None, True
                if extension == "json":
                    label, has_more = label_in(f"{printable(file)}: key {printable(name)}", value, extension)
                yield Member(name=name, key=key, cell=LmdbValue(path, raw), label=label, is_column=has_more)
            else:
                left_out.add(Reason.NO_IMAGE, f"{file}: {name}")


def _classes(samples: Iterator[Sample]) -> tuple[str, ...]:
    """Return the sorted folders of all keys; empty if any sample has a label or is not in a folder."""
    names = set()
    for sample in samples:
        folder, slash, _ = sample.key.partition("/")
        if not slash or sample.label is not None:
            return ()
        names.add(folder)
        if len(names) > _MAX_CLASSES:
            raise ArgumentError(
                f"{sample}: there are more than {_MAX_CLASSES} folders up to here. If these are not classes, give "
                "columns='image:lmdb' for images without labels"
            )
    return tuple(sorted(names))


def _hint(file: str) -> str:
    with closing(scan_lmdb(file, whole=())) as values:
        if any(_PICKLED.match(value) for _, value in islice(values, 8)):
            return " (some look pickled, and mpload never unpickles data)"
    return ""
