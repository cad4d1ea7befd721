"""A pack makes photographs smaller, not masks, and warns of coordinates that will not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload import Boxes, ImageDecoder, Mask, MPDataset, RawBytes, Text, Topology
from mpload.errors import ArgumentError, MploadWarning
from mpload.tools.pack.columns import has_pixels
from mpload.tools.pack.packing import PackOptions, pack_index, verify_pack
from tests.support.photos import photo

SMALL = PackOptions(resize_short=100)


def write_index(folder: Path, columns: str, **cells: str) -> Path:
    """Write an index of three photographs of 400 x 300 pixels, and masks and captions beside them."""
    for number in range(3):
        Image.fromarray(photo(300, 400, np.random.default_rng(number))).save(folder / f"{number}.png")
        mask = np.zeros((300, 400), np.uint8)
        mask[60:150, 100:220] = 7 + number
        Image.fromarray(mask).save(folder / f"{number}m.png")
        (folder / f"{number}.txt").write_text(f"caption {number}")
    names = [column.partition(":")[0] for column in columns.split()]
    row = {"image": "{}.png", "mask": "{}m.png", "other": "{}m.png", "caption": "{}.txt", **cells}
    lines = ["\t".join(row[name].replace("{}", str(number)) for name in names) for number in range(3)]
    path = folder / "train.txt"
    path.write_text(f"#mpload 1\n#columns {columns}\n" + "".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("name", ["mask", "other"])
def test_masks_and_texts_are_stored_as_they_are(name: str, tmp_path: Path) -> None:
    index = write_index(tmp_path, f"image:path {name}:path caption:path")
    packed = pack_index(index, tmp_path / "pack", SMALL)
    assert json.loads((tmp_path / "pack" / "pack.json").read_text())["kept"] == [name, "caption"]
    decode: Any = {"image": ImageDecoder(), name: Mask(), "caption": Text()}
    for number, sample in enumerate(MPDataset(packed, decode=decode, topology=Topology())):
        assert tuple(sample["image"].shape[-2:]) == (100, 133)
        assert np.unique(sample[name]).tolist() == [0, 7 + number]
        assert sample["caption"] == f"caption {number}"
    verify_pack(index, tmp_path / "pack", SMALL)


@pytest.mark.parametrize(
    ("columns", "options"),
    [("other:path mask:path", SMALL), ("image:path mask:path", PackOptions(decode=64))],
)
def test_masks_that_would_be_destroyed_are_refused(columns: str, options: PackOptions, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"holds no photographs, but masks .* would destroy"):
        pack_index(write_index(tmp_path, columns), tmp_path / "pack", options)


@pytest.mark.parametrize("options", [SMALL, PackOptions(decode=64)])
def test_drawings_of_few_shades_are_made_smaller(options: PackOptions, tmp_path: Path) -> None:
    packed = pack_index(write_index(tmp_path, "other:path"), tmp_path / "pack", options)
    assert len(list(MPDataset(packed, decode=RawBytes(), topology=Topology()))) == 3


@pytest.mark.parametrize("options", [SMALL, PackOptions(decode=64)])
def test_a_warning_names_coordinates_that_will_not_fit(options: PackOptions, tmp_path: Path) -> None:
    index = write_index(tmp_path, "image:path boxes:str", boxes="[[100, 60, 220, 150, 1]]")
    with pytest.warns(MploadWarning, match=r"column 'boxes' holds coordinates in pixels of the images, but"):
        pack_index(index, tmp_path / "pack", options)


def test_boxes_with_the_size_of_their_image_fit_a_smaller_one(tmp_path: Path) -> None:
    boxes = json.dumps({"boxes": [[100, 60, 220, 150]], "labels": [1], "width": 400, "height": 300})
    index = write_index(tmp_path, "image:path boxes:str", boxes=boxes)
    packed = pack_index(index, tmp_path / "pack", SMALL)
    sample = next(iter(MPDataset(packed, decode={"image": ImageDecoder(), "boxes": Boxes()}, topology=Topology())))
    np.testing.assert_allclose(sample["boxes"]["boxes"], [[33.25, 20, 73.15, 50]], atol=0.01)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[10, 20, 30, 40]]", True),
        ('[{"bbox": [10, 20, 30, 40], "category_id": 3}]', True),
        ('{"annotations": [{"segmentation": [[1, 2, 30, 2, 30, 40]]}]}', True),
        ('{"boxes": [[10, 20, 30, 40]], "width": 50, "height": 50}', False),
        ('{"boxes": [[10, 20, 30, 40]], "image": {"width": 50, "height": 50}}', False),
        ('{"boxes": ' + 400 * "[" + "9" + 400 * "]" + "}", False),  # no coordinates lie so deep
        ('{"boxes": [[[[10, 20]]]]}', True),
        ('{"boxes": ' + 900 * "[" + "9" + 900 * "]" + "}", False),
        ("[[0.1, 0.2, 0.3, 0.4, 17]]", False),  # fractions, and a label
        ("[[0.1, 0.2, 2]]", False),  # a fraction, and a visibility
        ("[12, 13]", False),  # no lists of numbers: tokens, for example
        ('{"tags": ["a", "b"], "score": 12}', False),
        ("a caption", False),
        ("[not JSON", False),
        ("", False),
    ],
)
def test_coordinates_in_pixels_are_told_from_other_texts(text: str, expected: bool) -> None:
    assert has_pixels(text, is_cropped=False) is expected


def test_a_size_does_not_help_if_images_are_cropped() -> None:
    assert has_pixels('{"boxes": [[10, 20, 30, 40]], "width": 50, "height": 50}', is_cropped=True)
