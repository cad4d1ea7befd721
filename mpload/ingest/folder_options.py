"""What counts as an image in a folder or a tar shard."""

from dataclasses import dataclass

from mpload.errors import ArgumentError

__all__ = ["IMAGE_EXTENSIONS", "FolderOptions"]

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those of torchvision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """What counts as an image in a folder or a tar shard.

    What is left out is counted, and `build_index` warns about it.

    Raises:
        ArgumentError: `extensions` is empty, or one does not start with a dot.
    """

    follow_links: bool = False
    """Take what symbolic links lead to. Where they lead out of the root, reading asks for `allow_outside_root`."""
    hidden: bool = False
    """Take files and folders whose names start with a dot."""
    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    """Endings of the names of images, in lower case; names may be in either."""

    def __post_init__(self) -> None:
        if not self.extensions:
            raise ArgumentError("extensions is empty: no file would be an image. Give some, such as ('.jpg', '.png')")
        for extension in self.extensions:
            if not extension.startswith(".") or len(extension) < 2 or extension != extension.lower():
                raise ArgumentError(f"extension {extension!r} must start with a dot and be in lower case, as '.jpg' is")
