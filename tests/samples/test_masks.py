"""Masks among photographs are refused if the decoder or transform would destroy them; pairs of photographs are not."""

import io
import itertools
import sys
from pathlib import Path
from typing import Any

import albumentations  # type: ignore[import-untyped]
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from mpload import ErrorPolicy, ImageDecoder, MPDataset, MPLoader, RandomResizedCrop, Topology
from mpload.errors import ArgumentError, MploadError, SampleError
from mpload.samples.masks import values_of
from tests.support import decoders
from tests.support.photos import photo

IDS = np.random.default_rng(0).choice(np.array([0, 7, 19], np.uint8), (40, 60))
PHOTOGRAPH = photo(40, 60, np.random.default_rng(1))
GRAY = cv2.cvtColor(PHOTOGRAPH, cv2.COLOR_RGB2GRAY)


def encoded(pixels: NDArray[Any], kind: str, mode: str | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def palette(pixels: NDArray[np.uint8], kind: str) -> bytes:
    image, file = Image.fromarray(pixels).convert("P"), io.BytesIO()
    image.putpalette(list(range(256)) * 3)
    image.save(file, kind)
    return file.getvalue()


PHOTOGRAPHS = {
    "jpg": encoded(PHOTOGRAPH, "JPEG"),
    "gray jpg": encoded(GRAY, "JPEG"),
    "png": encoded(PHOTOGRAPH, "PNG"),
    "alpha png": encoded(PHOTOGRAPH, "PNG", "RGBA"),
    "bmp": encoded(PHOTOGRAPH, "BMP"),
    "webp": encoded(PHOTOGRAPH, "WEBP"),
    "tif": encoded(PHOTOGRAPH, "TIFF"),
    "ppm": encoded(PHOTOGRAPH, "PPM"),
}
MASKS = {
    "png": encoded(IDS, "PNG"),
    "palette png": palette(IDS, "PNG"),
    "black and white png": encoded(IDS, "PNG", "1"),
    "16 bits png": encoded(IDS.astype(np.uint16) * 1000, "PNG"),
    "gif": palette(IDS, "GIF"),
    "bmp": encoded(IDS, "BMP"),
    "tif": encoded(IDS, "TIFF"),
    "packed tif": encoded(IDS, "TIFF", compression="tiff_lzw"),
    "palette tif": palette(IDS, "TIFF"),
    "16 bits tif": encoded(IDS.astype(np.uint16), "TIFF"),
    "pgm": encoded(IDS, "PPM"),
    "16 bits pgm": encoded(IDS.astype(np.uint16) * 1000, "PPM"),
}


def index_of(folder: Path, *samples: tuple[bytes, bytes], names: str = "image:path other:path", root: str = "") -> Path:
    lines = []
    for number, files in enumerate(samples):
        for place, data in enumerate(files):
            (folder / f"{number}.{place}").write_bytes(data)
        lines.append(f"{number}.0\t{number}.1\n")
    (folder / "all.txt").write_text(f"#mpload 1\n{root}#columns {names}\n{''.join(lines)}")
    return folder / "all.txt"


def dataset(index: Path, **options: Any) -> MPDataset:
    return MPDataset(index, **{"decode": RandomResizedCrop(16), "batch_size": 2, "topology": Topology(), **options})


@pytest.mark.parametrize("kind", PHOTOGRAPHS)
def test_a_photograph_is_not_mistaken_for_a_mask(kind: str) -> None:
    assert values_of(PHOTOGRAPHS[kind]) is None


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_beside_a_photograph_is_refused(tmp_path: Path, kind: str) -> None:
    index = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], MASKS[kind])] * 3)
    with pytest.raises(ArgumentError, match=r"RandomResizedCrop treats all .*'image' RGB, 'other' (a palette|one)"):
        dataset(index)
    with pytest.raises(ArgumentError, match="add_noise treats all file columns as photographs"):
        dataset(index, decode=ImageDecoder(), transform=decoders.add_noise)
    with pytest.raises(ArgumentError, match=r"'image' (a palette|one channel)"):
        dataset(index_of(tmp_path, *[(MASKS[kind], PHOTOGRAPHS["png"])] * 3))


@pytest.mark.parametrize("kind", MASKS)
def test_several_columns_of_masks_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ArgumentError, match="would be destroyed"):
        dataset(index_of(tmp_path, *[(MASKS[kind], MASKS[kind])] * 3))


@pytest.mark.parametrize(
    "name", ["mask", "image_mask", "imageMask", "Label", "seg2", "semantic_segmentation", "depth", "gt", "ground_truth"]
)
def test_a_column_named_like_a_mask_is_refused(tmp_path: Path, name: str) -> None:
    index = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], PHOTOGRAPHS["png"])] * 3, names=f"image:path {name}:path")
    for options in (
        {},
        {"decode": ImageDecoder(), "transform": decoders.add_noise},
        {"decode": decoders.undeclared, "transform": albumentations.HorizontalFlip()},
    ):
        with pytest.raises(ArgumentError, match=f"the name of column '{name}' says that it holds no photographs"):
            dataset(index, **options)


