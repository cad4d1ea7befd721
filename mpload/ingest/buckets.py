"""Objects below a URL, as a folder of images."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.rows import LeftOut, Reason
from mpload.storage.remote import list_objects

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
    num_loose: int = 0
    num_in_classes: int = 0
    num_texts: int = 0
    text: str = ""

    def top(self) -> Iterator[str]:
        r"""Yield all images as keys `CLASS\0DIRECTORY\0NAME`.

        Images directly below the URL have no class, so they come first when the keys are sorted. The names of the
        classes and the numbers of images are complete once this iterator is exhausted.
        """
        yield from self.labelled_keys(path for path, _ in list_objects(self.folder))

    def labelled_keys(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the images among paths as `top` does."""
        folders = set()
        for path in paths:
            folder, slash, _ = path.partition("/")
            if slash:
                if self.options.hidden or not folder.startswith("."):
                    folders.add(folder)
                    if self._is_image(path, self.left_out):
                        self.num_in_classes += 1
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
        self.classes.extend(folders)

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
