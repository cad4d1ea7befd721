"""Objects below a URL, as a folder of images."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.ingest.class_folders import SPLIT_FOLDERS
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.pairs import named_as_pair
from mpload.ingest.rows import LeftOut, Reason
from mpload.storage.remote import list_folders, list_objects
from mpload.units import printable

__all__ = ["RemoteWalk"]


@dataclass(slots=True)
class RemoteWalk:
    """Finds the images below a URL, in no particular order, by listing all objects once.

    Memory: a few pages of the listing, and the names of the class folders.
    """

    folder: str
    options: FolderOptions
    left_out: LeftOut = field(default_factory=LeftOut)
    beside: LeftOut = field(default_factory=LeftOut)
    """Files beside the class folders that are not images."""
    classes: list[str] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    filled: set[str] = field(default_factory=set)
    """The class folders that hold images."""
    inner: set[str] = field(default_factory=set)
    """The folders of a split in YOLO's layout that class folders hold, as `FOLDER/images`."""
    num_loose: int = 0
    num_in_classes: int = 0
    num_empty: int = 0
    """Number of empty objects directly below the URL. Some may be markers of empty folders."""
    num_texts: int = 0
    text: str = ""

    def top(self) -> Iterator[str]:
        r"""Yield all images as keys `CLASS\0DIRECTORY\0NAME`.

        Images directly below the URL have no class, so they come first when the keys are sorted. The names of the
        classes and the numbers of images are complete once this iterator is exhausted.
        """
        yield from self.labelled_keys(list_objects(self.folder))

    def labelled_keys(self, objects: Iterable[tuple[str, int]]) -> Iterator[str]:
        """Yield the images among objects, paths and sizes in bytes, as `top` does."""
        folders = set()
        for path, num_bytes in objects:
            folder, slash, rest = path.partition("/")
            if slash:
                if self.options.hidden or not folder.startswith("."):
                    folders.add(folder)
                    if (inner := rest.partition("/")[0]) in SPLIT_FOLDERS:
                        self.inner.add(f"{folder}/{inner}")
                    if self._is_image(path, self.left_out):
                        self.num_in_classes += 1
                        self.filled.add(folder)
                        directory, _, name = path.rpartition("/")
                        yield f"{folder}\0{directory}\0{name}"
            elif path.lower().endswith(".tar"):
                raise ArgumentError(
                    f"{self.folder}: contains tar shards ({path}), which cannot be indexed through a URL. Index a "
                    f"local copy, and give the URL as its root: mpload index FOLDER --root {self.folder}"
                )
            elif self._is_image(path, self.beside):
                self.num_loose += 1
                yield f"\0\0{path}"
            else:
                self.num_empty += not num_bytes
        self.classes.extend(folders)

    def add_empty_classes(self) -> None:
        """Add empty folders. A bucket has only a marker of such a folder: an empty object called `FOLDER/`.

        obstore leaves out the slash at its end, so the folders are listed once more if there is an empty object.
        """
        if self.num_in_classes and self.num_empty:
            found = (name.rstrip("/") for name in list_folders(self.folder, at_any_cost=True))
            names = (name for name in found if self.options.hidden or not name.startswith("."))
            self.classes = sorted({*self.classes, *names})

    def laid_out_as_splits(self) -> list[str]:
        """Return the class folders that hold `images` and `labels`, as splits in YOLO's layout do."""
        return [
            name for name in sorted(self.classes) if all(f"{name}/{inner}" in self.inner for inner in SPLIT_FOLDERS)
        ]

    def refuse_pairs(self) -> None:
        """Raise `ArgumentError` if folders hold images and their masks or labels, and so are no classes."""
        pair = named_as_pair(lambda name: name in self.classes)
        if pair is None and set(SPLIT_FOLDERS) <= set(self.classes) and SPLIT_FOLDERS[1] not in self.filled:
            pair = SPLIT_FOLDERS
        if pair is not None:
            raise ArgumentError(
                f"{printable(self.folder)}: has {pair[0]}/ and {pair[1]}/, which are matched by the names of their "
                "files in local folders only. Index a local copy, and give the URL as its root: mpload index FOLDER "
                f"--root {printable(self.folder)}. If all folders are classes, give columns='image:path label:int' "
                "(--columns)"
            )

    def in_classes(self, keys: Iterator[str], loose: Iterator[str], _: Path) -> Iterator[tuple[str, Iterator[str]]]:
        """Yield each class and its images, in order. They follow the images of `loose` in the sorted `keys`."""
        if self.num_in_classes:
            deque(loose, maxlen=0)
            yield from groupby(keys, key=lambda key: key.partition("\0")[0])

    def images(self, start: str) -> Iterator[str]:
        r"""Yield all images below the folder `start`, as keys `DIRECTORY\0NAME`."""
        objects = list_objects(f"{self.folder}/{start}" if start else self.folder)
        yield from self.plain_keys(f"{start}/{path}" if start else path for path, _ in objects)

    def plain_keys(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the images among paths as `images` does."""
        for path in paths:
            if self._is_image(path, self.left_out):
                directory, _, name = path.rpartition("/")
                yield f"{directory}\0{name}"

    def _is_image(self, path: str, left_out: LeftOut) -> bool:
        if not self.options.hidden and (path.startswith(".") or "/." in path):
            if path.lower().endswith(self.options.extensions):
                self.left_out.add(Reason.HIDDEN, path)
            return False
        if not path.lower().endswith(self.options.extensions):
            left_out.add(Reason.EXTENSION, path)
            return False
        return True
