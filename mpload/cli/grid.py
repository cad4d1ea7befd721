"""A contact sheet: random samples of an index side by side, with their labels, as one picture."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from mpload.errors import MploadError
from mpload.images.decoders import ImageDecoder
from mpload.images.image import Pixels
from mpload.index.index import Index, Record
from mpload.plan.order import Shuffle
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy

__all__ = ["contact_sheet", "write_png"]

_TILE = 176
_GAP = 12
_CAPTION = 38
_BACKGROUND = (24, 26, 30)
_MAT = (36, 39, 45)
_BRIGHT, _DIM, _ALARM = (232, 234, 238), (142, 148, 158), (240, 128, 112)
_FINE = 2  # text is drawn so many times larger, then shrunk: thin strokes come out smooth


def contact_sheet(index: Index, *, num_tiles: int, seed: int) -> Pixels:
    """Return a picture of random samples, uint8 RGB [H, W, 3].

    Of a record with several images each has a tile. An image that cannot be shown leaves a tile that says why.
    """
    sources = [column.name for column in index.columns if column.type.is_source]
    num_samples = min(len(index), max(1, num_tiles // len(sources)))
    order = Shuffle().order(num_samples=len(index), seed=seed, epoch=0)
    pipeline = Pipeline(index=index, decode=ImageDecoder(), policy=ErrorPolicy())
    tiles = []
    for record in index.records(order.sample_ids(np.arange(num_samples, dtype=np.int64))):
        title = _title(index, record)
        for name, image in zip(sources, _images(pipeline, record), strict=True):
            about = f"#{record.sample_id}" + (f" {name}" if len(sources) > 1 else "")
            tiles.append(_tile(image, title=title, about=about))
    return _arrange(tiles)


def write_png(pixels: Pixels, path: Path) -> None:
    """Write uint8 RGB [H, W, 3] as a PNG.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_bytes(cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes())


def _images(pipeline: Pipeline, record: Record) -> list[Pixels | str]:
    """Return each image of a record, or why it cannot be shown."""
    sources = [number for number, column in enumerate(record.columns) if column.type.is_source]
    try:
        made = pipeline.sample(record, seed=0, epoch=0)
    except MploadError as error:
        return [str(error.__cause__ or error)] * len(sources)
    assert made is not None, "the policy raises"
    return [made[1][number] for number in sources]


def _title(index: Index, record: Record) -> str:
    number = index.header.label_column
    if number is None:
        return ""
    label = record.cells[number]
    if isinstance(label, int) and 0 <= label < len(index.classes):
        return f"{label}  {index.classes[label]}"
    return str(label)


def _tile(image: Pixels | str, *, title: str, about: str) -> Pixels:
    tile = np.full((_TILE + _CAPTION, _TILE, 3), _BACKGROUND, np.uint8)
    mat = tile[:_TILE]
    mat[:] = _MAT
    if isinstance(image, str):
        for line, text in enumerate(textwrap.wrap(image, width=21)[:7]):
            _write(mat, text, row=20 + 22 * line, colour=_ALARM, indent=8)
    else:
        shown = _fitted(image)
        top, left = (_TILE - shown.shape[0]) // 2, (_TILE - shown.shape[1]) // 2
        mat[top : top + shown.shape[0], left : left + shown.shape[1]] = shown
    size = "" if isinstance(image, str) else f"{image.shape[1]} x {image.shape[0]}"
    _write(tile, title or about, row=_TILE + 15, colour=_BRIGHT)
    _write(tile, f"{about}  {size}" if title else size, row=_TILE + 32, colour=_DIM)
    return tile


def _fitted(image: Pixels) -> Pixels:
    """Return the image in the size that fits a tile; a small one is not blown up more than twice."""
    height, width = image.shape[:2]
    factor = min(_TILE / height, _TILE / width, 2)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    fitted: Pixels = cv2.resize(image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC)  # type: ignore[assignment]
    return fitted


def _write(canvas: Pixels, text: str, *, row: int, colour: Sequence[int], indent: int = 0) -> None:
    """Write a line of text with its base line at `row`, cut where the canvas ends."""
    shown = text.encode("ascii", "replace").decode()  # OpenCV's fonts have no other letters
    top, bottom = max(0, row - 14), min(canvas.shape[0], row + 6)
    strip = canvas[top:bottom, indent:]
    mask = np.zeros((strip.shape[0] * _FINE, strip.shape[1] * _FINE), np.uint8)
    base = (0, (row - top) * _FINE)
    cv2.putText(mask, shown, base, cv2.FONT_HERSHEY_SIMPLEX, 0.44 * _FINE, 255, _FINE, cv2.LINE_AA)
    cover = cv2.resize(mask, strip.shape[1::-1], interpolation=cv2.INTER_AREA)[..., None] / np.float32(255)
    strip[:] = strip + (np.asarray(colour, np.float32) - strip) * cover


def _arrange(tiles: list[Pixels]) -> Pixels:
    """Lay tiles out in rows, a sheet about as wide as it is high."""
    height, width = tiles[0].shape[:2]
    num_columns = min(len(tiles), round((len(tiles) * 1.4) ** 0.5) or 1)
    num_rows = -(-len(tiles) // num_columns)
    shape = (num_rows * (height + _GAP) + _GAP, num_columns * (width + _GAP) + _GAP, 3)
    sheet = np.full(shape, _BACKGROUND, np.uint8)
    for place, tile in enumerate(tiles):
        top = _GAP + place // num_columns * (height + _GAP)
        left = _GAP + place % num_columns * (width + _GAP)
        sheet[top : top + height, left : left + width] = tile
    return sheet
