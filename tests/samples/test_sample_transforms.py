"""Transforms of albumentations, torchvision and PIL get the values of a sample as what they are."""

import pickle
from typing import Any

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import Boxes, ImageDecoder, Keypoints, Mask, PilTransform, RandomResizedCrop
from mpload.errors import ArgumentError
from mpload.plan.sample_rng import SampleRng
from mpload.samples.sample_transforms import adapt_sample_transform
from mpload.samples.targets import Target, target_of
from mpload.samples.transforms import GlobalGenerators, adapt_transform
from tests.support.augmentations import PHOTO, pipeline
from tests.support.sample_transforms import albumented

HEIGHT, WIDTH = 60, 80
TARGETS = {"image": Target.IMAGE, "mask": Target.MASK, "objects": Target.BOXES, "points": Target.KEYPOINTS}


def sample(boxes: Any = ((10, 20, 30, 40), (50, 5, 70, 55)), **others: Any) -> dict[str, Any]:
    """Return a sample whose boxes have the value 200, 201, ... in the image and 1, 2, ... in the mask."""
    image, mask = np.zeros((HEIGHT, WIDTH, 3), np.uint8), np.zeros((HEIGHT, WIDTH), np.int64)
    for number, (left, top, right, bottom) in enumerate(boxes):
        image[top:bottom, left:right] = 200 + number
        mask[top:bottom, left:right] = number + 1
    return {
        "image": image,
        "mask": mask,
        "objects": {
            "boxes": np.array(boxes, np.float32).reshape(-1, 4),
            "labels": np.arange(len(boxes)) + 1,
            "names": [f"box {number}" for number in range(len(boxes))],
        },
        "points": np.array([[x, y, 2] for box in boxes for x, y in (box[:2], box[2:])], np.float32).reshape(-1, 3),
        "text": "kept",
        **others,
    }


def transformed(transform: Any, given: dict[str, Any], *, sample_id: int = 0, targets: Any = TARGETS) -> dict[str, Any]:
    adapted = adapt_sample_transform(transform, targets)
    with GlobalGenerators(seeds=True).lent():
        return adapted(given, SampleRng(seed=1, epoch=2).for_sample(sample_id, stream=1))


def with_parts(*, visibility: float = 2, **others: Any) -> dict[str, Any]:
    """Return a sample whose objects have a mask and two corners each."""
    made = sample(**others)
    objects = made["objects"]
    numbers = objects["labels"][:, np.newaxis, np.newaxis]
    corners = objects["boxes"].reshape(-1, 2, 2)
    objects["masks"] = (made["mask"] == numbers).astype(np.uint8)
    objects["keypoints"] = np.concatenate([corners, np.full((len(corners), 2, 1), visibility, np.float32)], axis=2)
    return made


def parts_agree(made: dict[str, Any]) -> None:
    """Check that the masks and corners of objects show what mask and points of the image show."""
    mask, objects = np.asarray(made["mask"]), made["objects"]
    labels, masks, corners = (np.asarray(objects[name]) for name in ("labels", "masks", "keypoints"))
    assert masks.shape == (len(labels), *mask.shape)
    assert masks.dtype == np.uint8
    assert corners.dtype == np.float32
    np.testing.assert_array_equal(masks, mask == labels[:, np.newaxis, np.newaxis])
    expected = np.asarray(made["points"]).reshape(-1, 2, 3)[labels - 1]
    np.testing.assert_array_equal(corners, expected)


def agrees(made: dict[str, Any]) -> int:
    """Check that image, mask, boxes and points show the same, and return the number of boxes."""
    height, width = made["mask"].shape
    boxes, labels = np.asarray(made["objects"]["boxes"]), np.asarray(made["objects"]["labels"])
    assert len(boxes) == len(labels) == len(made["objects"]["names"])
    for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
        rows, columns = np.nonzero(np.asarray(made["mask"]) == label)
        found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose([left, top, right, bottom], found, atol=1.01)
        corners = np.asarray(made["points"])[2 * label - 2 : 2 * label]
        if (corners[:, 2] > 0).all():
            box = [[left, top], [right, bottom]]
            np.testing.assert_allclose(np.sort(corners[:, :2], axis=0), box, atol=0.01)
    points = np.asarray(made["points"])
    assert ((points[:, :2] >= 0) & (points[:, :2] <= (width, height))).all()
    return len(boxes)


