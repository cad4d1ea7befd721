"""Which columns of an index a pack changes: photographs become smaller, and what belongs to them must still fit."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from mpload.errors import ArgumentError, MploadError, warn
from mpload.index.columns import ColumnType
from mpload.index.index import Index, Record
from mpload.samples.masks import holds_values
from mpload.samples.objects import stated_size
from mpload.tools.pack.options import PackOptions

__all__ = ["has_pixels", "kept_columns"]

_NUM_PROBED = 8
_COORDINATES: Final = {"bbox", "bboxes", "boxes", "box", "keypoints", "points", "segmentation", "segments", "polygons"}
_MAX_DEPTH = 8
_MAX_VISIBILITY = 2


def kept_columns(source: Index, options: PackOptions, read: Callable[[Record], Sequence[bytes]]) -> tuple[str, ...]:
    """Return the file columns that a pack stores unchanged, although it makes photographs smaller.

    These are masks and other files that are no photographs: see `holds_values`. A few samples tell, whose files `read`
    reads. A warning names columns whose coordinates will not fit the smaller photographs.

    Raises:
        ArgumentError: All files are masks, or photographs are to be cropped, which masks cannot follow.
    """
    if options.resize_short is None and options.decode is None:
        return ()
    records = list(source.records(np.unique(np.linspace(0, len(source) - 1, _NUM_PROBED).astype(np.int64))))
    files = [column for column in source.columns if column.type.is_source]
    samples = []
    for record in records if len(files) > 1 else ():
        with suppress(MploadError, OSError):  # raised again when the sample is packed
            samples.append(read(record))
    of_column = {column.name: [sample[place] for sample in samples] for place, column in enumerate(files)}
    kept = tuple(name for name, data in of_column.items() if len(files) > 1 and holds_values(name, data))
    if kept and (options.decode is not None or len(kept) == len(files)):
        option = "decode" if options.decode is not None else "resize_short"
        raise ArgumentError(
            f"column {kept[0]!r} holds no photographs, but masks or other values, which {option} would destroy. Pack "
            f"without {option}, or use resize_short on an index that has their photographs too"
        )
    texts = {name: [bytes(each).decode("utf-8", "replace") for each in of_column[name]] for name in kept}
    for number, column in enumerate(source.columns):
        if column.type is ColumnType.STR:
            texts[column.name] = [str(record.cells[number]) for record in records]
    for name, cells in texts.items():
        if any(has_pixels(cell, is_cropped=options.decode is not None) for cell in cells):
            warn(
                f"{source.path}: column {name!r} holds coordinates in pixels of the images, but the pack's images are "
                'smaller. Add the "width" and "height" of the image to its JSON, as `mpload index` does for COCO, or '
                "pack without making images smaller"
            )
    return kept


def has_pixels(text: str, *, is_cropped: bool) -> bool:
    """Return whether a text is JSON with coordinates in pixels.

    Fractions of the image fit images of any size. So do coordinates with the `width` and `height` of their image,
    unless images are cropped.
    """
    if text.lstrip()[:1] not in {"[", "{"}:
        return False
    try:
        value = json.loads(text)
        if isinstance(value, dict) and not is_cropped and stated_size(value) is not None:
            return False
        return _has_pixels(value, depth=0)
    except (ValueError, RecursionError):  # not JSON, nested too deeply, or a wrong size
        return False


def _has_pixels(value: Any, *, depth: int) -> bool:
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return any(
            _is_large(each, depth=depth) if name in _COORDINATES else _has_pixels(each, depth=depth + 1)
            for name, each in value.items()
        )
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(each, list) for each in value):  # boxes or points, without names
        return any(len(each) >= 2 and _is_large(each[:4], depth=depth) for each in value)  # a label may follow
    return any(_has_pixels(each, depth=depth + 1) for each in value if isinstance(each, dict))


def _is_large(value: Any, *, depth: int) -> bool:
    """Return whether nested lists and dicts have a number that is no fraction, and no visibility of a point."""
    if isinstance(value, dict | list):
        nested = value.values() if isinstance(value, dict) else value
        return depth < _MAX_DEPTH and any(_is_large(each, depth=depth + 1) for each in nested)
    return isinstance(value, int | float) and value > _MAX_VISIBILITY
