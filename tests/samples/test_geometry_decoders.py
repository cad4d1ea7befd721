"""Letterboxes, patches and masks work as the decoder of all files, with random numbers of the sample."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload.images.letterbox import Letterbox
from mpload.images.mask import Mask
from mpload.images.patches import RandomCrop
from mpload.index.opening import open_index
from mpload.plan.sample_rng import SampleRng
from mpload.samples.column_batches import batch_of_columns
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from tests.support.photos import photo
from tests.support.value_files import palette_png


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(photo(50 + 9 * number, 70, rng)).save(tmp_path / f"{number}.jpg")
        (tmp_path / f"{number}.png").write_bytes(palette_png(rng.integers(0, 9, (40, 50)).astype(np.uint8)))
    path = tmp_path / "train.txt"
    path.write_text("#mpload 1\n#columns image:path label:int\n" + "".join(f"{n}.jpg\t{n}\n" for n in range(4)))
    (tmp_path / "masks.txt").write_text("#mpload 1\n#columns mask:path\n" + "".join(f"{n}.png\n" for n in range(4)))
    return path


@pytest.mark.parametrize("decode", [Letterbox(48), Letterbox((40, 64), flip=0.5), RandomCrop(64, upside_down=0.5)])
def test_samples_are_those_of_the_decoder_with_the_samples_generator(index_path: Path, decode: Any) -> None:
    pipeline = Pipeline(index=open_index(index_path), decode=decode, policy=ErrorPolicy())
    batch = batch_of_columns(pipeline, np.arange(4), seed=3, epoch=1)
    rng = SampleRng(seed=3, epoch=1)
    for number in range(4):
        data = (index_path.parent / f"{number}.jpg").read_bytes()
        np.testing.assert_array_equal(batch.columns[0][number], decode(data, rng.for_sample(number, stream=0)))


def test_masks_alone_keep_their_ids(index_path: Path) -> None:
    pipeline = Pipeline(index=open_index(index_path.with_name("masks.txt")), decode=Mask(), policy=ErrorPolicy())
    batch = batch_of_columns(pipeline, np.arange(4), seed=0, epoch=0)
    for number in range(4):
        with Image.open(index_path.parent / f"{number}.png") as image:
            np.testing.assert_array_equal(batch.columns[0][number], np.asarray(image))
