"""With a decoder for each column, samples are dicts, the same in every process, and all columns follow one geometry."""

import json
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    ErrorPolicy,
    GpuDecode,
    ImageDecoder,
    Json,
    MPDataset,
    MPLoader,
    PartialCache,
    RandomResizedCrop,
    RawBytes,
    Text,
    Topology,
    Views,
)
from mpload.errors import ArgumentError, DecodeError, MploadWarning, SampleError
from tests.support.sample_transforms import albumented
from tests.support.typed import DECODERS, NUM_SAMPLES, WAYS, comparable, read, same_region, typed, typed_index
from tests.support.typed_decoders import Region, brighter, drawing, killing, other_keys, tensors, tokens, two_forms

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typed_index(tmp_path_factory.mktemp("typed"))


@pytest.fixture(scope="module")
def expected(index: Path) -> list[Any]:
    return read(index, "alone")


@pytest.mark.processes
@pytest.mark.parametrize("how", ["DataLoader", "0", "1", "7"] if sys.platform == "linux" else ["DataLoader"])
def test_batches_are_the_same_bit_for_bit_however_they_are_made(index: Path, expected: list[Any], how: str) -> None:
    assert len(expected) == 6
    assert read(index, how) == expected


def test_numbers_from_global_generators_differ_between_samples_and_epochs(index: Path) -> None:
    dataset = typed(index)
    drawn = [value for _ in range(2) for batch in dataset for value in batch["sound"]["drawn"].tolist()]
    assert len(set(drawn)) == 2 * NUM_SAMPLES


def test_samples_are_dicts_in_the_order_of_the_columns(index: Path) -> None:
    samples = list(typed(index, batch_size=None, shuffle=False))
    assert [*samples[0]] == ["image", "small", "caption", "meta", "sound", "label", "weight", "word"]
    for number, sample in enumerate(samples):
        assert sample["image"].shape == (3, 32, 32)
        assert sample["image"].dtype == torch.uint8
        assert sample["caption"] == f"caption {number} é" * (number % 3)
        assert sample["meta"] == {"n": number, "list": [None, 1, 0.5, "a"] * (number % 4)}
        assert (sample["label"], sample["weight"], sample["word"]) == (number, number / 3, f"word {number}")
        assert sample["sound"]["pair"] == (number, f"label {number}")


def test_batches_hold_stacked_tensors_or_lists(index: Path) -> None:
    batch = next(iter(typed(index, shuffle=False, batch_size=3)))
    assert batch["image"].shape == (3, 3, 32, 32)
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert (batch["label"].dtype, batch["weight"].dtype) == (torch.int64, torch.float64)
    assert batch["word"] == ["word 0", "word 1", "word 2"]
    assert [len(wave) for wave in batch["sound"]["wave"]] == [8, 9, 10]
    assert batch["sound"]["noise"].shape == (3, 2)
    assert batch["sound"]["pair"][0].tolist() == [0, 1, 2]
    assert batch["sound"]["pair"][1] == ["label 0", "label 1", "label 2"]
    assert [len(raw) for raw in batch["sound"]["raw"]] == [2, 2, 2]
    assert [len(many) for many in batch["sound"]["many"]] == [0, 1, 2]
    assert isinstance(batch["sound"]["many"][1][0], torch.Tensor)
    assert batch["sound"]["is_even"].tolist() == [True, False, True]
    assert [meta["n"] for meta in batch["meta"]] == [0, 1, 2]


@needs_linux
@pytest.mark.processes
def test_values_of_varying_length_can_be_kept_without_keeping_their_batches(index: Path) -> None:
    with MPLoader(typed(index, shuffle=False), num_workers=1) as loader:
        first, *others = ([wave for batch in loader for wave in batch["sound"]["wave"]] for _ in range(4))
        assert loader.stats().num_copied_batches == 0
    assert len({len(wave) for wave in first}) > 1
    for waves in others:
        assert all(map(torch.equal, first, waves))
    for wave in first:
        assert len(pickle.dumps(wave)) == len(pickle.dumps(wave.clone())), "it is pickled without its neighbours"


def test_an_image_column_has_the_pixels_that_one_decoder_makes(index: Path, tmp_path: Path) -> None:
    lines = "".join(f"{number}.jpg\n" for number in range(NUM_SAMPLES))
    alone = index.parent / "alone.txt"
    alone.write_text(f"#mpload 1\n#columns image:path\n{lines}")
    for shuffle in (False, True):
        options: dict[str, Any] = {"batch_size": 4, "seed": 3, "tail": "ragged", "topology": Topology()}
        images = [*MPDataset(alone, decode=RandomResizedCrop(32), **options)]
        found = [batch["image"] for batch in typed(index, shuffle=False)]
        assert all(map(torch.equal, images, found)), shuffle


