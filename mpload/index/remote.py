"""Objects below a URL, as a folder of images."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpload.errors import ArgumentError
from mpload.index.rows import LeftOut, Reason
from mpload.storage.remote import list_objects

if TYPE_CHECKING:
    from mpload.index.folders import FolderOptions

__all__ = ["RemoteWalk"]


@dataclass(slots=True)
class RemoteWalk:
    """Finds the images below a URL, in no order. Each walk is a list of all objects.

    Memory: a page of the list, and at the top the names of folders.
    """

    folder: str
    options: "FolderOptions"
    left_out: LeftOut = field(default_factory=LeftOut)
    classes: list[str] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)

    def top(self) -> Iterator[str]:
        """Yield the images that lie at the URL itself, and note the names of folders."""
        folders = set()
        for path, _ in list_objects(self.folder):
            folder, slash, _ = path.partition("/")
            if slash:
                if self.options.hidden or not folder.startswith("."):
                    folders.add(folder)
            elif path.lower().endswith(".tar"):
                raise ArgumentError(
                    f"{self.folder}: holds tar shards ({path}), which are not indexed behind a URL. Index a copy on "
                    f"this machine, and say where they are read from: mpload index FOLDER --root {self.folder}"
                )
            elif self._is_image(path):
                yield f"\0{path}"
        self.classes.extend(folders)

    def images(self, start: str) -> Iterator[str]:
        """Yield all images below the folder `start`."""
        for path, _ in list_objects(f"{self.folder}/{start}" if start else self.folder):
            full = f"{start}/{path}" if start else path
            if self._is_image(full):
                directory, _, name = full.rpartition("/")
                yield f"{directory}\0{name}"

    def _is_image(self, path: str) -> bool:
        if not self.options.hidden and (path.startswith(".") or "/." in path):
            if path.lower().endswith(self.options.extensions):
                self.left_out.add(Reason.HIDDEN, path)
            return False
        if not path.lower().endswith(self.options.extensions):
            self.left_out.add(Reason.EXTENSION, path)
            return False
        return True
