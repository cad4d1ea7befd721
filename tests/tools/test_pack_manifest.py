"""The manifest of a pack is read from the disk: any contents are either obeyed or named as damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import ArgumentError
from mpload.tools.pack.packing import pack_index, pack_rows, verify_pack


@pytest.mark.parametrize(
    "damage",
    [
        {"samples_per_shard": 0},
        {"samples_per_shard": "3"},
        {"rows": {"shape": [3], "dtype": "uint8", "makes_images": False}},
        {"format": "arrays"},
        {"format": "arrays", "rows": 3},
        {"format": "arrays", "rows": {"shape": [3]}},
        {"format": "arrays", "rows": {"shape": [3], "dtype": "O", "makes_images": False}},
        {"jpeg": "baseline"},
        {"jpeg": "baseline", "huffman_tables": "no hex"},
    ],
    ids=str,
)
def test_a_damaged_manifest_is_named(tmp_path: Path, damage: dict[str, Any]) -> None:
    (tmp_path / "0.bin").write_bytes(b"text")
    index = tmp_path / "all.txt"
    index.write_text("0.bin 0\n")
    pack_index(index, tmp_path / "pack")
    manifest = tmp_path / "pack" / "pack.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | damage))
    for use in (pack_index, verify_pack):
        with pytest.raises(ArgumentError, match=r"pack\.json is damaged"):
            use(index, tmp_path / "pack")
    manifest.write_text("[]")
    with pytest.raises(ArgumentError, match=r"pack\.json is damaged"):
        pack_rows(tmp_path / "pack")