def test_the_first_image_draws_and_others_follow_it(index: Path) -> None:
    apart = []
    for sample in typed(index, batch_size=None):
        large, small = (sample[key].permute(1, 2, 0).numpy() for key in ("image", "small"))
        apart.append(same_region(large, small))
    mirrored = same_region(large[:, ::-1], small)
    assert np.mean(apart) < 6 < mirrored

    # The order of `decode` decides, not that of the columns.
    turned = {"small": DECODERS["small"], "image": DECODERS["image"], "caption": Text(), "meta": Json(), "sound": len}
    ahead = [sample["small"] for sample in typed(index, batch_size=None, decode=turned)]
    behind = [sample["small"] for sample in typed(index, batch_size=None)]
    assert not all(map(torch.equal, ahead, behind))


def test_a_callable_gets_the_geometry_and_may_read_another_column(index: Path) -> None:
    batch = next(iter(typed(index, decode={"region": Region(), **DECODERS}, shuffle=False)))
    assert [*batch][-1] == "region"
    assert batch["region"]["size"][0].tolist() == [80, 82, 84, 80]
    assert batch["region"]["box"].shape == (4, 4)
    assert batch["region"]["bytes"][0] == (index.parent / "0.jpg").stat().st_size


def without(*keys: str, **others: Any) -> dict[str, Any]:
    return {key: value for key, value in {**DECODERS, **others}.items() if key not in keys}


def test_the_first_argument_may_have_any_name(index: Path) -> None:
    decode = without(
        sound=lambda record, /, out=None: len(record), meta=lambda rng: 1 + len(rng), caption=lambda *given: len(given)
    )
    sample = next(iter(typed(index, decode=decode, batch_size=None, shuffle=False)))
    assert (sample["sound"], sample["caption"]) == (8, 1)
    assert sample["meta"] == 1 + (index.parent / "0.json").stat().st_size


WRONG: list[tuple[dict[Any, Any], str]] = [
    (without("caption"), "column 'caption' holds files, but decode has no decoder for it"),
    (without(captions=Text()), r"decode has a key 'captions', but the columns of the index are 'image:path "),
    (
        without(label=Views(of="image", a=(2, RandomResizedCrop(8)))),
        r"decode\['label'\] reads column 'image', but its values",
    ),
    (without(meta=Json), r"decode\['meta'\] is the class Json. Pass an instance: Json\(...\)"),
    (without(meta=7), r"decode\['meta'\] must be callable, got 7"),
    (without(meta=lambda data, path: 0), r"decode\['meta'\] .*nothing is passed for its parameter 'path'.*rng, record"),
    (without(meta=lambda: 0), r"decode\['meta'\] .*must take an argument"),
    (without(meta=lambda data, *, out: 0), r"decode\['meta'\] .*out=, so it needs an attribute output_shape"),
    ({**DECODERS, 3: Text()}, "the keys of decode must be names of columns, got 3"),
    (
        without(image=RawBytes(), small=RawBytes(), meta=lambda data, geometry: 0),
        r"decode\['meta'\] .*follows the geometry of an image, but no decoder draws one",
    ),
    (
        without(image=GpuDecode(RandomResizedCrop(8)), small=RawBytes(), meta=lambda data, geometry=None: 0),
        "leaves the crop to the device, where no other column can follow it",
    ),
]


