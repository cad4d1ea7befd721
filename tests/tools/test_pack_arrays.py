"""Packs of arrays: the shards are `.npy` files, and the decoder that the command prints reads their rows."""

import json
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from typer.testing import CliRunner

import mpload
from mpload import ImageDecoder, MPDataset, RawArray, ResizeCenterCrop, Topology, build_index
from mpload.cli.main import app
from mpload.errors import ArgumentError, DecodeError, IndexFormatError, SampleError, StorageError
from mpload.tools.pack.packing import PackOptions, ShardFormat, pack_index, pack_rows, verify_pack
from tests.support.photos import make_photo_tree

NUMBERS = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(), arrays.floating_dtypes(), arrays.complex_number_dtypes()
)


def options(**more: Any) -> PackOptions:
    return PackOptions(format=ShardFormat.ARRAYS, **more)


def npy(array: NDArray[Any]) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def index_of(files: list[bytes], folder: Path) -> Path:
    """Write the files and an index of them, with the labels 0, 1, 2..."""
    for number, data in enumerate(files):
        (folder / f"{number}.bin").write_bytes(data)
    (folder / "all.txt").write_text("".join(f"{number}.bin {number}\n" for number in range(len(files))))
    return folder / "all.txt"


def loaded(packed: Path) -> list[tuple[NDArray[Any], int]]:
    """Return the samples of a pack, read with the decoder that it names."""
    decode = pack_rows(packed.parent)
    assert decode is not None
    return [(row.numpy(), label) for row, label in MPDataset(packed, decode=decode, topology=Topology())]


def shards(packed: Path) -> list[NDArray[Any]]:
    return [np.load(path, mmap_mode="r") for path in sorted(packed.parent.glob("shard-*.npy"))]


@settings(max_examples=25)
@given(st.data(), NUMBERS, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), st.integers(1, 9))
def test_loaded_rows_equal_the_arrays_that_were_packed(
    data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...], num_samples: int
) -> None:
    """For every dtype, in both byte orders, and in C and in Fortran order."""
    values = [data.draw(arrays.arrays(dtype, shape)) for _ in range(num_samples)]
    files = [npy(value if number % 2 else np.array(value, order="F")) for number, value in enumerate(values)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shard_bytes = data.draw(st.integers(1, 3 * num_samples)) * dtype.itemsize
        packed = pack_index(index_of(files, folder), folder / "pack", options(shard_bytes=shard_bytes))
        stored = np.concatenate(shards(packed))
        assert stored.shape == (num_samples, *shape)
        assert stored.dtype == dtype.newbyteorder("=")
        np.testing.assert_array_equal(stored, np.stack(values))
        decode = pack_rows(packed.parent)
        assert decode == RawArray(shape, dtype=dtype.newbyteorder("="))
        index = mpload.open_index(packed)
        for number, (value, record) in enumerate(zip(values, index, strict=True)):
            span = record.cells[0]
            assert isinstance(span, mpload.Span)
            with (folder / "pack" / span.path).open("rb") as file:
                file.seek(span.offset_bytes)
                np.testing.assert_array_equal(decode(file.read(span.length_bytes)), value)
            assert record.cells[1] == number


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("arrays")
    make_photo_tree(root / "photos", num_images=20, num_classes=4, seed=0)
    made = build_index(root / "photos", root / "train.txt")
    assert isinstance(made, Path)
    return made


def test_photos_are_stored_decoded_and_appear_channels_first(photos: Path, tmp_path: Path) -> None:
    packed = pack_index(photos, tmp_path / "pack", options(decode=24, shard_bytes=10_000, shuffle_seed=1))
    assert pack_rows(tmp_path / "pack") == RawArray((24, 24, 3), makes_images=True)
    assert len(shards(packed)) == 4
    expected = MPDataset(photos, decode=ResizeCenterCrop(24, resize=24, antialias=True), topology=Topology())
    by_bytes = sorted((image.numpy().tobytes(), label) for image, label in expected)
    assert sorted((image.tobytes(), label) for image, label in loaded(packed)) == by_bytes
    assert loaded(packed)[0][0].shape == (3, 24, 24)
    assert mpload.open_index(packed).classes == mpload.open_index(photos).classes


def test_whole_images_of_one_size_are_stored_decoded(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(5, 6, 7, 3), dtype=np.uint8)
    index = index_of([cv2.imencode(".png", image)[1].tobytes() for image in images], tmp_path)
    packed = pack_index(index, tmp_path / "pack", options())
    expected = [(image.numpy(), label) for image, label in MPDataset(index, decode=ImageDecoder(), topology=Topology())]
    for (row, label), (image, number) in zip(loaded(packed), expected, strict=True):
        np.testing.assert_array_equal(row, image)
        assert label == number


@pytest.mark.parametrize(
    "other", [np.zeros((2, 4), "f4"), np.zeros((2, 3), "f8"), np.zeros((2, 3), "i4"), np.float32(1)]
)
def test_an_array_unlike_the_first_is_an_error_that_names_the_sample(tmp_path: Path, other: NDArray[Any]) -> None:
    index = index_of([npy(np.zeros((2, 3), "f4")), npy(other)], tmp_path)
    with pytest.raises(
        SampleError, match=r"all\.txt:2: its array is .* but that of the first sample is float32\[2, 3\]"
    ):
        pack_index(index, tmp_path / "pack", options())
    assert not list((tmp_path / "pack").glob("shard-*"))


@pytest.mark.parametrize("data", [b"neither", npy(np.zeros(3))[:-1], npy(np.array(["text"]))])
def test_a_first_sample_that_is_no_array_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SampleError, match=r"all\.txt:1: .*Remove it from the index"):
        pack_index(index_of([data], tmp_path), tmp_path / "pack", options())