FLIPS = [A.HorizontalFlip(p=1), A.VerticalFlip(p=1), A.Transpose(p=1), A.RandomRotate90(p=1), A.D4(p=1)]


@pytest.mark.parametrize(
    "transform", [*FLIPS, A.Crop(5, 5, 65, 45), A.CenterCrop(30, 50), A.RandomCrop(40, 60)], ids=str
)
def test_albumentations_moves_image_mask_boxes_and_points_alike(transform: Any) -> None:
    for sample_id in range(4):
        made = transformed(transform, sample(), sample_id=sample_id)
        assert agrees(made) == 2
        assert made["mask"].dtype == np.int64
        np.testing.assert_array_equal(made["image"][..., 0] > 0, made["mask"] > 0)
        assert made["text"] == "kept"
        assert made["objects"]["names"] == ["box 0", "box 1"]


@pytest.mark.parametrize("transform", [*FLIPS, A.RandomCrop(40, 60), A.CenterCrop(10, 10), A.Resize(30, 40)], ids=str)
@pytest.mark.parametrize("boxes", [((10, 20, 30, 40), (50, 5, 70, 55)), ()])
def test_albumentations_moves_the_masks_and_points_of_objects(transform: Any, boxes: Any) -> None:
    for sample_id in range(3):
        parts_agree(transformed(transform, with_parts(boxes=boxes), sample_id=sample_id))
    hidden = transformed(transform, with_parts(visibility=0))["objects"]
    assert hidden["keypoints"].shape == (len(hidden["labels"]), 2, 3)
    np.testing.assert_array_equal(hidden["keypoints"][..., 2], 0)


def test_points_of_objects_that_albumentations_drops_become_invisible() -> None:
    parameters = A.KeypointParams(format="xy", remove_invisible=True)
    crop = A.Compose([A.Crop(20, 30, 80, 60)], keypoint_params=parameters)
    objects = transformed(crop, with_parts())["objects"]
    assert objects["keypoints"].tolist() == [[[0, 0, 0], [10, 10, 2]], [[0, 0, 0], [50, 25, 2]]]


@pytest.mark.parametrize("fill", [0, 1, 255, -100])
@pytest.mark.parametrize("holes", [False, True])
def test_masks_of_objects_are_0_where_albumentations_fills_masks(fill: int, holes: bool) -> None:
    if holes:
        transform = A.CoarseDropout(num_holes_range=(9, 9), fill=7, fill_mask=fill, p=1)
    else:
        transform = A.PadIfNeeded(100, 100, border_mode=cv2.BORDER_CONSTANT, fill=7, fill_mask=fill)
    given_sample = with_parts()
    given_sample["image"][given_sample["image"] == 0] = 1  # the fill is 7
    made = transformed(transform, given_sample)
    is_filled = made["image"][..., 0] == 7
    assert is_filled.any()
    np.testing.assert_array_equal(made["mask"][is_filled], fill)
    assert made["objects"]["masks"].dtype == np.uint8
    for number, mask in enumerate(made["objects"]["masks"]):
        np.testing.assert_array_equal(mask, made["image"][..., 0] == 200 + number)


@pytest.mark.parametrize(
    ("dtype", "fill", "message"),
    [("uint8", -100, "-100, but masks of uint8 hold 0 to 255"), ("bool", 255, "255, but masks of bool hold 0 to 1")],
)
def test_a_fill_value_that_does_not_fit_a_mask_is_an_error(dtype: str, fill: int, message: str) -> None:
    transform = A.PadIfNeeded(100, 100, border_mode=cv2.BORDER_CONSTANT, fill_mask=fill)
    with pytest.raises(ArgumentError, match=f"the transform gives the mask 'mask' the value {message}"):
        transformed(transform, sample(mask=np.zeros((HEIGHT, WIDTH), dtype)))


boxes_inside = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(2, 19), st.integers(2, 19)).map(
        lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
    ),
    max_size=4,
)


