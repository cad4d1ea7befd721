"""Masks, boxes and points are where the crop shows them, the same in every process, and bad ones are bad samples."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import ErrorPolicy, ImageDecoder, MPLoader
from mpload.errors import MploadWarning, SampleError
from tests.support.annotated import BROKEN, CROPS, IGNORE, NUM_ANNOTATED, annotated_decode, annotated_index, ids_of
from tests.support.typed import WAYS, read, read_in_two_runs, typed
from tests.support.typed_decoders import killing

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return annotated_index(tmp_path_factory.mktemp("annotated"))


def samples(index: Path, crop: str) -> list[dict[str, Any]]:
    return [*typed(index, decode=annotated_decode(crop), batch_size=None)]


@pytest.mark.parametrize("crop", CROPS)
def test_masks_hold_values_of_their_files_from_the_places_that_are_shown(index: Path, crop: str) -> None:
    for sample in samples(index, crop):
        mask, places = sample["mask"].numpy(), sample["places"].numpy()
        assert mask.shape == places.shape == tuple(sample["image"].shape[1:])
        assert {*mask.ravel().tolist()} <= {*ids_of(sample["label"]), IGNORE}
        np.testing.assert_array_equal(mask == IGNORE, places == -1)
        rows, columns = np.nonzero(places >= 0)
        values = places[rows, columns]
        centers = np.stack([values % 256, values // 256], axis=1) + 0.5
        found, pixel = in_result(sample["shown"], centers), pixel_of_result(sample["shown"])
        assert (np.abs(found - np.stack([columns, rows], axis=1) - 0.5) <= pixel / 2 + 1e-9).all()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("how", ["alone", "DataLoader", "2"] if sys.platform == "linux" else ["alone", "DataLoader"])
def test_masks_of_images_that_are_not_cropped_have_their_sizes(index: Path, how: str) -> None:
    decode = annotated_decode("RandomCrop") | {"image": ImageDecoder()}
    sizes = set()
    for batch in read(index, how, decode=decode):
        for image, mask, places in zip(batch["image"], batch["mask"], batch["places"], strict=True):
            assert mask[1] == places[1] == image[1][1:]
            sizes.add(tuple(mask[1]))
    assert len(sizes) == 5


@pytest.mark.parametrize("crop", CROPS)
def test_boxes_and_points_are_where_float64_arithmetic_says(index: Path, crop: str) -> None:
    num_boxes = 0
    for sample in samples(index, crop):
        number = sample["label"]
        listed = json.loads((index.parent / f"{number}.json").read_text())
        (low, high), boxes, visible = shown_area(sample["shown"]), [], []
        for place, item in enumerate(listed):
            left, top, width, height = item["bbox"]
            corners = in_result(sample["shown"], np.array([(left, top), (left + width, top + height)]))
            box = np.sort(corners, axis=0).clip(low, high)
            if (box[1] > box[0]).all():
                boxes.append(box.ravel())
                visible.append(place)
            point, is_seen = sample["points"][place].numpy(), (corners[0] >= low).all() and (corners[0] <= high).all()
            np.testing.assert_allclose(point, [*corners[0], 2] if is_seen else [0, 0, 0], atol=1e-3)
        for key in ("boxes", "yolo"):
            assert sample[key]["labels"].tolist() == visible
            np.testing.assert_allclose(sample[key]["boxes"], np.reshape(boxes, (-1, 4)), atol=1e-3)
        num_boxes += len(boxes)
    assert num_boxes > 10


def in_result(shown: dict[str, Any], xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where points of the image lie in the result, [n, 2]."""
    (top, left, height, width), full = shown["box"].tolist(), shown["full"].tolist()
    window = shown["window"].tolist()
    x = (xy[:, 0] - left) * (full[1] / width) - window[1]
    y = (xy[:, 1] - top) * (full[0] / height) - window[0]
    is_mirrored, is_upside_down = shown["mirrored"].tolist()
    return np.stack([window[3] - x if is_mirrored else x, window[2] - y if is_upside_down else y], axis=1)


def pixel_of_result(shown: dict[str, Any]) -> NDArray[np.float64]:
    """Return width and height of one pixel of the image in the result."""
    found: NDArray[np.float64] = (shown["full"].double() / shown["box"][2:]).numpy()[::-1]
    return found


def shown_area(shown: dict[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    top, left, height, width = shown["box"].tolist()
    corners = np.sort(in_result(shown, np.array([(left, top), (left + width, top + height)])), axis=0)
    low, high = corners.clip(0, shown["window"].numpy()[[3, 2]])
    return low, high


@pytest.mark.processes
@pytest.mark.parametrize("how", [way for way in WAYS if way not in {"alone", "one by one"}])
def test_batches_are_the_same_bit_for_bit_however_they_are_made(index: Path, how: str) -> None:
    for crop in CROPS if how == "0" else [*CROPS][:1]:
        assert read(index, how, decode=annotated_decode(crop)) == read(index, "alone", decode=annotated_decode(crop))


@pytest.mark.processes
@needs_linux
def test_killed_workers_and_a_resumed_epoch_lose_and_change_nothing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = annotated_decode("RandomResizedCrop") | {"word": killing}
    monkeypatch.setenv("MPLOAD_TEST_FOLDER", str(tmp_path))
    found = read_in_two_runs(index, num_before=3, num_workers=2, decode=decode)
    assert len([*tmp_path.glob("killed *")]) == 2
    assert found == read(index, "alone", decode=decode)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("column", "damage", "num_workers"),
    [
        (column, way, num_workers)
        for column, ways in BROKEN.items()
        for number, way in enumerate(ways)
        for num_workers in ([0, 2] if (column, number) == ("mask", 0) and sys.platform == "linux" else [0])
    ],
)
def test_bad_annotations_are_bad_samples_of_their_column_and_line(
    tmp_path: Path, column: str, damage: Callable[[Path], object], num_workers: int
) -> None:
    index = annotated_index(tmp_path)
    damage(tmp_path)
    decode = annotated_decode("RandomResizedCrop")
    where = rf"annotated.txt:8: sample 5 \(5.jpg, 5.mask.png, .*\): column '{column}': "
    with (
        MPLoader(typed(index, decode=decode), num_workers=num_workers) as loader,
        pytest.raises(SampleError, match=where),
    ):
        list(loader)
    for action in ("skip", "substitute"):
        policy = ErrorPolicy(action=action, report=tmp_path / f"{action}.jsonl")
        dataset = typed(index, decode=decode, on_error=policy)
        with MPLoader(dataset, num_workers=num_workers) as loader, pytest.warns(MploadWarning, match=action):
            labels = [label for batch in loader for label in batch["label"].tolist()]
        assert 5 not in labels
        assert len(labels) == NUM_ANNOTATED - (action == "skip")
        (line,) = (tmp_path / f"{action}.jsonl").read_text().splitlines()
        assert json.loads(line)["cause"].startswith(f"column '{column}': ")
