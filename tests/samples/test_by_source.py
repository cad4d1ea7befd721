"""A decoder or transform for each source of a mixture."""

import pickle
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from torch.utils.data import DataLoader

from mpload import (
    BySource,
    ErrorPolicy,
    Mixture,
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    RawBytes,
    ResizeCenterCrop,
    Text,
)
from mpload.errors import ArgumentError
from tests.support.mixtures import mixed, samples, source


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("sources")
    return [source(folder, name, size, root="files") for name, size in (("a", 20), ("b", 9), ("c", 14))]


def _mixture(sources: list[Path], *weights: float) -> Mixture:
    return Mixture(dict(zip(sources, weights or (1, 1, 1), strict=True)), epoch_samples=40)


def _loud(data: Any) -> Any:
    return np.frombuffer(bytes(data).upper(), np.uint8)


def _quiet(data: Any) -> Any:
    return np.frombuffer(bytes(data), np.uint8)


def _noisy(data: Any, rng: np.random.Generator) -> Any:
    return np.frombuffer(bytes(data) + rng.bytes(4), np.uint8)


def _doubled(array: Any) -> Any:
    return np.concatenate([array, array])


def _same(array: Any) -> Any:
    return array


def _expected(sources: list[Path], make: list[Any]) -> list[tuple[str, int]]:
    found = [samples(mixed(_mixture(sources), decode=each)) for each in make]
    return [found["abc".index(name[0].lower())][place] for place, (name, _) in enumerate(found[0])]


@pytest.mark.processes
@pytest.mark.parametrize("by_column", [False, True])
def test_each_source_goes_through_its_own_decoder_in_every_loader(sources: list[Path], by_column: bool) -> None:
    decode: Any = BySource(dict(zip(sources, (_loud, _quiet, _loud), strict=True)))
    expected = _expected(sources, [_loud, _quiet, _loud])
    assert {name[0] for name, _ in expected} == {"A", "b", "C"}

    def made() -> MPDataset:
        return mixed(_mixture(sources), decode={"image": decode} if by_column else decode)

    assert samples(made()) == expected
    assert samples(DataLoader(made(), batch_size=None, num_workers=1)) == expected
    assert samples(pickle.loads(pickle.dumps(made()))) == expected
    with MPLoader(made(), num_workers=2) as loader:
        assert samples(loader) == expected


