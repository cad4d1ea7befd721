"""Determines the kind of a source, and opens it."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TypeGuard

from mpload.errors import ArgumentError, StorageError
from mpload.ingest.cluster import Cluster
from mpload.ingest.coco import open_coco
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.folders import open_folder
from mpload.ingest.hdf5 import HDF5_MAGIC, open_hdf5s
from mpload.ingest.lists import open_list
from mpload.ingest.lmdbs import data_file, open_lmdb_rows
from mpload.ingest.pairs import pair_of_folders
from mpload.ingest.rows import Rows, absolute
from mpload.ingest.tables import open_arrows, open_parquets
from mpload.ingest.tars import open_tars, refuse_compressed, refuse_compressed_name
from mpload.ingest.tfrecords import is_tfrecord, open_tfrecords
from mpload.ingest.voc import is_voc_folder, is_voc_set, open_voc
from mpload.ingest.yolo import is_yolo_folder, open_yolo
from mpload.storage.urls import check_url
from mpload.units import printable

__all__ = ["SourcePath", "is_url", "open_source", "refuse_whole_sources", "source_paths"]

SourcePath = str | os.PathLike[str]

_TAR_MAGIC = slice(257, 262)
_WHOLE = {"coco": "COCO", "voc": "Pascal VOC", "yolo": "YOLO"}
_SHARDS = frozenset({"arrow", "hdf5", "lmdb", "parquet", "tar", "tfrecord"})
_OPTIONS = frozenset(each.name for each in fields(FolderOptions))
_USED = {"folder": _OPTIONS, "yolo": _OPTIONS - {"beside"}, "tar": {"extensions"}, "lmdb": {"extensions"}}
"""By kind of source: the options of folders that mean something for it."""


def source_paths(source: SourcePath | Sequence[SourcePath]) -> list[Path]:
    """Return the absolute paths of a source. The list is empty if the source is a URL.

    Raises:
        ArgumentError: the source is an empty list, or a list that contains a URL.
    """
    if is_url(source):
        return []
    paths = [source] if isinstance(source, str | os.PathLike) else list(source)
    if not paths:
        raise ArgumentError("source is an empty list. Give a folder, a list of samples, or tar shards")
    if any("://" in os.fspath(path) for path in paths):
        raise ArgumentError(
            "several sources must all be local paths. Index one URL after another, then join them: mpload merge"
        )
    return [Path(absolute(path)) for path in paths]


def is_url(source: SourcePath | Sequence[SourcePath]) -> TypeGuard[str]:
    """Whether a source is a URL."""
    return isinstance(source, str) and "://" in source


def refuse_whole_sources(source: SourcePath | Sequence[SourcePath], folder: FolderOptions) -> None:
    """Raise `ArgumentError` if an index of this source cannot grow, because annotations lie outside its lines."""
    for path in source_paths(source):
        kind = _kind(path, folder)
        if kind in _WHOLE:
            raise ArgumentError(
                f"{printable(str(path))}: annotations of {_WHOLE[kind]} cannot be appended, as their classes would get "
                "other numbers. Make an index of the new ones, and join both if their classes are the same: mpload "
                "merge"
            )


@contextmanager
def open_source(
    source: SourcePath | Sequence[SourcePath],
    *,
    columns: str | None,
    root: SourcePath | None,
    folder: FolderOptions,
    out: Path,
    on: Cluster | None = None,
    classes_from: str | None = None,
) -> Iterator[Rows]:
    """Open any kind of source that `build_index` accepts. Temporary files go to the folder of the index `out`.

    The machines `on` list what is below a URL, and share that folder. The column `classes_from` of a list is text.

    Raises:
        ArgumentError: the source is of no known kind, or breaks a rule.
        StorageError: the source does not exist or cannot be read.
    """
    scratch = out.parent
    if is_url(source):
        url = source.rstrip("/")
        check_url(url)
        with open_folder(url, options=folder, scratch=scratch, columns=columns, root=root, on=on) as rows:
            yield rows
        return
    if on is not None:
        raise ArgumentError("only the objects below a URL can be listed by other machines: leave out `on`")
    paths = source_paths(source)
    kinds = [_kind(path, folder) for path in paths]
    with ExitStack() as stack:
        if len(paths) > 1 and (kinds[0] not in _SHARDS or len(set(kinds)) > 1):
            wanted = kinds[0] if kinds[0] in _SHARDS else "tar"
            other = next(path for path, kind in zip(paths, kinds, strict=True) if kind != wanted)
            raise ArgumentError(
                f"{printable(str(other))}: is not a {wanted} shard. Several sources must be shards of one kind. "
                "Index one folder or list after another, then join the indexes: mpload merge"
            )
        _refuse_unused(paths[0], kinds[0], folder)
        match kinds[0]:
            case "folder":
                pair = pair_of_folders(paths[0], folder, columns)
                path = str(paths[0]) if pair is None else pair.folder
                rows = stack.enter_context(
                    open_folder(path, options=folder, scratch=scratch, columns=columns, root=root, beside=pair)
                )
            case "tar":
                shards = [str(path) for path in paths]
                rows = stack.enter_context(open_tars(shards, extensions=folder.extensions, columns=columns, root=root))
            case "lmdb":
                files = [str(data_file(path)) for path in paths]
                rows = stack.enter_context(
                    open_lmdb_rows(files, extensions=folder.extensions, columns=columns, root=root)
                )
            case "tfrecord":
                files = [str(path) for path in paths]
                rows = stack.enter_context(open_tfrecords(files, columns=columns, root=root))
            case "hdf5":
                rows = stack.enter_context(open_hdf5s([str(path) for path in paths], columns=columns, root=root))
            case "coco":
                rows = stack.enter_context(open_coco(paths[0], scratch=scratch, index=out, columns=columns, root=root))
            case "voc":
                rows = stack.enter_context(open_voc(paths[0], scratch=scratch, columns=columns, root=root))
            case "yolo":
                rows = stack.enter_context(
                    open_yolo(paths[0], options=folder, scratch=scratch, columns=columns, root=root)
                )
            case "arrow" | "parquet":
                open_table = open_arrows if kinds[0] == "arrow" else open_parquets
                rows = stack.enter_context(open_table([str(path) for path in paths], columns=columns, root=root))
            case _:
                rows = stack.enter_context(open_list(paths[0], columns=columns, root=root, text=classes_from))
        yield rows


def _refuse_unused(path: Path, kind: str, options: FolderOptions) -> None:
    """Raise `ArgumentError` if an option is given that means nothing for this kind of source."""
    for name in sorted(_OPTIONS - _USED.get(kind, set())):
        value = getattr(options, name)
        if value and value != getattr(FolderOptions(), name):
            raise ArgumentError(
                f"{printable(str(path))}: {name} (--{name.replace('_', '-')}) is an option for folders of images, and "
                f"has no effect on a source of kind {kind!r}. Leave it out"
            )


def _kind(path: Path, folder: FolderOptions) -> str:
    name = printable(str(path))
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _folder_kind(path, folder)
        if not stat.S_ISREG(mode):
            raise ArgumentError(f"{name}: is a device, pipe or socket. Give a folder, a list, or tar shards")
        with path.open("rb") as file:
            head = file.read(_TAR_MAGIC.stop)
    except OSError as error:
        raise StorageError(
            f"{name}: the source cannot be read: {error.strerror or error}. Give a folder of images, a list of "
            "'path label' lines, an index, or tar shards"
        ) from error
    refuse_compressed_name(str(path))
    refuse_compressed(str(path), head)
    if path.suffix.lower() == ".tar" or head[_TAR_MAGIC] == b"ustar":
        return "tar"
    if data_file(path) is not None:
        return "lmdb"
    if head.startswith((b"ARROW1\0\0", b"\xff\xff\xff\xff")):
        return "arrow"
    if head.startswith(HDF5_MAGIC):
        return "hdf5"
    if head.startswith(b"PAR1"):
        return "parquet"
    if path.suffix.lower() == ".json":
        return "coco"
    if is_voc_set(path):
        return "voc"
    if "tfrecord" in path.name.lower() or _starts_with_record(head):
        return "tfrecord"
    if path.suffix.lower() in {".yaml", ".yml"}:
        raise ArgumentError(
            f"{name}: is YAML, not a list of files. For a dataset in YOLO's layout, give the folder that holds "
            "`images` and `labels`"
        )
    if path.name.lower().endswith(folder.extensions):
        raise ArgumentError(f"{name}: is one image. Give the folder that holds it: {path.parent}")
    return "list"


def _folder_kind(path: Path, folder: FolderOptions) -> str:
    if data_file(path) is not None:
        return "lmdb"
    if is_voc_folder(path):
        return "voc"
    return "yolo" if is_yolo_folder(path, folder.extensions) else "folder"


def _starts_with_record(head: bytes) -> bool:
    try:
        import crc32c  # noqa: PLC0415  an optional package
    except ImportError:
        return False
    return is_tfrecord(head, crc32c.crc32c)
