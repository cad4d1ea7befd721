r"""Folders of images: one folder per class, as in torchvision's ImageFolder, or one flat folder.

Classes are ordered by name, the directories of a class by path, and the files of a directory by name, each in the order
of `sorted()` for strings. ImageFolder gets the same order from `sorted(os.walk(...))`.

Each directory is read once, by `os.scandir`. The names of a class go through an external merge sort
(`mpload.ingest.sorting`), so that memory does not grow with their number. The sort keys are `DIRECTORY\0NAME`, because
NUL never occurs in a name and sorts before every other character.
"""

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, ColumnType, parse_columns
from mpload.ingest.buckets import RemoteWalk
from mpload.ingest.class_folders import (
    SPLIT_FOLDERS,
    names_of_some,
    refuse_link_outside,
    refuse_linked_classes,
    refuse_more_beside_classes,
    refuse_splits,
)
from mpload.ingest.cluster import Cluster
from mpload.ingest.cluster_listing import sorted_on_cluster
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.pairs import CAPTION, Beside, belongs_to_image, captions_of
from mpload.ingest.rows import LeftOut, Reason, Rows, rename_columns, root_and_prefix
from mpload.ingest.sorting import sorted_strings
from mpload.ingest.tables import open_arrows, open_parquets
from mpload.ingest.tars import open_tars, refuse_compressed_name
from mpload.units import printable

__all__ = ["open_folder"]

_Class = tuple[str, Iterator[str]]
_PARQUET = ".parquet"
_TABLES = (_PARQUET, ".arrow")
_MAX_CLASS_NAMES_BYTES = 15 << 20  # a directive of an index holds at most 16 MiB


