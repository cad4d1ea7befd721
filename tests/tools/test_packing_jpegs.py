"""Packs of baseline JPEGs: the pixels stay, all photos have the same Huffman tables, and the bytes are reproducible."""

import filecmp
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload import JpegForm, MPDataset, PackOptions, RawBytes, ShardFormat, Topology, pack_index
from mpload.errors import ArgumentError
from mpload.images.image import open_image
from mpload.tools.pack.packing import verify_pack
from mpload.units import KIB
from tests.support.native import needs_native
from tests.support.photos import encode, photo

pytestmark = needs_native

BASELINE = PackOptions(shard_bytes=60 * KIB, jpeg=JpegForm.BASELINE)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of photos of all kinds; a third of them are progressive."""
    root = tmp_path_factory.mktemp("packing")
    (root / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(36):
        height, width = rng.integers(20, 200, 2).tolist()
        image = Image.fromarray(photo(height, width, rng)).convert("L" if number % 5 == 0 else "RGB")
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        options: dict[str, Any] = [{"progressive": True}, {"optimize": True}, {}][number % 3]
        data = encode(image, "JPEG", exif=exif, **options)
        (root / "photos" / f"{number:02d}.jpg").write_bytes(data[: len(data) // 2] if number == 35 else data)
    (root / "photos" / "36.jpg").write_bytes(encode(image, "PNG"))
    (root / "train.txt").write_text("".join(f"{path} 0\n" for path in sorted((root / "photos").iterdir())))
    return root / "train.txt"


def samples(index: Path) -> list[bytes]:
    return [sample[0] for sample in MPDataset(index, decode=RawBytes(), topology=Topology())]


def tables(data: bytes) -> set[bytes]:
    """Return the Huffman tables of a JPEG with one scan."""
    found, position = set(), 2
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if data[position + 1] == 0xC4:
            found.add(data[position + 4 : end])
        position = end
    return found


def same_shards(a: Path, b: Path) -> bool:
    names = sorted(path.name for path in a.glob("shard-*"))
    assert len(names) > 2
    return names == sorted(path.name for path in b.glob("shard-*")) and not any(
        filecmp.cmpfiles(a, b, [*names, "index.txt", "pack.json"], shallow=False)[1:]
    )


@pytest.mark.parametrize("kind", [ShardFormat.TAR, ShardFormat.LMDB])
def test_all_photos_of_a_pack_keep_their_pixels_and_have_the_same_tables(
    index: Path, tmp_path: Path, kind: ShardFormat
) -> None:
    if kind is ShardFormat.LMDB:
        pytest.importorskip("lmdb")
    packed = pack_index(index, tmp_path / "pack", PackOptions(jpeg=JpegForm.BASELINE, format=kind))
    pairs = list(zip(samples(index), samples(packed), strict=True))
    found = set()
    for before, after in pairs[:35]:
        assert np.array_equal(open_image(before).pixels(), open_image(after).pixels())
        found |= tables(after)
    assert len(found) == 4
    assert all(before == after for before, after in pairs[35:])  # a truncated photo, and a PNG
    assert len(pairs) == 37


def test_resized_photos_have_the_tables_of_those_that_are_small_enough(index: Path, tmp_path: Path) -> None:
    sound = tmp_path / "sound.txt"
    sound.write_text("".join(index.read_text().splitlines(keepends=True)[:35]))
    kept = pack_index(sound, tmp_path / "kept", PackOptions(resize_short=64))
    packed = pack_index(sound, tmp_path / "pack", PackOptions(resize_short=64, jpeg=JpegForm.BASELINE))
    pairs = list(zip(samples(kept), samples(packed), strict=True))
    assert len(set().union(*(tables(after) for _, after in pairs))) == 4
    assert all(np.array_equal(open_image(before).pixels(), open_image(after).pixels()) for before, after in pairs)


@pytest.mark.slow
@pytest.mark.processes
def test_any_number_of_workers_and_any_interruption_give_the_same_bytes(index: Path, tmp_path: Path) -> None:
    alone, many = tmp_path / "alone", tmp_path / "many"
    pack_index(index, alone, BASELINE)
    pack_index(index, many, BASELINE, num_workers=2)
    assert same_shards(alone, many)
    for name in ("index.txt", "index.txt.mpx", "shard-000001.tar"):  # as if it was killed before
        (many / name).unlink(missing_ok=True)
    pack_index(index, many, BASELINE)
    assert same_shards(alone, many)
    verify_pack(index, many, BASELINE, num_workers=2)


def test_the_default_stores_the_given_bytes(index: Path, tmp_path: Path) -> None:
    packed = pack_index(index, tmp_path / "pack")
    assert samples(packed) == samples(index)
    assert "huffman_tables" not in json.loads((tmp_path / "pack" / "pack.json").read_text())


def test_a_pack_with_an_older_manifest_can_be_verified_but_not_changed(index: Path, tmp_path: Path) -> None:
    pack_index(index, tmp_path / "pack")
    manifest = tmp_path / "pack" / "pack.json"
    facts = json.loads(manifest.read_text())
    del facts["jpeg"]
    manifest.write_text(json.dumps(facts))
    verify_pack(index, tmp_path / "pack")
    with pytest.raises(ArgumentError, match="contains another pack: jpeg differ"):
        verify_pack(index, tmp_path / "pack", PackOptions(jpeg=JpegForm.BASELINE))


def test_an_index_without_jpegs_can_be_packed(tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(b"text")
    (tmp_path / "all.txt").write_text("text.bin 0\n" * 3)
    packed = pack_index(tmp_path / "all.txt", tmp_path / "pack", BASELINE)
    assert samples(packed) == [b"text"] * 3


def test_the_form_of_jpegs_can_be_given_by_its_name(index: Path, tmp_path: Path) -> None:
    name: Any = "baseline"
    assert PackOptions(shard_bytes=60 * KIB, jpeg=name) == BASELINE
    packed = pack_index(index, tmp_path / "pack", PackOptions(shard_bytes=60 * KIB, jpeg=name))
    assert samples(packed) != samples(index)


@pytest.mark.processes
def test_no_sample_is_blamed_where_the_module_that_rewrites_jpegs_is_missing(index: Path, tmp_path: Path) -> None:
    pack_index(index, tmp_path / "pack", PackOptions(jpeg=JpegForm.BASELINE))
    code = "import sys; sys.modules['mpload.images._transcode'] = None; from mpload.cli.main import main; main()"
    arguments = ["pack", str(index), "-o", str(tmp_path / "pack"), "--jpeg", "baseline", "--verify"]
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("mpload: JPEGs cannot be rewritten: the native module was not built.")


def test_raw_pixels_are_no_jpegs() -> None:
    with pytest.raises(ArgumentError, match="give only one of them"):
        PackOptions(decode=8, jpeg=JpegForm.BASELINE)
