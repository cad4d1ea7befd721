"""Files that belong to the images of a folder, such as masks and captions, as further columns of type `path`.

A pattern says where the file of an image is. In it, `{}` stands for the path of the image without its extension, and
the whole pattern is relative to the folder of images: `{}.txt` lies next to the image, `../masks/{}.png` in a folder
with the same subfolders.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, ColumnType, parse_columns
from mpload.index.opening import is_outside
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.rows import LeftOut, Reason, root_and_prefix
from mpload.ingest.unmatched import count_unmatched, in_any_case
from mpload.units import printable

__all__ = ["CAPTION", "Beside", "belongs_to_image", "captions_of", "named_as_pair", "pair_of_folders"]

CAPTION = ".txt"
"""The extension of captions."""
_IMAGES = "images"
_MASKS = "masks"
_IMAGE_FOLDERS = _IMAGES, "image", "imgs", "img", "Images"
_MASK_FOLDERS = _MASKS, "mask", "Masks"
_ARRAY = ".npy"
_PAIR = [ColumnType.PATH, ColumnType.PATH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The files that belong to each image of a local folder."""

    folder: str
    """The absolute path of the folder of images."""
    patterns: Mapping[str, str]
    """The pattern of each column."""
    source: str | None = None
    """The folder that a root at a URL is a copy of. None if that is the folder of images."""
    next_step: str = "Correct the pattern, or index images without it separately"
    """What to do if a file is missing."""
    masks: str | None = None
    """The folder of masks, whose files should all belong to an image; None if other files may lie among them."""
    extensions: tuple[str, ...] = ()
    """Extensions of images."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of these files, in the order of the patterns."""
        return tuple(Column(name=name, type=ColumnType.PATH) for name in self.patterns)

    @property
    def root(self) -> str:
        """The innermost folder that contains the images and all their files."""
        starts = [self._full(pattern.partition("{}")[0] + "x") for pattern in self.patterns.values()]
        return os.path.commonpath([self.folder, *map(os.path.dirname, starts)])

    def root_and_prefix(self, root: str | os.PathLike[str] | None) -> tuple[str, str]:
        """Return the absolute root, and the prefix that makes paths of images relative to it.

        Args:
            root: the root of the index; None means `self.root`.

        Raises:
            ArgumentError: the images or their files are outside the root.
        """
        base, prefix = root_and_prefix(self.folder, self.root if root is None else root)
        if is_outside(self.root, self._base(base)):
            raise ArgumentError(
                f"root {printable(base)} does not contain the files beside the images of {printable(self.folder)}. "
                f"Give a folder that contains both, such as {printable(self.root)}"
            )
        if "://" in base and self.source is not None:
            prefix = os.path.relpath(self.folder, self.source) + "/"
        return base, prefix

    def paths(self, image: str, root: str) -> list[str]:
        """Return the paths of an image's files, relative to `root`.

        Args:
            image: the path of the image, relative to the folder.
            root: the root of the index, as `root_and_prefix` returns it.

        Raises:
            ArgumentError: a file does not exist.
        """
        stem = os.path.splitext(image)[0]  # noqa: PTH122
        found = []
        for name, pattern in self.patterns.items():
            full = self._full(pattern.replace("{}", stem))
            if not os.path.isfile(full):  # noqa: PTH113
                raise ArgumentError(
                    f"{printable(self.folder)}: image {printable(image)} has no file {printable(full)} "
                    f"(column {name}). {self.next_step}"
                )
            found.append(os.path.relpath(full, self._base(root)))
        return found

    def add_to(
        self, rows: Iterator[Sequence[Cell]], *, prefix: str, root: str, left_out: LeftOut
    ) -> Iterator[list[Cell]]:
        """Yield each row with the paths of its files, then count masks that belong to no image.

        Args:
            rows: the rows. The first cell is the path of the image.
            prefix: leads from the root to the folder of images.
            root: the root of the index, as `root_and_prefix` returns it.
            left_out: counts masks without an image.
        """
        for cells in rows:
            yield [*cells, *self.paths(str(cells[0])[len(prefix) :], root)]
        if self.masks is not None:
            count_unmatched(
                left_out,
                Reason.MASK_ALONE,
                folder=self.masks,
                endings=(*self.extensions, _ARRAY),
                partners=self.folder,
                partner_endings=in_any_case(self.extensions),
            )

    def _base(self, root: str) -> str:
        return (self.source or self.folder) if "://" in root else root

    def _full(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.folder, path))  # noqa: PTH118


