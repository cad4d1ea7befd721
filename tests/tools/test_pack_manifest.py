"""The manifest of a pack is read from the disk: any contents are either obeyed or named as damaged."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mpload import ResizeCenterCrop, open_index
from mpload.errors import ArgumentError, StorageError
from mpload.storage.ranges import Span
from mpload.tools.pack.options import PackOptions, ShardFormat
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
        {"antialias": "no"},
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


def stored_pixels(packed: Path) -> list[bytes]:
    """Return the last bytes of each sample, which are its pixels."""
    found = []
    for record in open_index(packed):
        span = record.cells[0]
        assert isinstance(span, Span)
        found.append((packed.parent / span.path).read_bytes()[span.offset_bytes :][: span.length_bytes][-12 * 12 * 3 :])
    return found


@pytest.mark.parametrize("shard_format", [ShardFormat.TAR, ShardFormat.ARRAYS])
def test_raw_pixels_are_antialiased_but_not_in_packs_that_were_begun_without(
    tmp_path: Path, shard_format: ShardFormat
) -> None:
    images = np.random.default_rng(0).integers(256, size=(6, 90, 70, 3), dtype=np.uint8)
    files = [cv2.imencode(".png", image)[1].tobytes() for image in images]
    for number, data in enumerate(files):
        (tmp_path / f"{number}.png").write_bytes(data)
    index, folder = tmp_path / "all.txt", tmp_path / "pack"
    index.write_text("".join(f"{number}.png 0\n" for number in range(len(files))))
    options = PackOptions(decode=12, format=shard_format, shard_bytes=1200)

    def expected(*, antialias: bool) -> list[bytes]:
        return [ResizeCenterCrop(12, resize=12, antialias=antialias)(data).tobytes() for data in files]

    packed = pack_index(index, folder, options)
    assert stored_pixels(packed) == expected(antialias=True)
    manifest = json.loads((folder / "pack.json").read_text())
    assert manifest["antialias"] is True
    del manifest["antialias"]  # as older versions wrote it
    for path in folder.iterdir():
        path.unlink()
    (folder / "pack.json").write_text(json.dumps(manifest))
    assert stored_pixels(pack_index(index, folder, options)) == expected(antialias=False) != expected(antialias=True)
    verify_pack(index, folder, options)
    assert "antialias" not in json.loads((folder / "pack.json").read_text())
    (folder / "pack.json").write_text(json.dumps(manifest | {"antialias": True}))
    with pytest.raises(StorageError, match="differs from the data of the index"):
        verify_pack(index, folder, options)


@pytest.mark.processes  # files of LMDB are compared in one
@pytest.mark.parametrize("kind", ShardFormat)
@pytest.mark.parametrize(("change", "what"), [(("day", "night"), "root"), (("cat", "dog"), "classes")])
def test_the_same_lines_with_another_root_or_other_classes_are_another_pack(
    tmp_path: Path, kind: ShardFormat, change: tuple[str, str], what: str
) -> None:
    for number, folder in enumerate(("day", "night")):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "0.npy", np.full(3, number))
    text = "#mpload 1\n#root day\n#columns image:path label:int\n#classes cat\n0.npy\t0\n"
    (tmp_path / "first.txt").write_text(text)
    (tmp_path / "second.txt").write_text(text.replace(*change))
    options = PackOptions(format=kind)
    pack_index(tmp_path / "first.txt", tmp_path / "pack", options)
    with pytest.raises(ArgumentError, match=f"contains another pack: {what} differ"):
        pack_index(tmp_path / "second.txt", tmp_path / "pack", options)
    with pytest.raises(StorageError, match="differ"):
        verify_pack(tmp_path / "second.txt", tmp_path / "pack", options)
    shutil.copytree(tmp_path / "day", tmp_path / "moved")
    (tmp_path / "moved.txt").write_text(text.replace("day", "moved"))
    verify_pack(tmp_path / "moved.txt", tmp_path / "pack", options)  # the same data
    manifest = tmp_path / "pack" / "pack.json"
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({name: facts[name] for name in facts.keys() - {"root", "classes"}}))
    verify_pack(tmp_path / "first.txt", tmp_path / "pack", options)  # as older versions wrote it


@pytest.mark.processes  # files of LMDB are compared in one
@pytest.mark.parametrize("kind", ShardFormat)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"\t1\n", b"\t0\n"), r"the lines of shard-000000.* differ"),
        ((b"#classes cat", b"#classes cow"), "number of lines, root, columns or classes differ"),
        ((b"#columns", b"#root /other\n#columns"), "number of lines, root, columns or classes differ"),
    ],
)
def test_the_index_of_a_pack_is_verified_too(
    tmp_path: Path, kind: ShardFormat, change: tuple[bytes, bytes], message: str
) -> None:
    np.save(tmp_path / "0.npy", np.zeros(3))
    text = "#mpload 1\n#columns image:path label:int\n#classes cat\tdog\n0.npy\t0\n0.npy\t1\n"
    (tmp_path / "all.txt").write_text(text)
    options = PackOptions(format=kind)
    packed = pack_index(tmp_path / "all.txt", tmp_path / "pack", options)
    verify_pack(tmp_path / "all.txt", tmp_path / "pack", options)
    packed_text = packed.read_bytes()
    assert change[0] in packed_text
    packed.write_bytes(packed_text.replace(*change))
    with pytest.raises(StorageError, match=message):
        verify_pack(tmp_path / "all.txt", tmp_path / "pack", options)