@pytest.mark.parametrize(("decode", "message"), WRONG)
def test_a_decoder_that_does_not_fit_is_refused_by_name_when_the_dataset_is_made(
    index: Path, decode: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        typed(index, decode=decode)


def test_a_transform_of_images_is_refused_if_the_device_decodes_them(index: Path) -> None:
    decode = without(image=GpuDecode(RandomResizedCrop(8)), small=RawBytes())
    message = r"decode\['image'\] \(GpuDecode\) leaves the image to the device, so transform would not get its pixels"
    with pytest.raises(ArgumentError, match=message):
        typed(index, decode=decode, transform=albumented())
    typed(index, decode={**decode, "small": ImageDecoder()}, transform=albumented())
    typed(index, decode=decode, transform=dict)


def test_a_decoder_that_reads_no_column_is_refused(index: Path) -> None:
    region = Region()
    region.of = "photo"
    with pytest.raises(ArgumentError, match=r"decode\['region'\] reads column 'photo', but the columns"):
        typed(index, decode={**DECODERS, "region": region})


def test_a_cache_of_smaller_images_is_refused_and_one_of_bytes_serves(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="smaller images, which boxes and masks would no longer fit"):
        typed(index, cache=PartialCache(tmp_path, what="resized"))
    dataset = typed(index, cache=PartialCache(tmp_path, max_bytes="64MiB", fraction=0.5))
    assert [comparable(batch) for batch in dataset] == read(index, "alone")


BROKEN: dict[str, Callable[[Path], object]] = {
    "caption": lambda folder: (folder / "5.txt").write_bytes(b"\xff\xfe\xfd"),
    "meta": lambda folder: (folder / "5.json").write_text("{"),
    "image": lambda folder: (folder / "5.jpg").write_bytes(b"no image"),
    "small": lambda folder: (folder / "5.png").unlink(),
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("column", "num_workers"), [*((column, 0) for column in BROKEN), *[("meta", 2)][: sys.platform == "linux"]]
)
def test_the_evidence_of_a_bad_sample_names_column_line_and_files(
    tmp_path: Path, column: str, num_workers: int
) -> None:
    index = typed_index(tmp_path)
    BROKEN[column](tmp_path)
    where = rf"typed.txt:8: sample 5 \(5.jpg, 5.png, 5.txt, 5.json, .*sounds.*\): column '{column}': "
    with MPLoader(typed(index), num_workers=num_workers) as loader, pytest.raises(SampleError, match=where):
        list(loader)
    for action in ("skip", "substitute"):
        policy = ErrorPolicy(action=action, report=tmp_path / f"{action}.jsonl")
        dataset = typed(index, on_error=policy)
        with MPLoader(dataset, num_workers=num_workers) as loader, pytest.warns(MploadWarning, match=action):
            labels = [label for batch in loader for label in batch["label"].tolist()]
        assert 5 not in labels
        assert len(labels) == NUM_SAMPLES - (action == "skip")
        (line,) = (tmp_path / f"{action}.jsonl").read_text().splitlines()
        assert json.loads(line)["cause"].startswith(f"column '{column}': ")


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2] if sys.platform == "linux" else [0])
def test_a_value_of_another_type_than_the_first_is_a_bad_sample(index: Path, tmp_path: Path, num_workers: int) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", max_error_fraction=1)
    dataset = typed(index, decode=without(sound=two_forms), on_error=policy, shuffle=False)
    with MPLoader(dataset, num_workers=num_workers) as loader, pytest.warns(MploadWarning, match="skip"):
        labels = [label for batch in loader for label in batch["label"].tolist()]
    assert labels == [number for number in range(NUM_SAMPLES) if number not in {5, 7, 9, 11, 13, 15}]
    causes = [json.loads(line)["cause"] for line in policy.report.read_text().splitlines()]  # type: ignore[union-attr]
    assert all("sample['sound']" in cause for cause in causes)
    assert any("Make decode or transform return the same shape" in cause for cause in causes)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1] if sys.platform == "linux" else [0])
def test_a_sample_with_other_keys_than_the_first_is_a_bad_sample(index: Path, tmp_path: Path, num_workers: int) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl")
    dataset = typed(index, decode=without(sound=other_keys), on_error=policy, shuffle=False)
    with MPLoader(dataset, num_workers=num_workers) as loader, pytest.warns(MploadWarning, match="skip"):
        assert sum(len(batch["label"]) for batch in loader) == NUM_SAMPLES - 2
    causes = [json.loads(line)["cause"] for line in policy.report.read_text().splitlines()]  # type: ignore[union-attr]
    assert causes[0].startswith("sample['sound']['inner'][0] has a key 'c', but the first sample's has not")
    assert causes[1].startswith("sample['sound']['inner'][0] has no key 'b', but the first sample's has")


@pytest.mark.processes
@pytest.mark.parametrize("how", ["alone", "2"] if sys.platform == "linux" else ["alone"])
def test_tensors_keep_their_dtype(index: Path, how: str) -> None:
    for batch in read(index, how, decode=without(sound=tensors)):
        assert batch["sound"]["half"][0] == "torch.bfloat16"
        assert batch["sound"]["ids"][0] == "torch.int64"


