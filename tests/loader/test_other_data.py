"""Arrays and sound take the same path as images: bytes of a record, a decoder, a batch."""

import io
import pickle
import random
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from mpload import MPDataset
from mpload.errors import ArgumentError, DecodeError, SampleError
from mpload.images.decoders import NumpyDecoder
from mpload.index.opening import open_index
from mpload.samples.batch import Batch
from mpload.samples.column_batches import batch_of_columns
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy

NUMBERS = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(), arrays.floating_dtypes(), arrays.complex_number_dtypes()
)


def npy(array: NDArray[Any], **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def batch_of(index: Path, decode: Any) -> Batch:
    opened = open_index(index)
    pipeline = Pipeline(index=opened, decode=decode, policy=ErrorPolicy())
    return batch_of_columns(pipeline, np.arange(len(opened)), seed=0, epoch=0)


@given(arrays.arrays(NUMBERS, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0)), st.booleans())
def test_an_array_of_numbers_comes_back_as_it_was_saved(array: NDArray[Any], as_fortran: bool) -> None:
    read = NumpyDecoder()(npy(np.array(array, order="F" if as_fortran else "C")))
    np.testing.assert_array_equal(read, array)
    assert read.shape == array.shape
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.flags.c_contiguous


def test_an_array_is_not_copied_unnecessarily() -> None:
    data = npy(np.arange(12.0).reshape(3, 4))
    assert np.shares_memory(NumpyDecoder()(data), np.frombuffer(data, np.uint8))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path("run").write_text, ("boom",)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bomb = npy(np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(DecodeError, match=r"holds object\. Only arrays of numbers are read"):
        NumpyDecoder()(bomb)
    with pytest.raises(DecodeError, match=r"not a \.npy file"):
        NumpyDecoder()(pickle.dumps(Bomb()))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("array", [np.array(["text"]), np.zeros(2, "i4,f8"), np.array(["2020"], "M8[D]")])
def test_arrays_of_anything_but_numbers_are_refused(array: NDArray[Any]) -> None:
    with pytest.raises(DecodeError, match="Only arrays of numbers"):
        NumpyDecoder()(npy(array))


def test_numbers_that_pytorch_does_not_have_are_an_error_that_names_the_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2, np.longdouble))
    (tmp_path / "all.txt").write_text("a.npy\n")
    for dtype in (np.longdouble, np.clongdouble):
        with pytest.raises(DecodeError, match=r"which PyTorch does not have\. Store it as (float64|complex128)$"):
            NumpyDecoder()(npy(np.zeros(2, dtype)))
    with pytest.raises(SampleError, match=r"all\.txt:1: sample 0 \(a\.npy\): .*which PyTorch does not have"):
        batch_of(tmp_path / "all.txt", NumpyDecoder())


def several_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    return dict(np.load(io.BytesIO(data)))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_of_several_arrays_is_an_error_that_says_how_to_read_it(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", x=np.arange(3), y=np.float32(4))
    data = (tmp_path / "a.npz").read_bytes()
    with pytest.raises(
        DecodeError, match=r"\.npz archive of several .* returns dict\(numpy\.load\(io\.BytesIO\(data\)\)\)$"
    ):
        NumpyDecoder()(data)
    (tmp_path / "all.txt").write_text("#mpload 1\n#columns arrays:path\na.npz\n")
    batch = next(iter(MPDataset(tmp_path / "all.txt", decode={"arrays": several_arrays}, batch_size=1)))
    assert batch["arrays"]["x"].tolist() == [[0, 1, 2]]
    assert batch["arrays"]["y"].tolist() == [4]


def test_a_header_that_claims_more_data_than_there_is_causes_no_allocation() -> None:
    claims = npy(np.zeros((3, 4))).replace(b"(3, 4), }" + b" " * 9, b"(900000000, 99), }")
    with pytest.raises(DecodeError, match=r"96 bytes follow its header, but float64\[900000000, 99\] has 712,800,000,"):
        NumpyDecoder()(claims)
    with pytest.raises(DecodeError, match="224 bytes exceed max_bytes=223"):
        NumpyDecoder(max_bytes=223)(npy(np.zeros((3, 4))))
    with pytest.raises(ArgumentError, match="max_bytes must be positive, got 0"):
        NumpyDecoder(max_bytes=0)


def test_a_damaged_file_gives_an_array_or_a_decode_error() -> None:
    dice, whole = random.Random(0), npy(np.arange(60, dtype=np.int32).reshape(3, 4, 5))
    num_errors = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 2, 8))):
            data[dice.randrange(90)] = dice.choice((*b"(){}[]'\"-\\\0", dice.randrange(256)))
        try:
            NumpyDecoder()(bytes(data))
        except DecodeError:
            num_errors += 1
    assert 1000 < num_errors < 3000


def test_an_array_file_that_is_too_large_is_not_even_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(1000))
    (tmp_path / "all.txt").write_text("a.npy\n")
    with pytest.raises(Exception, match="is not read: its 8,128 bytes exceed max_bytes=1,000"):
        batch_of(tmp_path / "all.txt", NumpyDecoder(max_bytes=1000))


def test_arrays_of_one_shape_are_stacked_and_others_listed(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((2, 3), number, np.float32))
    np.save(tmp_path / "3.npy", np.zeros((1, 3), np.float32))
    (tmp_path / "alike.txt").write_text("0.npy\n1.npy\n2.npy\n")
    (tmp_path / "varied.txt").write_text("0.npy\n3.npy\n")
    (alike,) = batch_of(tmp_path / "alike.txt", NumpyDecoder()).columns
    assert isinstance(alike, np.ndarray)
    assert (alike.shape, alike[:, 0, 0].tolist()) == ((3, 2, 3), [0, 1, 2])
    (varied,) = batch_of(tmp_path / "varied.txt", NumpyDecoder()).columns
    assert [value.shape for value in varied] == [(2, 3), (1, 3)]


def sound(data: bytes) -> NDArray[np.int16]:
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_sound_is_decoded_by_a_user_defined_callable(tmp_path: Path) -> None:
    waves = [np.arange(number, dtype="<i2") * 30 for number in (50, 80)]
    for number, samples in enumerate(waves):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
    (tmp_path / "all.txt").write_text("0.wav\n1.wav\n")
    (sounds,) = batch_of(tmp_path / "all.txt", sound).columns
    for read, samples in zip(sounds, waves, strict=True):
        np.testing.assert_array_equal(read, samples)
