"""Batches of views are the same in every process, after kills and after a resume."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    ArgumentError,
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    SampleError,
    Topology,
    Views,
)
from tests.support.typed import WAYS, comparable
from tests.support.view_decoders import killing, noisy

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
LARGE, SMALL = RandomResizedCrop(48, scale=(0.3, 1.0)), RandomResizedCrop((20, 24), scale=(0.05, 0.3))
DECODERS: dict[str, Any] = {
    "crops": Views(of="image", glob=(2, LARGE), local=(8, SMALL)),
    "noisy": Views(of="image", one=(1, LARGE), many=(3, SMALL, noisy)),
}


def dataset(index: Path, **options: Any) -> MPDataset:
    return MPDataset(
        index,
        **{"decode": DECODERS, "batch_size": 4, "shuffle": True, "seed": 3, "topology": Topology(), **options},
    )


def read(index: Path, how: str, **options: Any) -> list[Any]:
    if how == "one by one":
        return [comparable(sample) for sample in dataset(index, **{**options, "batch_size": None})]
    views = dataset(index, **options)
    if how == "alone":
        return [comparable(batch) for batch in views]
    if how == "DataLoader":
        return [comparable(batch) for batch in DataLoader(views, batch_size=None, num_workers=2)]
    with MPLoader(views, num_workers=int(how)) as loader:
        return [comparable(batch) for batch in loader]


@pytest.fixture(scope="module")
def index(photo_tree: Path) -> Path:
    photos = sorted(path.relative_to(photo_tree.parent) for path in photo_tree.rglob("*.JPEG"))
    lines = "".join(f"{photo}\t{number}\n" for number, photo in enumerate(photos))
    path = photo_tree.with_name("views.txt")
    path.write_text(f"#mpload 1\n#columns image:path number:int\n{lines}")
    return path


@pytest.fixture(scope="module")
def expected(index: Path) -> list[Any]:
    return read(index, "alone")


def test_batches_hold_the_views_of_each_group(index: Path) -> None:
    batch = next(iter(dataset(index)))
    assert [*batch] == ["number", "crops", "noisy"]
    assert [*batch["crops"]] == ["glob", "local"]
    assert batch["crops"]["glob"].shape == (4, 2, 3, 48, 48)
    assert batch["crops"]["local"].shape == (4, 8, 3, 20, 24)
    assert batch["crops"]["glob"].flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert batch["noisy"]["many"].dtype == torch.float32
    sample = next(iter(dataset(index, batch_size=None)))
    assert torch.equal(sample["crops"]["local"], batch["crops"]["local"][0])


def test_the_first_view_shows_what_its_decoder_alone_shows(index: Path) -> None:
    alone = next(iter(dataset(index, decode=LARGE)))
    batch = next(iter(dataset(index)))
    assert torch.equal(batch["crops"]["glob"][:, 0], alone[0])
    second = dataset(index)
    second.set_epoch(1)
    assert not torch.equal(next(iter(second))["crops"]["local"], batch["crops"]["local"])


@pytest.mark.processes
@pytest.mark.parametrize("how", [way for way in WAYS if way not in {"alone", "one by one"}])
def test_views_are_the_same_bit_for_bit_however_batches_are_made(index: Path, expected: list[Any], how: str) -> None:
    assert len(expected) == 6
    assert read(index, how) == expected


@pytest.mark.processes
@needs_linux
def test_killed_workers_lose_and_change_no_view(
    index: Path, expected: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLOAD_TEST_FOLDER", str(tmp_path))
    with MPLoader(dataset(index, decode={**DECODERS, "number": killing}), num_workers=2) as loader:
        found = [comparable(batch) for batch in loader]
        assert loader.stats().num_deaths == 2
    for batch, wanted in zip(found, expected, strict=True):
        assert (batch["crops"], batch["noisy"]) == (wanted["crops"], wanted["noisy"])


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2] if sys.platform == "linux" else [0])
def test_an_epoch_that_is_resumed_goes_on_with_the_same_views(
    index: Path, expected: list[Any], num_workers: int
) -> None:
    with MPLoader(dataset(index), num_workers=num_workers) as loader:
        batches = iter(loader)
        before = [comparable(next(batches)) for _ in range(2)]
        state = loader.state_dict()
    with MPLoader(dataset(index), num_workers=1 - bool(num_workers)) as loader:
        loader.load_state_dict(state)
        assert before + [comparable(batch) for batch in loader] == expected


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2] if sys.platform == "linux" else [0])
def test_an_image_that_cannot_be_decoded_meets_the_error_policy(tmp_path: Path, num_workers: int) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    (tmp_path / "bad.txt").write_text("#mpload 1\n#columns photo:path\nbad.jpg\n")
    views = {"crops": Views(of="photo", glob=(2, LARGE))}
    message = r"bad.txt:3: sample 0 \(bad.jpg\): column 'crops': not an image"
    with (
        pytest.raises(SampleError, match=message),
        MPLoader(dataset(tmp_path / "bad.txt", decode=views, batch_size=1), num_workers=num_workers) as loader,
    ):
        list(loader)


def test_views_alone_are_refused_with_the_dict_to_write(index: Path) -> None:
    with pytest.raises(ArgumentError, match=r"decode=\{'crops': Views\(of='image', \.\.\.\)\}"):
        dataset(index, decode=Views(glob=(2, LARGE)))