@pytest.mark.parametrize("name", ["unmasked", "masked_photo", "sego", "gtsrb", "DEPTHWISE", "labelled", "target", "hr"])
def test_columns_with_other_names_are_accepted(tmp_path: Path, name: str) -> None:
    dataset(index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], PHOTOGRAPHS["png"])] * 3, names=f"image:path {name}:path"))


PAIRS = [*itertools.combinations_with_replacement([*PHOTOGRAPHS.values()], 2), *[(encoded(GRAY, "PNG"),) * 2] * 2]


@pytest.mark.parametrize("options", [{}, {"decode": ImageDecoder()}, {"transform": decoders.add_noise}])
def test_pairs_of_photographs_are_accepted(tmp_path: Path, options: Any) -> None:
    index = index_of(tmp_path, *PAIRS)
    assert sum(len(images) for images, _ in dataset(index, **options)) == len(PAIRS)


@pytest.mark.parametrize("kind", MASKS)
def test_a_single_column_may_hold_any_images(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(MASKS[kind])
    (tmp_path / "all.txt").write_text("#mpload 1\n#columns mask:path label:int\na\t1\na\t2\n")
    (batch,) = dataset(tmp_path / "all.txt")
    assert batch[0].shape == (2, 3, 16, 16)


def test_masks_whose_gray_values_stay_unchanged_are_accepted(tmp_path: Path) -> None:
    index = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], MASKS["png"])] * 2, names="image:path mask:path")
    ((_, masks),) = dataset(index, decode=ImageDecoder())
    assert np.array_equal(masks[1, 0].numpy(), IDS)
    index = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], MASKS["palette png"])] * 2, names="image:path mask:path")
    with pytest.raises(ArgumentError, match="'mask' a palette"):
        dataset(index, decode=ImageDecoder())


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1] if sys.platform == "linux" else [0])
def test_a_mask_that_the_first_check_missed_is_a_bad_sample(tmp_path: Path, num_workers: int) -> None:
    pair = PHOTOGRAPHS["jpg"], PHOTOGRAPHS["png"]
    index = index_of(tmp_path, *[pair] * 6, (PHOTOGRAPHS["jpg"], MASKS["png"]), *[pair] * 9)
    message = r"sample 6 .*masks or similar data would be destroyed"
    with MPLoader(dataset(index), num_workers=num_workers) as loader, pytest.raises(SampleError, match=message):
        list(loader)
    policy = ErrorPolicy(action="skip", report=tmp_path / "report")
    skipping = dataset(index, on_error=policy)
    with pytest.warns(match="a bad sample"), MPLoader(skipping, num_workers=num_workers) as loader:
        assert sum(len(images) for images, _ in loader) == 15


def image_or_ids(data: bytes) -> NDArray[Any]:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    return pixels


def test_a_callable_may_decode_masks_but_a_library_may_not_transform_them(tmp_path: Path) -> None:
    index = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], MASKS["png"])] * 2, names="image:path mask:path")
    ((images, masks),) = dataset(index, decode=image_or_ids)
    assert images.shape == (2, 40, 60, 3)
    assert np.array_equal(masks[0].numpy(), IDS)
    index = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], MASKS["png"])] * 2)
    brighter = albumentations.RandomBrightnessContrast(p=1.0)
    with pytest.raises(SampleError, match=r"RandomBrightnessContrast .*'other' uint8 of 2 dimensions, 1 channel"):
        list(dataset(index, decode=image_or_ids, transform=brighter))
    pairs = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], PHOTOGRAPHS["png"])] * 2)
    assert len(list(dataset(pairs, decode=image_or_ids, transform=brighter))) == 1


def test_a_missing_file_is_reported_when_its_sample_is_read(tmp_path: Path) -> None:
    index = index_of(tmp_path, *[(PHOTOGRAPHS["jpg"], PHOTOGRAPHS["png"])] * 2)
    (tmp_path / "0.1").unlink()
    with pytest.raises(MploadError, match=r"0\.1"):
        list(dataset(index))


@given(st.binary(max_size=64), st.sampled_from([*MASKS.values(), *PHOTOGRAPHS.values()]), st.integers(0, 200))
def test_any_bytes_can_be_checked(damage: bytes, file: bytes, position: int) -> None:
    for data in damage, file[:position], file[:position] + damage + file[position + len(damage) :]:
        values_of(data)


def test_a_column_without_images_is_refused_for_one_decoder_and_a_broken_image_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(PHOTOGRAPHS["jpg"])
    (tmp_path / "a.txt").write_text("a caption")
    for images, texts in (("a.jpg", "a.txt"), ("a.txt", "a.jpg")):
        path = tmp_path / "train.txt"
        path.write_text(f"#mpload 1\n#columns image:path txt:path\n{images}\t{texts}\n{images}\t{texts}\n")
        with pytest.raises(ArgumentError, match=r"files of column '(txt|image)' are not images, but RandomResizedCrop"):
            MPDataset(path, decode=RandomResizedCrop(8), batch_size=2, topology=Topology())
    path = tmp_path / "pairs.txt"
    path.write_text("#mpload 1\n#columns image:path other:path\na.jpg\ta.txt\na.jpg\ta.jpg\n")
    dataset: MPDataset = MPDataset(path, decode=RandomResizedCrop(8), batch_size=2, topology=Topology())
    with pytest.raises(SampleError, match="not an image"):
        next(iter(dataset))