@contextmanager
def open_folder(
    folder: str,
    *,
    options: FolderOptions,
    scratch: Path,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    beside: Beside | None = None,
    on: Cluster | None = None,
    confined_to: str | None = None,
) -> Iterator[Rows]:
    """Open a folder of class folders, a flat folder of images, or a folder of tar, Parquet or Arrow shards.

    Args:
        folder: an absolute path, or a URL.
        options: which files count as images.
        scratch: folder for temporary files of the sort.
        columns: other names for the columns. Without an integer column, as in `image:path`, class folders have no
            meaning: all images below `folder` are listed without labels.
        root: a parent folder that the paths are relative to. By default, `folder` itself, or the innermost folder that
            contains the files beside the images too.
        beside: files that belong to images. Subfolders are no classes then. By default, `options.beside`, or the
            captions of a flat folder in which an image has a .txt file of the same name.
        on: machines that list a URL, and share `scratch`.
        confined_to: the folder that links must not lead out of, if they are followed. By default, the root.

    Raises:
        ArgumentError: there are no images, a class has no images or is a link, more images lie beside the class folders
            than in them, a link leads out of the root, or there are both images and tar shards.
        StorageError: a directory cannot be read.
    """
    is_pair = beside is not None
    if beside is None and options.beside:
        beside = Beside(folder=folder, patterns=options.beside)
    if beside is not None and "://" in folder:
        raise ArgumentError(
            f"{folder}: files beside images are looked for in local folders only. Index a local copy, and give the URL "
            f"as its root: mpload index FOLDER --root {folder}"
        )
    base, prefix = root_and_prefix(folder, root) if beside is None else beside.root_and_prefix(root)
    walk = RemoteWalk(folder, options) if "://" in folder else _Walk(folder, options, confined_to=confined_to or base)
    types = None if columns is None else [column.type for column in parse_columns(columns)]
    labelled_or_shards = {ColumnType.INT, ColumnType.SPAN, ColumnType.ROW}
    unlabelled = is_pair or (types is not None and labelled_or_shards.isdisjoint(types))

    def rows(
        names: str, cells: Iterator[tuple[Cell, ...]], beside: Beside | None, classes: tuple[str, ...] = ()
    ) -> Rows:
        found = parse_columns(names)
        return Rows(
            columns=rename_columns(found if beside is None else found + beside.columns, columns),
            root=base,
            cells=cells if beside is None else beside.add_to(cells, prefix=prefix, root=base, left_out=walk.left_out),
            classes=classes,
            left_out=walk.left_out,
        )

    with ExitStack() as stack:
        found = walk.images("") if unlabelled else walk.top()
        if on is not None and isinstance(walk, RemoteWalk):
            keys = stack.enter_context(sorted_on_cluster(walk, on, unlabelled=unlabelled, scratch=scratch))
        else:
            keys = stack.enter_context(sorted_strings(found, folder=scratch))
        loose = keys if unlabelled else itertools.islice(keys, walk.num_loose)
        first_loose = next(loose, None)
        if walk.shards:
            _refuse_images_beside_shards(walk, first_loose)
            shards = [f"{folder}/{name}" for name in sorted(walk.shards)]
            tars = open_tars(shards, extensions=options.extensions, columns=columns, root=root or folder)
            yield stack.enter_context(tars)
            return
        beside_classes = walk.beside.take(Reason.EXTENSION)  # ignored if there are class folders
        if isinstance(walk, RemoteWalk):
            walk.add_empty_classes()
        classes = sorted(walk.classes)
        if columns is None and not unlabelled:
            refuse_splits(folder, classes, walk.laid_out_as_splits())
            if isinstance(walk, RemoteWalk):
                walk.refuse_pairs()
        labelled = _labelled(walk, classes, walk.in_classes(keys, loose, scratch), prefix)
        if (first := next(labelled, None)) is not None:
            if isinstance(walk, _Walk):
                refuse_linked_classes(folder, walk.linked)
            if first_loose is not None:
                walk.left_out.add(Reason.BESIDE_CLASSES, _path(first_loose), walk.num_loose)
            if len("\t".join(classes).encode("utf-8", "surrogateescape")) > _MAX_CLASS_NAMES_BYTES:
                raise ArgumentError(
                    f"{folder}: the names of its {len(classes)} class folders are too long for an index. "
                    "If these are not classes, give columns='image:path' for images without labels"
                )
            yield rows("image:path label:int", itertools.chain([first], labelled), beside, tuple(classes))
            return
        walk.left_out.add(Reason.EXTENSION, *beside_classes)
        if first_loose is not None:
            if beside is None and columns is None and isinstance(walk, _Walk) and walk.num_texts:
                again = _Walk(folder, options, confined_to=walk.confined_to)  # which counts what is left out anew
                with sorted_strings(again.stems(), folder=scratch) as stems:
                    beside = captions_of(folder, map(_stem, stems), walk.left_out)
            if beside is None:
                walk.left_out.add(Reason.EXTENSION, walk.text, walk.num_texts)  # captions of other images
            yield rows("image:path", ((prefix + _path(key),) for key in itertools.chain([first_loose], loose)), beside)
        elif walk.tables:
            tables = [f"{folder}/{name}" for name in sorted(walk.tables)]
            yield stack.enter_context(_open_tables(tables, columns, root or folder))
        else:
            walk.left_out.add(Reason.EXTENSION, walk.text, walk.num_texts)
            left_out = f" Left out: {walk.left_out}." if walk.left_out else ""
            raise ArgumentError(
                f"{folder}: no image found. Names of images end in {', '.join(options.extensions)}.{left_out} "
                "Give a folder that contains images, class folders of images, or tar shards"
            )


def _labelled(
    walk: "_Walk | RemoteWalk", classes: list[str], in_classes: Iterator[_Class], prefix: str
) -> Iterator[tuple[Cell, ...]]:
    numbers = {name: number for number, name in enumerate(classes)}
    seen = set()
    num_in_classes = 0
    for name, keys in in_classes:
        for key in keys:
            yield prefix + _path(key), numbers[name]
            seen.add(name)
            num_in_classes += 1
    if num_in_classes:
        refuse_more_beside_classes(walk.folder, classes, num_beside=walk.num_loose, num_in_classes=num_in_classes)
    empty = [name for name in classes if name not in seen]
    if empty and len(empty) < len(classes):
        raise ArgumentError(
            f"{walk.folder}: found no images for the classes {names_of_some(empty)}. Names of images end in "
            f"{', '.join(walk.options.extensions)}. Delete or move these folders, as each folder is a numbered class"
        )


