"""`FolderOptions`: which files of a folder or a shard count as images."""

from collections.abc import Mapping
from dataclasses import dataclass

from mpload.errors import ArgumentError

__all__ = ["IMAGE_EXTENSIONS", "FolderOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """Which files of a folder or a shard count as images.

    `build_index` counts the files that it leaves out, and warns about them.

    Raises:
        ArgumentError: `extensions` is empty, or one does not start with a dot, or a pattern of `beside` has no `{}`.
    """

    follow_links: bool = False
    """Follow symbolic links. It is an error if one leads outside the root: give `build_index` a `root` that contains
    both."""
    hidden: bool = False
    """Include files and folders whose names start with a dot."""
    extensions: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
    """Extensions of images, in lower case. They match file names in either case. The default is torchvision's."""
    beside: Mapping[str, str] | None = None
    """Further columns: the file that belongs to each image of a local folder, by a pattern that is relative to the
    folder. `{}` stands for the path of the image without its extension: `{"mask": "../masks/{}.png", "caption":
    "{}.txt"}`."""

    def __post_init__(self) -> None:
        if not self.extensions:
            raise ArgumentError("extensions is empty, so no file is an image. Give some, such as ('.jpg', '.png')")
        for extension in self.extensions:
            if not extension.startswith(".") or len(extension) < 2 or extension != extension.lower():
                raise ArgumentError(f"extension {extension!r} must start with a dot and be in lower case, as '.jpg' is")
        for name, pattern in (self.beside or {}).items():
            if "{}" not in pattern:
                raise ArgumentError(
                    f"beside: the pattern {pattern!r} of {name!r} lacks {{}}, which stands for the path of the image "
                    "without its extension. Write a pattern such as '../masks/{}.png'"
                )


IMAGE_EXTENSIONS = FolderOptions().extensions