@settings(max_examples=30)
@given(boxes_inside, st.integers(0, 50))
def test_what_belongs_to_a_box_stays_or_goes_with_it(boxes: Any, sample_id: int) -> None:
    given_sample = sample(boxes)
    made = transformed(A.RandomCrop(30, 30), given_sample, sample_id=sample_id)
    labels = made["objects"]["labels"]
    assert made["objects"]["names"] == [f"box {label - 1}" for label in labels]
    assert made["objects"]["boxes"].dtype == np.float32
    assert made["objects"]["boxes"].shape == (len(labels), 4)
    sizes = made["objects"]["boxes"][:, 2:] - made["objects"]["boxes"][:, :2]
    assert (
        sizes <= (given_sample["objects"]["boxes"][:, 2:] - given_sample["objects"]["boxes"][:, :2])[labels - 1] + 1e-4
    ).all()
    assert len(made["points"]) == 2 * len(boxes)
    assert (made["points"][made["points"][:, 2] == 0] == 0).all()


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "int32", "uint16", "float32"])
def test_ids_of_a_mask_are_never_mixed(dtype: str) -> None:
    ids = np.array([0, 1, 7, 200, 255, 30_000, 65_535, 16_000_000, 1 << 30]).astype(dtype)
    mask = np.random.default_rng(0).choice(ids, (HEIGHT, WIDTH))
    moving = A.Compose([A.Affine(rotate=30, p=1), A.ElasticTransform(p=1), A.Perspective(p=1), A.Resize(45, 45)])
    made = transformed(moving, sample(mask=mask))["mask"]
    assert made.dtype == mask.dtype
    assert made.shape == (45, 45)
    assert {*np.unique(made)} <= {*np.unique(mask), *np.zeros(1, dtype)}


def test_values_of_dropped_pixels_outside_of_the_ids_are_kept() -> None:
    dropped = transformed(A.PixelDropout(dropout_prob=0.5, mask_drop_value=65_535, p=1), sample())["mask"]
    assert (dropped == 65_535).any()


def test_fill_values_that_are_no_numbers_are_left_to_their_transform() -> None:
    class Own(A.HorizontalFlip):  # type: ignore[misc]
        fill_mask = "reflect"
        transforms = 5

    np.testing.assert_array_equal(transformed(Own(p=1), sample())["mask"], sample()["mask"][:, ::-1])


@pytest.mark.parametrize("fill", [-1, 65_535, -16_000_000, 1 << 30])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_fill_value_outside_of_the_ids_is_kept(fill: int, is_nested: bool) -> None:
    padding = A.PadIfNeeded(100, 100, fill_mask=fill)
    padded = transformed(A.Compose([A.OneOf([padding], p=1)]) if is_nested else padding, sample())["mask"]
    assert (padded[0] == fill).all()


def test_points_without_visibility_and_boxes_without_values_are_moved_too() -> None:
    given_sample = sample(
        points=np.array([[10.0, 20.0], [79.0, 1.0]]), objects=np.array([[10, 20, 30, 40]], np.float32)
    )
    made = transformed(A.HorizontalFlip(p=1), given_sample)
    assert made["points"].tolist() == [[70, 20], [1, 1]]
    assert made["objects"].tolist() == [[50, 20, 70, 40]]


def test_further_columns_are_additional_targets() -> None:
    names = "image", "photo", "mask", "edges", "objects", "people", "points", "joints"
    targets = dict(zip(names, sorted([*TARGETS.values()] * 2, key=[*Target].index), strict=True))
    given_sample = {**sample(), "depth": np.arange(HEIGHT * WIDTH, dtype=np.float32).reshape(HEIGHT, WIDTH)}
    for name, other in zip(names[1::2], names[::2], strict=True):
        given_sample[name] = given_sample[other]
    transform = A.Compose([A.HorizontalFlip(p=1), A.RandomCrop(40, 60)], additional_targets={"depth": "mask"})
    made = transformed(transform, given_sample, targets=targets)
    for name, other in zip(names[1::2], names[::2], strict=True):
        np.testing.assert_equal(made[name], made[other])
    assert made["depth"].shape == (40, 60)
    assert (np.diff(made["depth"]) == -1).all()
    # The first image need not be the one called so.
    assert transformed(transform, {**sample(), "photo": PHOTO[:40, :60]}, targets={"photo": Target.IMAGE})


