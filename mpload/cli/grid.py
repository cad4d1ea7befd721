"""A contact sheet: random samples of an index with their labels, as a PNG or as an HTML page.

An HTML page can show names in any script, because the browser renders them. A PNG shows only names that OpenCV's font
can render, and the class number instead of any other name. `Sheet.unshown` maps these numbers to the names.
"""

import textwrap
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np

from mpload.cli.lettering import Lettering
from mpload.cli.overlays import draw_mask, draw_objects, mask_in
from mpload.cli.pages import render_page
from mpload.errors import MploadError
from mpload.images.decoders import ImageDecoder, RawBytes
from mpload.images.resize import Pixels
from mpload.index.index import Index, Record, header_of, require_files
from mpload.index.publishing import new_file
from mpload.ingest.checking import OBJECT_COLUMNS
from mpload.plan.order import Shuffle
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.units import format_count, format_counted

__all__ = ["Sheet", "Tile", "read_sheet"]

_TILE = 176
_PAGE_TILE = 2 * _TILE  # high-density screens have several pixels per CSS pixel
_MAX_ENLARGEMENT = 2
_GAP = 12
_CAPTION = 40
_BACKGROUND = (24, 26, 30)
_MAT = (36, 39, 45)
_BRIGHT, _DIM, _ALARM = (232, 234, 238), (142, 148, 158), (240, 128, 112)
_JPEG_QUALITY = 85
_CAPTION_LETTERS = 60
_ARRAYS = (b"\x93NUMPY", b"PK\x03\x04")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """An image of a sample, and its caption."""

    image: Pixels | str
    """uint8 RGB [H, W, 3], at most 352 x 352, or the reason why it cannot be shown."""
    number: str
    """The class number, or `#` and the sample's number if classes are not numbered."""
    name: str
    """The class name; empty if it is not known."""
    facts: tuple[str, ...]
    """The sample's number, the column if there are several images, the size of the image, and its captions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A title and its tiles."""

    title: str
    tiles: tuple[Tile, ...]
    lettering: Lettering = field(default_factory=Lettering)

    @property
    def unshown(self) -> dict[str, str]:
        """The names that a PNG cannot show, keyed by the number that it shows instead."""
        names = {tile.number: tile.name for tile in self.tiles if not self.lettering.has(tile.name)}
        return dict(sorted(names.items(), key=lambda item: (len(item[0]), item[0])))

    def write(self, path: Path) -> None:
        """Write the sheet as an HTML page if `path` ends in `.html`, otherwise as a PNG.

        Raises:
            ArgumentError, StorageError: The file cannot be written.
        """
        if path.suffix.lower() == ".html":
            data = self.to_html().encode("utf-8", "backslashreplace")
        else:
            data = cv2.imencode(".png", cv2.cvtColor(self.to_pixels(), cv2.COLOR_RGB2BGR))[1].tobytes()
        with new_file(path) as file:
            file.write(data)

    def to_html(self) -> str:
        """Return a self-contained HTML page."""
        return render_page(
            "sheet.html.j2",
            title=self.title,
            tiles=[
                {
                    "number": tile.number,
                    "name": tile.name,
                    "facts": tile.facts,
                    "reason": tile.image if isinstance(tile.image, str) else "",
                    "image": "" if isinstance(tile.image, str) else _data_url(tile.image),
                    "width": 0 if isinstance(tile.image, str) else _MAX_ENLARGEMENT * tile.image.shape[1],
                }
                for tile in self.tiles
            ],
        )

    def to_pixels(self) -> Pixels:
        """Return a roughly square picture of the tiles in rows: uint8 RGB [H, W, 3]."""
        height, width = _TILE + _CAPTION, _TILE
        num_columns = min(len(self.tiles), round((len(self.tiles) * 1.4) ** 0.5) or 1)
        num_rows = -(-len(self.tiles) // num_columns)
        shape = (num_rows * (height + _GAP) + _GAP, num_columns * (width + _GAP) + _GAP, 3)
        sheet = np.full(shape, _BACKGROUND, np.uint8)
        for place, tile in enumerate(self.tiles):
            top = _GAP + place // num_columns * (height + _GAP)
            left = _GAP + place % num_columns * (width + _GAP)
            sheet[top : top + height, left : left + width] = self._draw(tile)
        return sheet

    def _draw(self, tile: Tile) -> Pixels:
        pixels = np.full((_TILE + _CAPTION, _TILE, 3), _BACKGROUND, np.uint8)
        mat = pixels[:_TILE]
        mat[:] = _MAT
        write = self.lettering.write
        if isinstance(tile.image, str):
            for line, text in enumerate(textwrap.wrap(tile.image, width=21)[:7]):
                write(mat, text, row=20 + 22 * line, colour=_ALARM, indent=8)
        else:
            fitted = _fitted(tile.image, side=_TILE, max_enlargement=_MAX_ENLARGEMENT)
            top, left = (_TILE - fitted.shape[0]) // 2, (_TILE - fitted.shape[1]) // 2
            mat[top : top + fitted.shape[0], left : left + fitted.shape[1]] = fitted
        title = f"{tile.number}  {tile.name}".strip() if self.lettering.has(tile.name) else tile.number
        write(pixels, title, row=_TILE + 16, colour=_BRIGHT)
        write(pixels, "  ".join(tile.facts), row=_TILE + 34, colour=_DIM)
        return pixels


def read_sheet(index: Index, *, num_tiles: int, seed: int) -> Sheet:
    """Read random samples for a sheet, with a tile for each image of a record.

    Masks and objects are drawn over the first image, with the names of the objects' classes. The tile of an image that
    cannot be shown says why.
    """
    require_files(index, what="a sheet of images")
    sources = [column.name for column in index.columns if column.type.is_source]
    order = Shuffle().order(num_samples=len(index), seed=seed, epoch=0)
    pipeline = Pipeline(index=index, decode=RawBytes(), policy=ErrorPolicy())
    lettering = Lettering()
    tiles: list[Tile] = []
    num_shown = 0
    for sample_id in order.sample_ids(np.arange(min(len(index), num_tiles), dtype=np.int64)):
        (record,) = index.records([sample_id])
        number, name = _label(index, record)
        made = _pictures(pipeline, record, sources, index.classes, lettering)
        if num_shown and len(tiles) + len(made) > num_tiles:
            break
        num_shown += 1
        for source, picture in made.items():
            facts = [] if number.startswith("#") else [f"#{record.sample_id}"]
            facts += [source] * (len(made) > 1)
            if picture.size is not None:
                facts.append(f"{picture.size[1]} x {picture.size[0]}")
            facts += picture.texts
            tiles.append(Tile(image=picture.image, number=number, name=name, facts=tuple(facts)))
    title = f"{index.path}: {format_count(num_shown)} of {format_counted(len(index), 'sample')}"
    return Sheet(title=title, tiles=tuple(tiles), lettering=lettering)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    image: Pixels | str
    """The image, at most 352 x 352, with what was drawn over it, or the reason why it cannot be shown."""
    size: tuple[int, int] | None = None
    """Height and width of the original."""
    texts: tuple[str, ...] = ()
    """The beginning of each caption."""


def _pictures(
    pipeline: Pipeline, record: Record, sources: list[str], names: Sequence[str], lettering: Lettering
) -> dict[str, _Picture]:
    """Return the pictures of a record, by column. Masks, objects and captions are part of the first one."""
    try:
        made = pipeline.sample(record, seed=0, epoch=0)
    except MploadError as error:
        return {source: _Picture(image=str(error.__cause__ or error)) for source in sources}
    assert made is not None, "the error policy raises"
    values = {column.name: value for column, value in zip(record.columns, made[1], strict=True)}
    first, *others = sources
    pictures = {first: _decoded(values[first])}
    masks = []
    texts: list[str] = []
    objects = [str(values[name]) for name in OBJECT_COLUMNS if isinstance(values.get(name), str)]
    for source in others:
        data = values[source]
        if (text := _text_in(data)) is not None:
            if source in OBJECT_COLUMNS:
                objects.append(text)
            else:
                texts.append(" ".join(text.split())[:_CAPTION_LETTERS])
        elif data.startswith(_ARRAYS):
            continue
        elif (mask := mask_in(data)) is not None and mask_in(values[first]) is None:
            masks.append(mask)
        else:
            pictures[source] = _decoded(data)
    picture = pictures[first]
    if isinstance(picture.image, str) or picture.size is None:
        return pictures
    for mask in masks:
        draw_mask(picture.image, mask)
    height, width = picture.size
    for text in objects:
        try:
            draw_objects(picture.image, text, height=height, width=width, names=names, lettering=lettering)
        except ValueError:
            texts.append("unreadable objects")
    return {**pictures, first: replace(picture, texts=tuple(texts))}


def _text_in(data: bytes) -> str | None:
    """Return the text in a file; None if it holds something else."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if "".join(text.split()).isprintable() else None


def _decoded(data: bytes) -> _Picture:
    try:
        image = ImageDecoder()(data)
    except MploadError as error:
        return _Picture(image=str(error))
    # Full-size photos would take gigabytes.
    return _Picture(image=_fitted(image, side=_PAGE_TILE, max_enlargement=1), size=image.shape[:2])


def _label(index: Index, record: Record) -> tuple[str, str]:
    """Return the number and name of a record's class, or the sample's number if classes are not numbered."""
    column = header_of(index).label_column
    if column is None:
        words = [str(cell) for cell, each in zip(record.cells, record.columns, strict=True) if each.name == "label"]
        return f"#{record.sample_id}", " ".join(words)
    label = record.cells[column]
    assert isinstance(label, int), "label columns hold integers"
    return str(label), index.classes[label] if 0 <= label < len(index.classes) else ""


def _fitted(image: Pixels, *, side: int, max_enlargement: int) -> Pixels:
    """Return the image resized to fit a square, enlarged by at most `max_enlargement`."""
    height, width = image.shape[:2]
    factor = min(side / height, side / width, max_enlargement)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    fitted: Pixels = cv2.resize(image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC)  # type: ignore[assignment]
    return fitted


def _data_url(image: Pixels) -> str:
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    jpeg = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)[1].tobytes()
    return f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
