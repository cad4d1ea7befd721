"""`collate` says how samples become a batch: padded, end to end, or as a callable of the user's makes it."""

import itertools
import random
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from mpload import ErrorPolicy, Flat, FlatValues, ImageDecoder, MPDataset, MPLoader, Pad, Topology
from mpload.errors import ArgumentError
from tests.support.collates import drawing, listed, with_rng
from tests.support.photos import photo
from tests.support.typed import DECODERS, NUM_SAMPLES, comparable, read, typed, typed_index
from tests.support.typed_decoders import failing_first

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
WAYS = ["DataLoader", "0", "2", "1", "7"] if sys.platform == "linux" else ["DataLoader"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typed_index(tmp_path_factory.mktemp("typed"))


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of images in several sizes."""
    folder = tmp_path_factory.mktemp("sizes")
    rng = np.random.default_rng(0)
    for number in range(6):
        cv2.imwrite(str(folder / f"{number}.png"), photo(20 + number % 3, 30 - number, rng))
    path = folder / "sizes.txt"
    path.write_text("#mpload 1\n#columns image:path label:int\n" + "".join(f"{n}.png\t{n}\n" for n in range(6)))
    return path


COLLATES: dict[str, Any] = {
    "Pad": Pad(-1.5),
    "Flat": Flat(),
    "by column": {"sound": Pad(7), "image": Flat()},
    "callable": drawing,
    "callable with rng": with_rng,
}


@needs_linux
@pytest.mark.processes
@pytest.mark.parametrize("name", COLLATES)
def test_batches_are_the_same_bit_for_bit_however_they_are_made(index: Path, name: str) -> None:
    expected = read(index, "alone", collate=COLLATES[name])
    assert len(expected) == 6
    for how in WAYS if name == "by column" else WAYS[:3]:
        assert read(index, how, collate=COLLATES[name]) == expected, how


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize("name", COLLATES)
def test_batches_do_not_depend_on_the_number_of_workers(index: Path, name: str) -> None:
    expected = read(index, "2", collate=COLLATES[name])
    for how in WAYS:
        assert read(index, how, collate=COLLATES[name]) == expected, how


def test_padding_keeps_the_values_and_fills_the_rest(index: Path) -> None:
    plain = next(iter(typed(index)))["sound"]["wave"]
    padded = next(iter(typed(index, collate={"sound": Pad(-1.5)})))["sound"]["wave"]
    assert padded.shape == (4, max(map(len, plain)))
    for wave, row in zip(plain, padded, strict=True):
        assert torch.equal(row[: len(wave)], wave)
        assert (row[len(wave) :] == -1.5).all()


def test_flat_values_are_those_of_all_samples_end_to_end(index: Path) -> None:
    plain = next(iter(typed(index)))
    flat = next(iter(typed(index, collate=Flat())))
    wave = flat["sound"]["wave"]
    assert isinstance(wave, FlatValues)
    assert wave.offsets.dtype is torch.int64
    assert wave.offsets[[0, -1]].tolist() == [0, len(wave.values)]
    split = torch.tensor_split(wave.values, wave.offsets[1:-1])
    assert all(map(torch.equal, split, plain["sound"]["wave"]))
    nested = torch.nested.nested_tensor_from_jagged(*wave)
    assert all(map(torch.equal, nested.unbind(), plain["sound"]["wave"]))
    assert torch.equal(flat["image"], plain["image"])  # images are never joined
    assert torch.equal(flat["sound"]["noise"].values, plain["sound"]["noise"].flatten())  # nor does the shape decide
    assert flat["caption"] == plain["caption"]


values = arrays_of.arrays(np.int32, st.tuples(st.integers(0, 4), st.integers(0, 3)), elements=st.integers(-9, 9))


@given(st.lists(values, min_size=1, max_size=5))
def test_padded_arrays_are_found_in_the_corner(arrays: list[Any]) -> None:
    joined, _ = Pad(5).joined(arrays, key="x")
    assert joined.shape[1:] == tuple(np.max([array.shape for array in arrays], axis=0))
    for array, row in zip(arrays, joined, strict=True):
        height, width = array.shape
        np.testing.assert_array_equal(row[:height, :width], array)
        assert (row[height:] == 5).all()
        assert (row[:, width:] == 5).all()


def test_arrays_are_padded_on_the_host_if_the_default_device_is_another() -> None:
    with torch.device("meta"):
        joined, _ = Pad(5).joined([np.arange(2), np.arange(3)], key="x")
    assert joined.tolist() == [[0, 1, 5], [0, 1, 2]]


@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=5))
def test_flat_arrays_split_at_the_offsets(rows: list[list[int]]) -> None:
    arrays = [np.array(row, np.int64) for row in rows]
    joined, offsets = Flat().joined(arrays, key="x")
    assert [joined[low:high].tolist() for low, high in itertools.pairwise(offsets)] == rows
    if len({*map(len, rows)}) == 1:  # as slots give them
        again = Flat().joined(np.stack(arrays), key="x")
        np.testing.assert_array_equal(again[0], joined)
        np.testing.assert_array_equal(again[1], offsets)


@pytest.mark.parametrize("collate", [Pad(0), {"image": Pad(0)}])
def test_images_of_one_decoder_are_padded_channels_last(sizes: Path, collate: Any) -> None:
    options: dict[str, Any] = {"decode": ImageDecoder(), "batch_size": 3, "topology": Topology()}
    plain, labels = next(iter(MPDataset(sizes, **options)))
    padded, same_labels = next(iter(MPDataset(sizes, collate=collate, **options)))
    assert padded.shape == (3, 3, 22, 30)
    assert padded.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(labels, same_labels)
    for image, row in zip(plain, padded, strict=True):
        _, height, width = image.shape
        assert torch.equal(row[:, :height, :width], image)
        assert not row[:, height:].any()
        assert not row[:, :, width:].any()


@needs_linux
@pytest.mark.processes
def test_images_of_one_decoder_are_padded_in_workers(sizes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"decode": ImageDecoder(), "batch_size": 4, "topology": Topology(), "tail": "ragged"}
    expected = [comparable(batch) for batch in MPDataset(sizes, collate=Pad(3), as_dict=True, **options)]
    monkeypatch.delattr(Pad, "joined")  # in this process only
    with MPLoader(MPDataset(sizes, collate=Pad(3), as_dict=True, **options), num_workers=2) as loader:
        assert [comparable(batch) for batch in loader] == expected


@needs_linux
@pytest.mark.processes
@pytest.mark.parametrize("as_dict", [False, True])
def test_a_callable_gets_the_samples_that_the_dataset_yields(sizes: Path, as_dict: bool) -> None:
    options: dict[str, Any] = {"decode": ImageDecoder(), "as_dict": as_dict, "topology": Topology(), "shuffle": True}
    alone = [comparable(sample) for sample in MPDataset(sizes, **options)]
    with MPLoader(MPDataset(sizes, batch_size=3, collate=listed, **options), num_workers=2 * as_dict) as loader:
        assert [comparable(sample) for batch in loader for sample in batch] == alone


@needs_linux
@pytest.mark.processes
def test_a_callable_gets_the_dicts_of_column_decoders(index: Path) -> None:
    one_by_one = read(index, "one by one")
    assert [sample for batch in read(index, "2", collate=listed) for sample in batch] == one_by_one


@needs_linux
@pytest.mark.processes
def test_each_batch_draws_its_own_numbers_and_the_generators_of_the_script_stay(index: Path) -> None:
    with MPLoader(typed(index, collate=drawing), num_workers=0) as loader:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        expected = random.Random(1).random(), np.random.RandomState(1).rand(), torch.Generator().manual_seed(1)
        drawn = [tuple(batch["drawn"]) for batch in loader]
        assert all(len({*numbers}) == len(drawn) for numbers in zip(*drawn, strict=True))  # of each generator
        assert (random.random(), np.random.rand()) == expected[:2]  # noqa: NPY002
        assert torch.rand(()) == torch.rand((), generator=expected[2])


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::mpload.errors.MploadWarning")
def test_skipped_samples_are_missing_and_change_no_random_numbers(index: Path, tmp_path: Path) -> None:
    """The first sample of each batch fails, whose numbers the batch has."""
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", max_error_fraction=1)
    options: dict[str, Any] = {"decode": {**DECODERS, "sound": failing_first}, "on_error": policy, "shuffle": False}
    (flat, *_) = typed(index, collate=Flat(), **options)
    assert flat["sound"].offsets.tolist() == [0, 9, 19, 30]
    expected = read(index, "alone", collate=drawing, **options)
    assert expected[0]["whole"]["label"] == 1
    complete = read(index, "alone", collate=drawing, shuffle=False)
    assert [batch["drawn"] for batch in expected] == [batch["drawn"] for batch in complete]
    for how in WAYS[:3]:
        assert read(index, how, collate=drawing, **options) == expected, how


def test_the_last_batch_of_a_rank_may_be_empty(index: Path) -> None:
    def last(collate: Any) -> Any:
        return [*typed(index, collate=collate, topology=Topology(rank=6, world_size=7))][-1]

    wave = last(Flat())["sound"]["wave"]
    assert (wave.values.shape, wave.offsets.tolist()) == ((0,), [0])
    assert len(last(Pad(-1))["sound"]["wave"]) == 0
    assert last(listed) == []


def test_padding_of_a_dtype_that_numpy_lacks(index: Path) -> None:
    def halves(data: bytes, record: Any) -> Any:
        return torch.ones(1 + record["label"] % 3, dtype=torch.bfloat16)

    padded = next(iter(typed(index, decode={**DECODERS, "sound": halves}, collate={"sound": Pad(-2)}, shuffle=False)))
    assert padded["sound"].dtype is torch.bfloat16
    assert padded["sound"].tolist() == [[1, -2, -2], [1, 1, -2], [1, 1, 1], [1, -2, -2]]


class Collator:
    def __call__(self, samples: list[Any]) -> Any:
        return samples


def test_a_class_may_make_a_batch_of_samples(index: Path) -> None:
    samples = [*typed(index, batch_size=None)]
    (batch, *_) = typed(index, collate=list)
    assert comparable(batch) == comparable(samples[:4])


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (7, r"collate must be Pad\(...\), Flat\(\), a dict of them, or a callable on a list of samples, got 7"),
        (Flat, r"collate is the class Flat. Pass an instance: Flat\(...\)"),
        (Collator, r"collate is the class Collator. Pass an instance: Collator\(...\)"),
        ({"sound": 0}, r"collate\['sound'\] must be Pad\(...\) or Flat\(\), got 0"),
        ({"sounds": Flat()}, r"collate has keys \['sounds'\], but the keys of a sample are \['image', "),
    ],
)
def test_a_wrong_collate_is_refused(index: Path, collate: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        next(iter(typed(index, collate=collate)))


def test_what_cannot_be_padded_or_joined_is_refused(index: Path, sizes: Path) -> None:
    with pytest.raises(ArgumentError, match=r"value must be a number, got 'x'"):
        Pad("x")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="collate makes batches, but batch_size is None"):
        typed(index, batch_size=None, collate=Flat())
    images = MPDataset(sizes, decode=ImageDecoder(), batch_size=3, collate=Pad(-1), topology=Topology())
    with pytest.raises(ArgumentError, match=r"collate: column 'image' is uint8, which cannot hold .*Pad\(value=-1\)"):
        next(iter(images))
    with pytest.raises(ArgumentError, match=r"first axis, but x differs in others too: it is \[1, 2\] and \[2, 3\]"):
        Flat().joined([np.zeros((1, 2)), np.zeros((2, 3))], key="x")
    assert NUM_SAMPLES % 4