def test_the_users_parameters_for_boxes_and_points_hold() -> None:
    params = A.BboxParams(format="pascal_voc", label_fields=["labels", "names"], min_area=500)
    points = A.KeypointParams(format="xy", remove_invisible=True)
    made = transformed(A.Compose([A.Crop(5, 5, 45, 60)], bbox_params=params, keypoint_params=points), sample())
    assert made["objects"]["names"] == []  # 20 x 20 pixels
    assert made["points"].tolist() == [[5, 15, 2], [25, 35, 2]]
    with pytest.raises(ArgumentError, match=r"bboxes of format 'coco', .* write BboxParams\(format='pascal_voc'\)"):
        transformed(A.Compose([A.NoOp()], bbox_params=A.BboxParams(format="coco")), sample())
    wrong = A.BboxParams(format="pascal_voc", label_fields=["class_labels"])
    with pytest.raises(ArgumentError, match=r"=\['class_labels'\], but what belongs to boxes is \['labels', "):
        transformed(A.Compose([A.NoOp()], bbox_params=wrong), sample())


def test_slivers_that_rounding_leaves_of_boxes_are_dropped() -> None:
    boxes = np.array([[10, 20, 30.000006, 40], [50, 5, 70, 55]], np.float32)
    made = transformed(A.Crop(30, 0, 80, 60), sample(objects={"boxes": boxes, "labels": np.array([1, 2])}))
    assert made["objects"]["labels"].tolist() == [2]


def test_boxes_beyond_the_image_are_clipped() -> None:
    given_sample = sample(objects={"boxes": np.array([[-5, 10, 90, 30], [90, 10, 95, 20]], np.float32)})
    assert transformed(A.NoOp(), given_sample)["objects"]["boxes"].tolist() == [[0, 10, 80, 30]]


def test_an_image_gets_the_pixels_that_it_gets_alone() -> None:
    """Also where the pipeline is not a `Compose`, and where it has parameters for boxes."""
    for transform in (
        pipeline(),
        albumented(bbox_params=A.BboxParams("pascal_voc")),
        A.OneOf([A.HorizontalFlip(p=0.5)]),
    ):
        alone = adapt_transform(transform)
        adapted = adapt_sample_transform(transform, TARGETS)
        image = cv2.resize(PHOTO, (WIDTH, HEIGHT))
        rng = SampleRng(seed=1, epoch=2)
        for sample_id in range(6):
            expected = alone(image, rng.for_sample(sample_id, stream=1))
            made = adapted(sample(image=image), rng.for_sample(sample_id, stream=1))
            np.testing.assert_array_equal(made["image"], expected)


def test_the_users_transform_is_not_changed() -> None:
    transform = albumented(bbox_params=A.BboxParams("pascal_voc"))
    before = transform.to_dict()
    transformed(transform, sample())
    assert transform.to_dict() == before
    assert transform.main_compose
    assert not transform.additional_targets
    pickle.dumps(transform)


def test_tensors_at_the_end_of_a_pipeline_are_fine() -> None:
    made = transformed(A.Compose([A.CenterCrop(40, 40), A.Normalize(), A.ToTensorV2()]), sample())
    assert tuple(made["image"].shape) == (3, 40, 40)
    assert made["mask"].shape == (40, 40)
    assert made["points"].shape == (4, 3)