def _open_tables(files: list[str], columns: str | None, root: str | os.PathLike[str]) -> AbstractContextManager[Rows]:
    parquets = [file for file in files if file.lower().endswith(_PARQUET)]
    if 0 < len(parquets) < len(files):
        other = next(file for file in files if file not in parquets)
        raise ArgumentError(
            f"{printable(parquets[0])} and {printable(other)}: are tables of two kinds. Index one kind after the "
            "other, then join the indexes: mpload merge"
        )
    return (open_parquets if parquets else open_arrows)(files, columns=columns, root=root)


def _refuse_images_beside_shards(walk: "_Walk | RemoteWalk", image: str | None) -> None:
    if image is None:
        image = next(itertools.chain.from_iterable(map(walk.images, walk.classes)), None)
    if image is not None:
        raise ArgumentError(
            f"{walk.folder}: contains both images ({printable(_path(image))}) and tar shards "
            f"({printable(min(walk.shards))}). Move them to separate folders, or give the shards as a list"
        )


def _path(key: str) -> str:
    above, _, name = key.rpartition("\0")
    directory = above.rpartition("\0")[2]  # the keys of a URL start with the class
    return f"{directory}/{name}" if directory else name


def _stem(key: str) -> tuple[str, bool]:
    stem, _, kind = key.rpartition("\0")
    return stem, kind == _Kind.TEXT.value


class _Kind(Enum):
    FOLDER = "folder"
    IMAGE = "image"
    SHARD = "shard"
    TEXT = "text"


