"""Widths and heights in an index are those of the decoded images."""

import os
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload import ArgumentError, DecodeError, ImageDecoder, MploadWarning, build_index, open_index
from mpload.errors import IndexFormatError
from tests.support.photos import make_special_photos, photo

COLUMNS = "image:path width:int height:int"


def sizes(path: Path) -> dict[str, tuple[Any, ...]]:
    return {Path(str(record.cells[0])).name: record.cells[-2:] for record in open_index(path)[:]}


def test_sizes_are_those_of_the_decoded_images(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    make_special_photos(folder)
    rng = np.random.default_rng(0)
    image = Image.fromarray(photo(40, 60, rng))
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("turned.png", "turned.webp", "turned.jpg", "turned.tiff"):
        image.save(folder / name, exif=exif)
    (folder / "comment.ppm").write_bytes(b"P6 # 7 8\n60 40 255 " + bytes(3 * 40 * 60))
    (folder / "nonsense.pgm").write_bytes(b"P5 1.5 3 3 " + bytes(100))
    image.save(folder / "late.jpg", icc_profile=bytes(200_000))  # the frame comes after 200 kB of other segments
    image.save(folder / "progressive.jpg", progressive=True, exif=exif)
    with pytest.warns(MploadWarning, match="3 images could not be read"), pytest.warns(match="gif"):
        build_index(folder, tmp_path / "all.txt", columns="image:path", with_image_sizes=True, num_workers=2)
    found = sizes(tmp_path / "all.txt")
    num_checked = 0
    for file in folder.iterdir():
        with suppress(DecodeError, KeyError):
            height, width, _ = ImageDecoder()(file.read_bytes()).shape
            assert found[file.name] == (width, height), file
            num_checked += 1
    assert num_checked > 25
    assert found["turned.jpg"] == (40, 60)
    assert (found["comment.ppm"], found["nonsense.pgm"]) == ((60, 40), (0, 0))
    assert found["truncated.jpg"] == (300, 200)  # its header is complete


def test_sizes_of_images_in_tar_files(tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(photo(20 + number, 50, np.random.default_rng(number))).save(tmp_path / f"{number}.jpg")
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number in range(4):
            tar.add(tmp_path / f"{number}.jpg", arcname=f"{number}.jpg")
    build_index(tmp_path / "shard.tar", tmp_path / "tar.txt", with_image_sizes=True)
    assert [record.cells[-2:] for record in open_index(tmp_path / "tar.txt")[:]] == [(50, 20 + n) for n in range(4)]


def test_sizes_can_be_added_to_an_index_and_selected_by(tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(photo(20 + number, 50, np.random.default_rng(number))).save(tmp_path / f"{number}.jpg")
    build_index(tmp_path, tmp_path / "plain.txt", columns="image:path")
    build_index(tmp_path / "plain.txt", tmp_path / "sized.txt", with_image_sizes=True, with_sizes=True)
    index = open_index(tmp_path / "sized.txt")
    assert index.nbytes is not None
    index.select(tmp_path / "tall.txt", where="height > 21")
    assert len(open_index(tmp_path / "tall.txt")) == 2


def test_an_image_that_cannot_be_read_has_the_size_0(tmp_path: Path) -> None:
    Image.fromarray(photo(20, 50, np.random.default_rng(0))).save(tmp_path / "good.jpg")
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff no image")
    with pytest.warns(MploadWarning, match=r"1 image could not be read, such as bad.jpg"):
        build_index(tmp_path, tmp_path / "all.txt", columns="image:path", with_image_sizes=True)
    assert sizes(tmp_path / "all.txt") == {"bad.jpg": (0, 0), "good.jpg": (50, 20)}


def test_a_pipe_in_the_list_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("good.jpg", "pipe.jpg"):
        Image.fromarray(photo(20, 50, np.random.default_rng(0))).save(tmp_path / name)
    build_index(tmp_path, tmp_path / "list.txt", columns="image:path")
    (tmp_path / "pipe.jpg").unlink()
    os.mkfifo(tmp_path / "pipe.jpg")  # nobody writes to it: a plain `open` would wait for ever
    with pytest.warns(
        MploadWarning, match=r"such as pipe\.jpg\..*pipe\.jpg: is a device, pipe or socket, not a regular"
    ):
        build_index(tmp_path / "list.txt", tmp_path / "all.txt", with_image_sizes=True)
    assert sizes(tmp_path / "all.txt") == {"pipe.jpg": (0, 0), "good.jpg": (50, 20)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#mpload 1\n#columns image:path width:int\na.jpg\t3\n", "has a column width already"),
        ("#mpload 1\n#columns a:int\n3\n", "files and tar files only"),
        ("#mpload 1\n#root s3://bucket\n#columns image:path\na.jpg\n", "at a URL"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "source.txt").write_text(text)
    with pytest.raises(ArgumentError, match=message):
        build_index(tmp_path / "source.txt", tmp_path / "out.txt", with_image_sizes=True)


def test_sizes_are_no_labels(tmp_path: Path) -> None:
    Image.fromarray(photo(20, 50, np.random.default_rng(0))).save(tmp_path / "a.jpg")
    index = open_index(build_index(tmp_path, tmp_path / "all.txt", columns="image:path", with_image_sizes=True))
    with pytest.raises(IndexFormatError, match="has no column of labels, only image:path width:int height:int"):
        index.labels  # noqa: B018
    (tmp_path / "list.txt").write_text("#mpload 1\n#columns image:path weight:int\na.jpg\t7\n")
    sized = open_index(build_index(tmp_path / "list.txt", tmp_path / "sized.txt", with_image_sizes=True))
    assert (sized[0].cells, sized.labels[0]) == (("a.jpg", 7, 50, 20), 7)