NESTED = "[" * 480 + "]" * 480
HOSTILE = ["[" * 100_000, NESTED, "9" * 5000, '{"n": 1} x', "", "\ud800", '{"a": NaN', "nul"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("batch_size", [4, None])
def test_hostile_json_is_a_bad_sample_or_a_value(tmp_path: Path, text: str, batch_size: int | None) -> None:
    index = typed_index(tmp_path)
    (tmp_path / "2.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)
        found = list(typed(index, on_error=policy, shuffle=False, batch_size=batch_size))
    assert len(found) == 6 if batch_size else len(found) in {NUM_SAMPLES - 1, NUM_SAMPLES}
    (line,) = (tmp_path / "report.jsonl").read_text().splitlines()
    assert "meta" in json.loads(line)["cause"]


def test_how_deeply_json_may_be_nested_does_not_depend_on_the_process() -> None:
    for opening, closing in (("[", "]"), ('{"a": [', "]}")):
        deepest, levels = 256 // len(closing), 256
        assert Json()(opening * deepest + closing * deepest)
        with pytest.raises(DecodeError, match=f"nested more than {levels} levels deep"):
            Json()((opening * (deepest + 1) + closing * (deepest + 1)).encode())
    assert len(Json()(f"[{'[], ' * 1000}[]]")) == 1001
    with pytest.raises(DecodeError, match="not JSON: maximum recursion depth"):
        Json()("[" * 100_000)


@pytest.mark.processes
@needs_linux
def test_a_value_that_no_batch_can_hold_is_refused_in_any_process(index: Path) -> None:
    dataset = typed(index, decode=without(sound=lambda data: None))
    message = r"^sample\['sound'\] is a NoneType, which no batch can hold. Make decode or"
    with pytest.raises(ArgumentError, match=message):
        next(iter(dataset))
    with pytest.raises(ArgumentError, match=message):
        MPLoader(dataset, num_workers=1)


@pytest.mark.processes
@needs_linux
def test_killed_workers_lose_and_change_nothing(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLOAD_TEST_FOLDER", str(tmp_path))
    with MPLoader(typed(index, decode=without(sound=killing)), num_workers=2) as loader:
        found = [comparable(batch) for batch in loader]
        assert loader.stats().num_deaths == 2
    assert found == read(index, "alone", decode=without(sound=killing))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2] if sys.platform == "linux" else [0])
def test_an_epoch_that_is_resumed_goes_on_with_the_same_batches(
    index: Path, expected: list[Any], num_workers: int
) -> None:
    with MPLoader(typed(index), num_workers=num_workers) as loader:
        batches = iter(loader)
        before = [comparable(next(batches)) for _ in range(2)]
        state = loader.state_dict()
    dataset = typed(index, batch_size=2)
    with MPLoader(dataset, num_workers=1 if num_workers else 0) as loader:
        loader.load_state_dict(state)
        rest = [label for batch in loader for label in batch["label"].tolist()]
    with MPLoader(typed(index), num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        assert before + [comparable(batch) for batch in loader] == expected
    labels = [label for batch in typed(index) for label in batch["label"].tolist()]
    assert rest == labels[8:]


@pytest.mark.processes
@pytest.mark.parametrize("how", WAYS)
def test_text_without_files_has_decoders_too(tmp_path: Path, how: str) -> None:
    lines = "".join(f'[{number}, "ä"]\t{number}\tword {number}\n' for number in range(9))
    index = tmp_path / "text.txt"
    index.write_text(f"#mpload 1\n#columns pair:str label:int word:str\n{lines}")

    found = read(index, how, decode={"pair": Json(), "word": tokens, "label": str}, shuffle=False, batch_size=9)
    samples = (
        found
        if how == "one by one"
        else [{key: found[0][key][number] for key in ("pair", "label")} for number in range(9)]
    )
    assert [sample["pair"] for sample in samples] == [[number, "ä"] for number in range(9)]
    assert [sample["label"] for sample in samples] == [str(number) for number in range(9)]
    only = read(index, how, decode={}, shuffle=False, batch_size=9)
    assert (only[0]["word"] if how != "one by one" else [sample["word"] for sample in only])[4] == "word 4"


@pytest.mark.processes
@pytest.mark.parametrize("transform", [brighter, drawing])
@pytest.mark.parametrize("how", ["2"] if sys.platform == "linux" else ["DataLoader"])
def test_a_transform_gets_and_returns_the_sample_seeded_for_it(index: Path, how: str, transform: Any) -> None:
    wanted = read(index, "alone", transform=transform)
    assert read(index, how, transform=transform) == wanted
    batch = next(iter(typed(index, transform=transform)))
    assert [*batch] == (["image", "words", "meta"] if transform is brighter else ["drawn", "image"])
    assert batch["image"].shape == (4, 3, 32, 32)
    if transform is drawing:
        assert len({float(value) for row in batch["drawn"] for value in row}) == 12


def test_a_transform_that_returns_no_dict_is_refused(index: Path) -> None:
    with pytest.raises(SampleError, match="transform list returned list"):
        next(iter(typed(index, transform=list)))


def test_samples_of_an_empty_batch_have_no_values(index: Path) -> None:
    dataset = typed(index, topology=Topology(rank=3, world_size=4), batch_size=8, shuffle=False)
    *_, last = dataset
    assert last["image"].shape == (0, 3, 32, 32)
    assert last["caption"] == last["meta"] == []
    assert last["sound"]["wave"].shape[0] == last["sound"]["pair"][0].shape[0] == 0


def test_a_stock_dataloader_collects_single_samples(index: Path) -> None:
    decode = {"image": DECODERS["image"], "small": DECODERS["small"], "caption": Text(), "meta": len, "sound": len}
    batches = [*DataLoader(typed(index, batch_size=None, decode=decode), batch_size=4)]
    assert batches[0]["image"].shape == (4, 3, 32, 32)
    assert len(batches[0]["caption"]) == 4