@dataclass(slots=True)
class _Walk:
    """Finds the images below a folder, in no particular order.

    Memory: one open directory per level, and the names of the folders and shards at the top level.
    """

    folder: str
    options: FolderOptions
    confined_to: str
    """The root of the index, which links must not lead out of. A URL stands for a copy without links."""
    left_out: LeftOut = field(default_factory=LeftOut)
    beside: LeftOut = field(default_factory=LeftOut)
    """Files beside the class folders that are neither images nor shards."""
    classes: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    """Links to folders at the top level, which are not followed."""
    shards: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    """Parquet and Arrow files. They are used if there are neither shards nor images."""
    num_loose: int = 0
    num_texts: int = 0
    """Number of .txt files at the top level."""
    text: str = ""
    """One of these .txt files."""
    companions: re.Pattern[str] | None = field(init=False)
    """Matches the paths of files that belong to images."""

    def __post_init__(self) -> None:
        self.companions = belongs_to_image(self.options.beside or {})

    def top(self) -> Iterator[str]:
        """Yield the images directly in the folder, and collect the names of its subfolders and shards."""
        with self._open("") as entries:
            for entry in self._read("", entries):
                match self._kind("", entry, shards=True):
                    case _Kind.FOLDER:
                        self.classes.append(entry.name)
                    case _Kind.SHARD:
                        self.shards.append(entry.name)
                    case _Kind.IMAGE:
                        self.num_loose += 1
                        yield f"\0{entry.name}"
                    case _Kind.TEXT:
                        self.num_texts += 1
                        self.text = entry.name

    def stems(self) -> Iterator[str]:
        r"""Yield `STEM\0image` for each image directly in the folder, and `STEM\0text` for each text."""
        with self._open("") as entries:
            for entry in self._read("", entries):
                kind = self._kind("", entry, shards=True)
                if kind is _Kind.IMAGE or kind is _Kind.TEXT:
                    yield f"{os.path.splitext(entry.name)[0]}\0{kind.value}"  # noqa: PTH122

    def in_classes(self, _keys: Iterator[str], _loose: Iterator[str], scratch: Path) -> Iterator[_Class]:
        """Yield each class and its images, in order."""
        for name in sorted(self.classes):
            with sorted_strings(self.images(name), folder=scratch) as keys:
                yield name, keys

    def laid_out_as_splits(self) -> list[str]:
        """Return the class folders that hold `images` and `labels`, as splits in YOLO's layout do."""
        return [
            name
            for name in sorted(self.classes)
            if all(os.path.isdir(self._full(f"{name}/{inner}")) for inner in SPLIT_FOLDERS)  # noqa: PTH112
        ]

    def images(self, start: str) -> Iterator[str]:
        """Yield all images below the folder `start`."""
        above = [self._identity("")] if start else []
        stack = [(start, self._identity(start), self._open(start))]
        try:
            while stack:
                directory, _, entries = stack[-1]
                for entry in self._read(directory, entries):
                    kind = self._kind(directory, entry)
                    if kind is _Kind.IMAGE:
                        yield f"{directory}\0{entry.name}"
                    elif kind is _Kind.FOLDER:
                        inner = f"{directory}/{entry.name}" if directory else entry.name
                        identity = self._identity(inner)
                        if identity and identity in [*above, *(other for _, other, _ in stack)]:
                            raise ArgumentError(
                                f"{printable(self._full(inner))}: is a link to a folder that contains it. "
                                "Delete the link, or do not follow links"
                            )
                        stack.append((inner, identity, self._open(inner)))
                        break  # depth first, so that only one directory per level is open
                else:
                    stack.pop()[2].close()
        finally:
            for _, _, entries in stack:
                entries.close()

    def _kind(self, directory: str, entry: os.DirEntry[str], *, shards: bool = False) -> _Kind | None:
        follow = self.options.follow_links
        ending = entry.name.lower()
        is_image = ending.endswith(self.options.extensions)
        is_folder = entry.is_dir(follow_symlinks=follow)
        example = f"{directory}/{entry.name}" if directory else entry.name
        if entry.name.startswith(".") and not self.options.hidden:
            if is_image or is_folder:
                self.left_out.add(Reason.HIDDEN, example)
            return None
        if is_folder:
            self._check_link(entry, example)
            return _Kind.FOLDER
        if not follow and entry.is_symlink():
            self.left_out.add(Reason.LINK, example)
            if shards and os.path.isdir(entry.path):  # noqa: PTH112  entry.is_dir() raises for a link to itself
                self.linked.append(entry.name)
            return None
        if shards:
            refuse_compressed_name(f"{self.folder}/{entry.name}")
        is_shard = shards and ending.endswith(".tar")
        if shards and ending.endswith(_TABLES) and entry.is_file(follow_symlinks=follow):
            self._check_link(entry, example)
            self.tables.append(entry.name)
        if self.companions is not None and self.companions.fullmatch(example):
            return None
        if shards and entry.name.endswith(CAPTION) and entry.is_file(follow_symlinks=follow):
            return _Kind.TEXT
        if not is_image and not is_shard:
            (self.beside if shards else self.left_out).add(Reason.EXTENSION, example)
            return None
        if not entry.is_file(follow_symlinks=follow):
            self.left_out.add(Reason.NO_FILE, example)
            return None
        self._check_link(entry, example)
        return _Kind.IMAGE if is_image else _Kind.SHARD

    def _check_link(self, entry: os.DirEntry[str], path: str) -> None:
        if self.options.follow_links and "://" not in self.confined_to and entry.is_symlink():
            refuse_link_outside(self._full(path), self.folder, self.confined_to)

    def _full(self, directory: str) -> str:
        return f"{self.folder}/{directory}" if directory else self.folder

    def _identity(self, directory: str) -> tuple[int, int] | None:
        """Return the device and inode of a directory, to detect loops of links; None if links are not followed."""
        if not self.options.follow_links:
            return None
        status = Path(self._full(directory)).stat()
        return status.st_dev, status.st_ino

    def _open(self, directory: str) -> "os._ScandirIterator[str]":
        try:
            return os.scandir(self._full(directory))
        except OSError as error:
            raise self._error(directory, error) from error

    def _read(self, directory: str, entries: "os._ScandirIterator[str]") -> Iterator[os.DirEntry[str]]:
        try:
            for entry in entries:  # noqa: UP028  `yield from` would close the directory when the caller breaks off
                yield entry
        except OSError as error:
            raise self._error(directory, error) from error

    def _error(self, directory: str, error: OSError) -> StorageError:
        result = StorageError(
            f"{printable(self._full(directory))}: the directory cannot be read: {error.strerror or error}. "
            "Give this user permission to read it, or move it out of the source"
        )
        result.errno = error.errno
        return result