@pytest.mark.processes
@pytest.mark.parametrize("by_column", [False, True])
def test_each_source_goes_through_its_own_transform(sources: list[Path], by_column: bool) -> None:
    def of_sample(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": _doubled(sample["image"])}

    transform = BySource(dict(zip(sources, (None, of_sample if by_column else _doubled, None), strict=True)))
    decode: Any = {"image": RawBytes(as_array=True)} if by_column else RawBytes(as_array=True)
    with MPLoader(mixed(_mixture(sources), decode=decode, transform=transform), num_workers=1) as loader:
        found = [bytes(image.numpy()) for batch in loader for image in batch["image"]]
    assert found == [
        bytes(image.numpy())
        for batch in mixed(_mixture(sources), decode=decode, transform=transform)
        for image in batch["image"]
    ]
    assert {(image[:1], len(image)) for image in found} == {(b"a", 10), (b"b", 20), (b"c", 10)}


@pytest.mark.processes
def test_random_numbers_are_those_of_a_decoder_for_all_sources(sources: list[Path]) -> None:
    def all_of(decode: Any) -> list[bytes]:
        with MPLoader(mixed(_mixture(sources), decode=decode), num_workers=2) as loader:
            return [bytes(image.numpy()) for batch in loader for image in batch["image"]]

    one, own = all_of(_noisy), all_of(BySource(dict(zip(sources, (_noisy, _quiet, _noisy), strict=True))))
    assert [image for image in one if not image.startswith(b"b")] == [
        image for image in own if not image.startswith(b"b")
    ]
    assert {len(image) for image in own} == {10, 14}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two indexes of six images each."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in "ab":
        (folder / name).mkdir()
        for number in range(6):
            cv2.imwrite(str(folder / name / f"{number}.jpg"), rng.integers(0, 255, (80, 90, 3), np.uint8))
        lines = [f"{number}.jpg\t{number}" for number in range(6)]
        text = "\n".join(["#mpload 1", f"#root {name}", "#columns image:path label:int", *lines, ""])
        (folder / f"{name}.txt").write_text(text)
    return folder / "a.txt", folder / "b.txt"


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("by_column", [False, True])
def test_crops_of_two_sizes_are_listed(photos: tuple[Path, Path], by_column: bool, num_workers: int) -> None:
    decode: Any = BySource(dict(zip(photos, (RandomResizedCrop(32), ResizeCenterCrop(24)), strict=True)))
    dataset: MPDataset = MPDataset(
        Mixture(dict.fromkeys(photos, 1)), decode={"image": decode} if by_column else decode, batch_size=4
    )
    with MPLoader(dataset, num_workers=num_workers) as loader:
        shapes = [tuple(image.shape) for batch in loader for image in (batch["image"] if by_column else batch[0])]
    assert sorted(shapes) == [(3, 24, 24)] * 6 + [(3, 32, 32)] * 6


@pytest.mark.processes
@pytest.mark.parametrize("by_column", [False, True])
def test_crops_of_one_size_are_stacked(photos: tuple[Path, Path], by_column: bool) -> None:
    one, two = photos
    crops = RandomResizedCrop(32), ResizeCenterCrop(32)

    def images(decode: Any) -> Any:
        dataset: MPDataset = MPDataset(
            Mixture({one: 1, two: 1}, source_column="source"),
            decode={"image": decode} if by_column else decode,
            batch_size=12,
            as_dict=True,
        )
        with MPLoader(dataset, num_workers=1) as loader:
            (batch,) = loader
        assert batch["image"].shape == (12, 3, 32, 32)
        return batch["image"].numpy(), batch["source"].numpy()

    found, numbers = images(BySource(dict(zip((one, two), crops, strict=True))))
    for number, crop in enumerate(crops):
        assert np.array_equal(found[numbers == number], images(crop)[0][numbers == number])


@pytest.mark.processes
@pytest.mark.parametrize("by_column", [False, True])
def test_sources_with_samples_of_different_form_are_refused_by_name(sources: list[Path], by_column: bool) -> None:
    def as_floats(data: Any) -> Any:
        return np.zeros((2, 3), np.float32)

    choice = BySource(dict(zip(sources, (_loud, as_floats, _loud), strict=True)))
    decode: Any = {"image": choice} if by_column else choice
    with pytest.raises(
        ArgumentError, match=rf"the samples of {sources[1]} have the form .*float32.* {sources[0]} have"
    ):
        MPLoader(mixed(_mixture(sources), decode=decode), num_workers=1)


def test_images_and_arrays_do_not_mix(sources: list[Path]) -> None:
    choice = BySource(dict(zip(sources, (RandomResizedCrop(8), _loud, _loud), strict=True)))
    with pytest.raises(ArgumentError, match=f"the samples of {sources[1]} have arrays that are not images"):
        mixed(_mixture(sources), decode=choice)
    with pytest.raises(ArgumentError, match=f"the samples of {sources[1]} have the images none"):
        mixed(_mixture(sources), decode={"image": choice})


@pytest.mark.processes
def test_a_bad_sample_is_blamed_on_the_column_of_its_own_decoder(sources: list[Path], tmp_path: Path) -> None:
    def broken(data: Any) -> Any:
        raise ValueError("no b today")

    report = tmp_path / "report.jsonl"
    policy = ErrorPolicy(action="skip", max_error_fraction=1, report=report)
    choice = BySource(dict(zip(sources, (_loud, broken, _quiet), strict=True)))
    dataset = mixed(_mixture(sources), decode={"image": choice}, on_error=policy)
    with pytest.warns(match="a bad sample"):
        found = samples(dataset)
    assert {name[0] for name, _ in found} == {"A", "c"}
    text = report.read_text()
    assert "b.txt" in text and "column 'image': ValueError: no b today" in text  # noqa: PT018


def test_choices_that_do_not_fit_are_refused(sources: list[Path]) -> None:
    with pytest.raises(ArgumentError, match="BySource must name each source of the mixture"):
        mixed(_mixture(sources), decode=BySource({sources[0]: _loud}))
    with pytest.raises(ArgumentError, match="BySource is for mixtures"):
        MPDataset(sources[0], decode=BySource({sources[0]: _loud}))
    with pytest.raises(ArgumentError, match="Give each column its own"):
        BySource({sources[0]: {"image": _loud}})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="must be a callable object"):
        BySource({sources[0]: Text})
    with pytest.raises(ArgumentError, match="needs a dict"):
        BySource({})