def pair_of_folders(folder: Path, options: FolderOptions, columns: str | None) -> Beside | None:
    """Return the images and masks of a folder that contains `images` and `masks`; None if it is another one.

    If `columns` are not those of a pair, the folders are treated as classes.

    Raises:
        ArgumentError: there are also other folders or images, or the two have other names of this kind.
    """
    if options.beside or (columns is not None and [column.type for column in parse_columns(columns)] != _PAIR):
        return None
    try:
        found = named_as_pair(lambda name: (folder / name).is_dir())
    except OSError:  # opening the folder raises an error that says more
        return None
    if found is None:
        return None
    if columns is None:
        _refuse_others(folder, *found, options.extensions)
    if found != (_IMAGES, _MASKS):
        return None
    names = (name for _, _, files in os.walk(folder / _MASKS) for name in sorted(files) if not name.startswith("."))
    name = next((name for name in names if name.lower().endswith((*options.extensions, _ARRAY))), None)
    if name is None:
        return None
    pattern = f"../{_MASKS}/{{}}{os.path.splitext(name)[1]}"  # noqa: PTH122
    return Beside(
        folder=str(folder / _IMAGES),
        patterns={"mask": pattern},
        source=str(folder),
        next_step="Add the mask or delete the image. If these are two classes, give columns='image:path label:int'",
        masks=str(folder / _MASKS),
        extensions=options.extensions,
    )


def named_as_pair(is_folder: Callable[[str], bool]) -> tuple[str, str] | None:
    """Return the names of a folder of images and of a folder of masks, if both exist."""
    found = []
    for names in (_IMAGE_FOLDERS, _MASK_FOLDERS):
        name = next(filter(is_folder, names), None)
        if name is None:
            return None
        found.append(name)
    return found[0], found[1]


def _refuse_others(folder: Path, images: str, masks: str, extensions: tuple[str, ...]) -> None:
    """Refuse a pair that would be taken for classes, or hide other images."""
    with os.scandir(str(folder)) as entries:
        others = sorted(
            entry.name + "/" * entry.is_dir()
            for entry in entries
            if entry.name[0] != "."
            and entry.name not in {images, masks}
            and (entry.is_dir() or entry.name.lower().endswith(extensions))
        )
    if others or (images, masks) != (_IMAGES, _MASKS):
        also = f", but also {printable(others[0])}" if others else ""
        raise ArgumentError(
            f"{printable(str(folder))}: has {images}/ and {masks}/{also}. If masks belong to images, index "
            f"{printable(str(folder / images))} with beside={{'mask': '../{masks}/{{}}.png'}} (--beside "
            f"'mask=../{masks}/{{}}.png'). If all folders are classes, give columns='image:path label:int' (--columns)"
        )


def captions_of(folder: str, stems: Iterable[tuple[str, bool]], left_out: LeftOut) -> Beside | None:
    """Return the captions of a flat folder, and count texts that are none; None if no image has a caption.

    Args:
        folder: its absolute path.
        stems: the name of each image and of each text in it, without the extension, and whether it is a text. Sorted.
        left_out: counts texts that belong to no image, if others are captions.
    """
    num_pairs, alone = 0, LeftOut()
    for stem, found in groupby(stems, key=itemgetter(0)):
        are_texts = {is_text for _, is_text in found}
        num_pairs += len(are_texts) == 2
        if are_texts == {True}:
            alone.add(Reason.TEXT_ALONE, f"{stem}{CAPTION}")
    if not num_pairs:
        return None
    left_out.add(Reason.TEXT_ALONE, *alone.take(Reason.TEXT_ALONE))
    return Beside(
        folder=folder,
        patterns={"caption": f"{{}}{CAPTION}"},
        next_step="Add the caption or delete the image. To index images without captions, give columns='image:path'",
    )


def belongs_to_image(patterns: Mapping[str, str]) -> re.Pattern[str] | None:
    """Return an expression that matches the relative paths of files of `patterns`, which are not images themselves."""
    inside = [os.path.normpath(pattern) for pattern in patterns.values()]
    parts = [
        ".+".join(map(re.escape, pattern.split("{}"))) for pattern in inside if not pattern.startswith(("/", ".."))
    ]
    return re.compile("|".join(parts), re.DOTALL) if parts else None
