"""The manifest of a pack, `pack.json`: its options, and what was decided when it was begun."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpload.errors import ArgumentError
from mpload.images.arrays import RawArray
from mpload.images.baseline import HuffmanTables
from mpload.tools.pack.options import JpegForm, ShardFormat

__all__ = ["ANTIALIAS", "MANIFEST", "read_manifest", "rows_in", "tables_in"]

MANIFEST = "pack.json"
ANTIALIAS = "antialias"
"""The name of what says how images that are stored as raw pixels were shrunk. Older manifests have none: without."""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the pack in a folder; None if there is none.

    Raises:
        ArgumentError: The manifest is damaged.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        manifest: dict[str, Any] = {"format": ShardFormat.TAR, "jpeg": JpegForm.KEEP}  # older manifests have neither
        manifest.update(json.loads(path.read_text()))
        if type(number := manifest.get("samples_per_shard")) is not int or number < 1:
            raise ValueError(f"samples_per_shard is {number!r}")
        if (manifest["format"] == ShardFormat.ARRAYS) != (rows_in(manifest) is not None):
            raise ValueError("only arrays have rows")
        if (manifest["jpeg"] == JpegForm.BASELINE) != (tables_in(manifest) is not None):
            raise ValueError("only baseline JPEGs have huffman_tables")
        if type(antialias := manifest.setdefault(ANTIALIAS, False)) is not bool:
            raise ValueError(f"{ANTIALIAS} is {antialias!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} is damaged: {error}. Remove the folder and pack again") from error
    return manifest


def rows_in(manifest: Mapping[str, Any]) -> RawArray | None:
    """Return the decoder of the rows that the manifest of a pack describes; None if the pack has another format."""
    facts = manifest.get("rows")
    if facts is None:
        return None
    return RawArray(tuple(facts["shape"]), dtype=facts["dtype"], makes_images=facts["makes_images"])


def tables_in(manifest: Mapping[str, Any]) -> HuffmanTables | None:
    """Return the tables with which all JPEGs of the pack are rewritten; None if they are stored as they are."""
    found = manifest.get("huffman_tables")
    return None if found is None else HuffmanTables(segment=bytes.fromhex(found))