def test_torchvision_moves_image_mask_boxes_and_points_alike() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    for transform in (v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.CenterCrop((50, 70)), v2.Pad(5)):
        made = transformed(transform, sample())
        assert agrees(made) == 2
        assert {type(made[key]).__name__ for key in ("image", "mask", "points")} == {"Tensor"}
        assert type(made["objects"]["boxes"]).__name__ == "Tensor"
        np.testing.assert_array_equal(made["image"][0] > 0, made["mask"] > 0)
        assert (made["text"], made["mask"].dtype.itemsize) == ("kept", 8)
    crop = v2.Compose([v2.RandomCrop((30, 30)), v2.ToDtype(v2.functional.to_image(PHOTO).float().dtype, scale=True)])
    drawn = [
        transformed(crop, sample(image=PHOTO[:, :, :]), sample_id=n % 3, targets={"image": Target.IMAGE})
        for n in range(6)
    ]
    digests = [made["image"].numpy().tobytes() for made in drawn]
    assert digests[:3] == digests[3:]
    assert len({*digests}) == 3


def test_a_sequence_of_torchvision_moves_a_sample_too() -> None:
    torch, v2 = (pytest.importorskip(name) for name in ("torch", "torchvision.transforms.v2"))
    first = pytest.importorskip("torchvision.transforms")
    made = transformed(torch.nn.Sequential(v2.RandomHorizontalFlip(1.0), v2.CenterCrop((50, 70))), with_parts())
    assert agrees(made) == 2
    parts_agree(made)
    assert np.asarray(made["mask"])[25, 10] == 2
    with pytest.raises(ArgumentError, match="RandomHorizontalFlip of torchvision transforms single images"):
        transformed(torch.nn.Sequential(first.RandomHorizontalFlip(1.0)), sample())


def test_torchvision_drops_a_box_with_what_belongs_to_it() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    crop, given_sample = v2.CenterCrop((20, 20)), sample(((0, 0, 10, 10), (35, 25, 45, 35)))
    del given_sample["objects"]["names"]
    made = transformed(v2.Compose([crop, v2.SanitizeBoundingBoxes(labels_getter=labels_of)]), given_sample)
    assert made["objects"]["labels"].tolist() == [2]
    assert len(made["objects"]["boxes"]) == 1
    with pytest.raises(
        ArgumentError, match=r"dropped boxes of sample\['objects'\], but not their 'labels'. Name them: "
    ):
        transformed(v2.Compose([crop, v2.SanitizeBoundingBoxes(labels_getter=None)]), given_sample)


@pytest.mark.parametrize("boxes", [((10, 20, 30, 40), (50, 5, 70, 55)), ()])
def test_torchvision_moves_the_masks_and_points_of_objects(boxes: Any) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    for transform in (v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.CenterCrop((50, 70)), v2.Pad(5)):
        parts_agree(transformed(transform, with_parts(boxes=boxes)))


def test_torchvision_cannot_drop_boxes_that_have_points() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    small = v2.Compose([v2.CenterCrop((20, 20)), v2.SanitizeBoundingBoxes(labels_getter=labels_of)])
    given_sample = with_parts(boxes=((0, 0, 10, 10), (35, 25, 45, 35)))
    del given_sample["objects"]["names"]
    with pytest.raises(
        ArgumentError, match=r"sample\['objects'\], which have keypoints. torchvision cannot drop those"
    ):
        transformed(small, given_sample)


def labels_of(sample: dict[str, Any]) -> Any:
    return sample["objects"]["labels"]


def test_transforms_of_single_pil_images_are_no_transforms_of_samples() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    with pytest.raises(ArgumentError, match="RandomHorizontalFlip of torchvision transforms single images"):
        adapt_sample_transform(transforms.RandomHorizontalFlip(), TARGETS)
    with pytest.raises(ArgumentError, match="CenterCrop of torchvision transforms images, but none of decode"):
        adapt_sample_transform(transforms.v2.CenterCrop(8), {"mask": Target.MASK})


def test_transforms_of_images_need_an_image() -> None:
    with pytest.raises(ArgumentError, match="HorizontalFlip of albumentations transforms images, but none of decode's"):
        adapt_sample_transform(A.HorizontalFlip(), {"mask": Target.MASK})


def test_decoders_say_what_their_values_are() -> None:
    decoders: list[Any] = [ImageDecoder(), RandomResizedCrop(8), PilTransform(abs), Mask(), Boxes(), Keypoints(), bytes]
    expected = [*[Target.IMAGE] * 3, Target.MASK, Target.BOXES, Target.KEYPOINTS, None]
    assert [*map(target_of, decoders)] == expected