def test_an_index_without_samples_is_refused_as_in_other_formats(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="holds no samples"):
        pack_index(index_of([], tmp_path), tmp_path / "pack", options())


def test_an_index_of_pairs_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("#mpload 1\n#columns low:path high:path\n0.bin\t0.bin\n")
    with pytest.raises(ArgumentError, match="format arrays packs one column of files, got low, high"):
        pack_index(tmp_path / "pairs.txt", tmp_path / "pack", options())
    with pytest.raises(ArgumentError, match="format arrays stores raw pixels: give decode instead"):
        options(resize_short=8)


@pytest.mark.slow
@pytest.mark.processes
def test_any_number_of_workers_writes_the_same_rows_and_a_changed_one_is_found(photos: Path, tmp_path: Path) -> None:
    small = options(decode=16, shard_bytes=4_000)
    for name, num_workers in (("alone", 1), ("many", 3)):
        pack_index(photos, tmp_path / name, small, num_workers=num_workers)
    files = sorted(path.name for path in (tmp_path / "alone").glob("shard-*"))
    assert len(files) == 4
    for file in [*files, "index.txt", "pack.json"]:
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "many" / file).read_bytes()
    verify_pack(photos, tmp_path / "many", small, num_workers=2)
    changed = np.load(tmp_path / "many" / files[1], mmap_mode="r+")
    changed[0, 0, 0] ^= 1
    changed.flush()
    with pytest.raises(StorageError, match=rf"{files[1]}: differs from the data of the index, within bytes 128 to 896"):
        verify_pack(photos, tmp_path / "many", small)


def test_the_command_prints_the_python_that_loads_the_pack(tmp_path: Path) -> None:
    index = index_of([npy(np.full((2, 3), number, ">f4")) for number in range(4)], tmp_path)
    command = ["pack", str(index), "-o", str(tmp_path / 'a "pack"'), "--format", "arrays"]
    told = CliRunner().invoke(app, command).stdout.splitlines()[-1]
    code = told.removeprefix("Load it with ")
    assert code.startswith("mpload.MPDataset(")
    dataset = eval(code, {"mpload": mpload})
    assert [row[0, 0].item() for row, _ in dataset] == [0, 1, 2, 3]
    facts = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert facts["decode"] in code
    assert facts["num_shards"] == 1


def test_a_sample_of_another_length_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    packed = pack_index(index_of([npy(np.zeros(4))], tmp_path), tmp_path / "pack", options())
    with pytest.raises(SampleError, match=r"32 bytes, but float64\[5\] has 40") as error:
        list(MPDataset(packed, decode=RawArray((5,), dtype="float64"), topology=Topology()))
    assert isinstance(error.value.__cause__, DecodeError)
