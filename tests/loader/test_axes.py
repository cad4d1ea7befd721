"""Only arrays that a decoder declares to be images appear channels first. All other arrays keep their axes."""

import functools
import io
import sys
from pathlib import Path
from typing import Any

import albumentations  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from mpload import ImageDecoder, MPDataset, MPLoader, NumpyDecoder, RandomResizedCrop, Topology
from mpload.errors import SampleError
from tests.support import decoders
from tests.support.batches import numbers_index
from tests.support.photos import encode, photo

pytestmark = pytest.mark.processes

WAYS = ["alone", "one by one", "DataLoader", "0", "2"] if sys.platform == "linux" else ["alone", "DataLoader"]


def first(batch: Any) -> torch.Tensor:
    found: torch.Tensor = batch[0] if isinstance(batch, tuple | list) else batch
    return found


def batches(index: Path, how: str, **options: Any) -> torch.Tensor:
    """Return the first column of an index, [n, ...]."""
    options = {"batch_size": None if how == "one by one" else 2, "tail": "ragged", "topology": Topology(), **options}
    dataset = MPDataset(index, **options)
    if how == "alone":
        return torch.cat([first(batch) for batch in dataset])
    if how == "one by one":
        return torch.stack([first(sample) for sample in dataset])
    if how == "DataLoader":
        return torch.cat([first(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=2)])
    with MPLoader(dataset, num_workers=int(how)) as loader:
        return torch.cat([first(batch).clone() for batch in loader])


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Return an index of three .npy files with arrays of shape [5, 7, 9]."""
    for number in range(3):
        file = io.BytesIO()
        np.save(file, np.arange(315, dtype=np.int16).reshape(5, 7, 9) + number)
        (tmp_path / f"{number}.npy").write_bytes(file.getvalue())
    (tmp_path / "arrays.txt").write_text("#mpload 1\n#columns array:path\n0.npy\n1.npy\n2.npy\n")
    return tmp_path / "arrays.txt"


@pytest.mark.parametrize("how", WAYS)
def test_an_array_keeps_its_axes(arrays: Path, tmp_path: Path, how: str) -> None:
    found = batches(arrays, how, decode=NumpyDecoder())
    expected = np.stack([np.arange(315, dtype=np.int16).reshape(5, 7, 9) + number for number in range(3)])
    assert np.array_equal(found.numpy(), expected)
    assert batches(arrays, how, decode=NumpyDecoder(makes_images=True)).shape == (3, 9, 5, 7)


@pytest.mark.parametrize("how", ["alone", *WAYS[4:]])
def test_an_array_of_a_callable_keeps_its_axes(tmp_path: Path, how: str) -> None:
    assert batches(numbers_index(tmp_path, 5), how, decode=decoders.cube).shape == (5, 5, 7, 9)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("decode", [decoders.picture, functools.partial(decoders.picture)])
def test_images_declared_by_a_callable_appear_channels_first(tmp_path: Path, how: str, decode: Any) -> None:
    found = batches(numbers_index(tmp_path, 5), how, decode=decode)
    assert found.shape == (5, 3, 4, 6)
    assert np.array_equal(found[2].permute(1, 2, 0).numpy(), decoders.picture(b"\2"))


@pytest.mark.parametrize("how", WAYS)
def test_images_of_our_decoders_appear_channels_first_with_or_without_a_transform(tmp_path: Path, how: str) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(
            encode(Image.fromarray(photo(40, 60, np.random.default_rng(number))), "JPEG")
        )
    (tmp_path / "all.txt").write_text("".join(f"{number}.jpg\n" for number in range(3)))
    assert batches(tmp_path / "all.txt", how, decode=ImageDecoder()).shape == (3, 3, 40, 60)
    for transform, shape in [(None, (3, 3, 16, 24)), (decoders.add_noise, (3, 3, 16, 24))]:
        decode = RandomResizedCrop((16, 24))
        assert batches(tmp_path / "all.txt", how, decode=decode, transform=transform).shape == shape


def wider() -> torch.nn.Module:
    """Return a module that repeats the last axis. Its class is local, so it is pickled by value."""

    class Wider(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values.repeat_interleave(2, dim=-1)

    return Wider()


@pytest.mark.parametrize("how", [*WAYS[:2], *WAYS[4:]])
def test_a_torch_module_gets_images_channels_first_and_arrays_unchanged(arrays: Path, tmp_path: Path, how: str) -> None:
    numbers = numbers_index(tmp_path, 5)
    assert batches(numbers, how, decode=decoders.picture, transform=wider()).shape == (5, 3, 4, 12)
    assert batches(arrays, how, decode=NumpyDecoder(), transform=wider()).shape == (3, 5, 7, 18)
    with pytest.raises(SampleError, match=r"unknown which this uint8\[5, 7, 9\] is\. Give decode an attribute"):
        batches(numbers, how, decode=decoders.cube, transform=wider())


@pytest.mark.parametrize("how", ["alone", *WAYS[4:]])
def test_results_of_image_transform_libraries_are_images(tmp_path: Path, how: str) -> None:
    found = batches(
        numbers_index(tmp_path, 5),
        how,
        decode=decoders.undeclared,
        transform=albumentations.Compose([albumentations.CenterCrop(4, 2)]),
    )
    assert found.shape == (5, 3, 4, 2)


@pytest.mark.parametrize("how", WAYS)
def test_a_zero_dimensional_array_is_a_number(tmp_path: Path, how: str) -> None:
    found = batches(numbers_index(tmp_path, 5), how, decode=decoders.number_without_dimensions)
    assert found.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
@pytest.mark.parametrize("value", ["text", {"a": 1}, None, torch.ones(2, dtype=torch.uint8)])
def test_values_that_workers_cannot_pass_on_are_refused(tmp_path: Path, value: Any) -> None:
    dataset = MPDataset(numbers_index(tmp_path, 5), decode=lambda _: value, batch_size=2)
    with pytest.raises(SampleError, match=rf"'number'.* {type(value).__name__}, .*NumPy array"):
        MPLoader(dataset, num_workers=1)
