"""Objects below a URL, as a folder of images."""

from collections import deque
from collections.abc import Iterator
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
    """Finds the images below a URL, in no order, by one list of all objects.

    Memory: some pages of the list, and the names of folders.
    """

    folder: str
    options: FolderOptions
    left_out: LeftOut = field(default_factory=LeftOut)
    beside: LeftOut = field(default_factory=LeftOut)
    """What lies beside the class folders."""
    classes: list[str] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    num_loose: int = 0
    num_in_classes: int = 0

    def top(self) -> Iterator[str]:
        r"""Yield all images as keys `CLASS\0DIRECTORY\0NAME`.

        Sorted, those come first that lie at the URL itself, without a class. The names of folders, and how many images
        there are, are known when all are found.
        """
        folders = set()
        for path, _ in list_objects(self.folder):
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
                    f"{self.folder}: holds tar shards ({path}), which are not indexed behind a URL. Index a copy on "
                    f"this machine, and say where they are read from: mpload index FOLDER --root {self.folder}"
                )
            elif self._is_image(path, self.beside):
                self.num_loose += 1
                yield f"\0\0{path}"
        self.classes.extend(folders)

    def in_classes(self, keys: Iterator[str], loose: Iterator[str], _: Path) -> Iterator[tuple[str, Iterator[str]]]:
        """Yield each class and its images, in order: what follows `loose` in the sorted `keys`."""
        if self.num_in_classes:
            deque(loose, maxlen=0)
            yield from groupby(keys, key=lambda key: key.partition("\0")[0])

    def images(self, start: str) -> Iterator[str]:
        r"""Yield all images below the folder `start`, as keys `DIRECTORY\0NAME`."""
        for path, _ in list_objects(f"{self.folder}/{start}" if start else self.folder):
            full = f"{start}/{path}" if start else path
            if self._is_image(full, self.left_out):
                directory, _, name = full.rpartition("/")
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
