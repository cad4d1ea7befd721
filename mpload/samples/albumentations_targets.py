"""Calls albumentations on whole samples: images, masks, boxes and keypoints are passed as its targets."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.samples.object_parts import moving_parts
from mpload.samples.seeded_albumentations import SeededAlbumentations
from mpload.samples.targets import Target

__all__ = ["AlbumentationsOnSamples"]

_NAMES = {Target.IMAGE: "image", Target.MASK: "mask", Target.BOXES: "bboxes", Target.KEYPOINTS: "keypoints"}
_PART_NAMES = {Target.MASK: "masks", Target.KEYPOINTS: "keypoints"}
_MIN_SIDE = 0.01  # pixels
_PIXEL_CENTRE = 0.5
"""Added to albumentations' keypoints, which count from the centre of the first pixel, to count from its corner."""


class AlbumentationsOnSamples:
    """Calls an albumentations transform or `Compose` on samples.

    The first image of a sample is the target `image`, unless another key has that name; so are the first mask (`mask`),
    boxes (`bboxes`) and keypoints (`keypoints`). Further ones, and the keys that the transform itself has as additional
    targets, are additional targets, and so are the masks and keypoints of a sample's objects. All other values stay as
    they are.

    If the transform has no `bbox_params`, boxes are clipped to the image, and those that leave it are dropped. If it
    has no `keypoint_params`, all keypoints stay, and those that leave the image get the visibility 0.

    Process:
        Cannot be pickled. It is not thread-safe.

    Raises:
        ArgumentError: No key of a sample is an image, the boxes or keypoints of the transform's parameters have another
            format than the samples', or it is older than albumentations 2.
    """

    seeds_generators = False
    """Whether it seeds the global generators: never, transforms draw from the sample's generator."""

    def __init__(self, transform: Any, targets: Mapping[str, Target]) -> None:
        names: dict[str, str] = {}
        for target, name in _NAMES.items():
            keys = [key for key, each in targets.items() if each is target]
            if keys:
                first = name if name in keys else keys[0]
                names.update({key: name if key == first else key for key in keys})
        if "image" not in names.values():
            raise ArgumentError(
                f"{type(transform).__qualname__} of albumentations transforms images, but none of decode's columns is "
                "one. Decode one with ImageDecoder(), or pass a callable that gets the sample as a dict"
            )
        own = dict(getattr(transform, "additional_targets", None) or {})
        self._names = {**names, **{key: key for key in own if key not in names}}
        """The name of the target for each key of a sample."""
        self._image_key = next(key for key, name in names.items() if name == "image")
        self._targets = targets
        further = {key: _NAMES[targets[key]] for key, name in names.items() if name not in _NAMES.values()}
        processors = getattr(transform, "processors", {})
        module = import_module("albumentations")
        boxes = _params(processors, "bboxes", "pascal_voc") or module.BboxParams(
            format="pascal_voc", clip=True, filter_invalid_bboxes=True
        )
        points = _params(processors, "keypoints", "xy") or module.KeypointParams(format="xy", remove_invisible=False)
        self._drops_points = points.remove_invisible
        self._label_fields = tuple(boxes.label_fields or ())

        def call_with(parts: Mapping[str, str]) -> SeededAlbumentations:
            has_points = Target.KEYPOINTS in targets.values() or "keypoints" in parts.values()
            return SeededAlbumentations(
                module.Compose(
                    # It becomes a part of another `Compose`, which changes it, and the user may use it elsewhere.
                    [copy.deepcopy(transform)],
                    bbox_params=boxes if Target.BOXES in targets.values() else None,
                    keypoint_params=points if has_points else None,
                    additional_targets={**own, **further, **parts},
                    is_check_shapes=getattr(transform, "is_check_shapes", True),
                )
            )

        self._fills = list(_fills_of(transform))
        """The values with which the transform fills masks."""
        self._call_with = call_with
        self._parts: dict[str, str] = {}
        """The target of each array that moves with the boxes. Samples tell which there are."""
        self._call = call_with({})

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the transformed sample."""
        data: dict[str, Any] = {}
        parts: dict[str, dict[str, Target]] = {}
        for key, name in self._names.items():
            if key in sample:
                data[name] = self._given(sample[key], self._targets.get(key))
                if self._targets.get(key) is Target.BOXES:
                    parts[key] = moving_parts(sample[key], sample[self._image_key].shape[:2])
                    data.update(self._labels(sample[key]) if self._label_fields else {})
                    data.update(self._parts_given(key, sample[key], parts[key]))
        # Forced, since otherwise the outer `Compose` draws a number to decide whether to do anything.
        made = self._call(rng, force_apply=True, **data)
        moved = {key: self._parts_taken(key, sample[key], parts[key], made) for key in parts}
        changed = {
            key: self._taken(key, moved.get(key, sample[key]), made[name], made["image"])
            for key, name in self._names.items()
            if key in sample
        }
        return {**sample, **changed}

    def _parts_given(self, key: str, objects: Any, parts: Mapping[str, Target]) -> dict[str, Any]:
        """Return what belongs to boxes and moves as targets. Masks of no object are none."""
        names = {_part_name(key, part): _PART_NAMES[target] for part, target in parts.items()}
        if not names.keys() <= self._parts.keys():
            self._parts.update(names)
            self._call = self._call_with(self._parts)
        given = {}
        for part, target in parts.items():
            value = objects[part]
            if target is Target.KEYPOINTS:
                given[_part_name(key, part)] = self._given(value.reshape(-1, value.shape[2]), target)
            elif len(value):
                # A further mask, all 0, shows which pixels the transform fills.
                masks = np.zeros((len(value) + 1, *value.shape[1:]), _mask_dtype(value, self._fills))
                masks[:-1] = value
                given[_part_name(key, part)] = masks
        return given

    def _parts_taken(self, key: str, objects: Any, parts: Mapping[str, Target], made: Mapping[str, Any]) -> Any:
        """Return objects with what belongs to them moved. None is dropped. Masks are 0 where the transform fills."""
        moved = {}
        for part, target in parts.items():
            value, result = objects[part], made.get(_part_name(key, part))
            if target is Target.MASK:
                if result is None:
                    moved[part] = np.empty((0, *_size_of(made["image"])), value.dtype)
                else:
                    found = np.asarray(result)
                    shown = np.where(found[-1], 0, found[:-1])
                    moved[part] = _mask_taken(_part_name(key, part), shown, value.dtype)
            else:
                points = value.reshape(-1, value.shape[2])
                found = self._points_taken(points, np.asarray(result), made["image"], drops=False)
                if self._drops_points:
                    found[np.setdiff1d(_known(points), _numbers(result))] = 0
                moved[part] = found.reshape(value.shape)
        return {**objects, **moved} if moved else objects

    def _given(self, value: Any, target: Target | None) -> Any:
        """Return a value of a sample as the target of a transform."""
        match target:
            case Target.MASK:
                return value.astype(_mask_dtype(value, self._fills), copy=False)
            case Target.BOXES:
                boxes = value["boxes"] if isinstance(value, Mapping) else value
                return _numbered(boxes[:, :4], np.arange(len(boxes)))
            case Target.KEYPOINTS:
                known = _known(value)
                points = value[known, :2] - _PIXEL_CENTRE
                return _numbered(np.maximum(points, 0) if self._drops_points else points, known)
            case _:
                return value

    def _labels(self, value: Any) -> dict[str, Any]:
        """Return the values of the boxes that the transform's `label_fields` name."""
        if not isinstance(value, Mapping) or not value.keys() >= {*self._label_fields}:
            found = [key for key in value if key != "boxes"] if isinstance(value, Mapping) else []
            raise ArgumentError(
                f"bbox_params has label_fields={list(self._label_fields)}, but what belongs to boxes is {found}. Leave "
                "label_fields out: all values of a box are kept or dropped with it"
            )
        return {name: value[name] for name in self._label_fields}

    def _taken(self, key: str, value: Any, result: Any, image: Any) -> Any:
        """Return the result of a transform as the value of a sample's key, in place of `value`."""
        match self._targets.get(key):
            case Target.MASK:
                return _mask_taken(key, np.asarray(result), value.dtype)
            case Target.BOXES:
                return _boxes_taken(value, np.asarray(result, np.float32))
            case Target.KEYPOINTS:
                return self._points_taken(value, np.asarray(result), image, drops=self._drops_points)
        return np.ascontiguousarray(result) if isinstance(result, np.ndarray) else result

    def _points_taken(self, value: NDArray[Any], result: NDArray[Any], image: Any, *, drops: bool) -> NDArray[Any]:
        numbers = _numbers(result)
        xy = result[:, :2] + _PIXEL_CENTRE if result.size else np.empty((0, 2))
        if drops:
            points = value[numbers]
            points[:, :2] = xy
            return points
        points = value.copy()
        points[numbers, :2] = xy
        if points.shape[1] > 2:
            height, width = _size_of(image)
            is_outside = ((points[:, :2] < 0) | (points[:, :2] > (width, height))).any(axis=1)
            points[is_outside, :3] = 0
        return points


def _params(processors: Mapping[str, Any], name: str, form: str) -> Any:
    """Return the parameters of a transform for boxes or keypoints; None if it has none."""
    if name not in processors:
        return None
    params = copy.deepcopy(processors[name].params)
    if params.format != form:
        raise ArgumentError(
            f"the transform has {name} of format {params.format!r}, but those of a sample are {form!r}: write "
            f"{type(params).__name__}(format={form!r})"
        )
    return params


def _part_name(key: str, part: str) -> str:
    """Return the name of the target for something that belongs to the boxes of a sample's key."""
    return f"{key}.{part}"


def _size_of(image: Any) -> tuple[int, int]:
    """Return height and width of a transformed image. Tensors of `ToTensorV2` are [C, H, W]."""
    height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.shape[-2:]
    return height, width


def _fills_of(transform: Any) -> Iterator[float]:
    """Yield the values with which a transform, and those that it consists of, fill masks."""
    for name in ("fill_mask", "mask_drop_value"):
        try:
            yield from np.ravel(np.asarray(getattr(transform, name, ()), np.float64)).tolist()
        except (TypeError, ValueError):  # None, or a word of the user's own transform
            continue
    inner = getattr(transform, "transforms", ())
    for each in inner if isinstance(inner, Sequence) else ():
        yield from _fills_of(each)


def _mask_dtype(mask: NDArray[Any], fills: Sequence[float]) -> Any:
    """Return a dtype that holds a mask's values and fill values, and that OpenCV can move."""
    if mask.dtype.kind not in "iub":
        return mask.dtype
    values = [*fills, *((mask.min(), mask.max()) if mask.size else (0, 0))]
    low, high = min(values), max(values)
    for dtype, limit in (np.int16, 1 << 15), (np.float32, 1 << 24):
        if -limit <= low and high < limit:
            return dtype
    return np.float64


def _mask_taken(key: str, result: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a transformed mask in the dtype that it had.

    Raises:
        ArgumentError: The dtype cannot hold one of its values.
    """
    if dtype.kind in "iub" and result.size:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        wrong = next((end for end in (result.min(), result.max()) if not low <= end <= high), None)
        if wrong is not None:
            raise ArgumentError(
                f"the transform gives the mask {key!r} the value {wrong}, but masks of {dtype} hold {low} to {high}. "
                "Decode it with a larger dtype, such as Mask(dtype='int64'), or pass another fill_mask"
            )
    return np.ascontiguousarray(result, dtype)


def _known(points: NDArray[Any]) -> NDArray[np.intp]:
    """Return the places of the points that are known: all, if points have no visibility."""
    return np.flatnonzero(points[:, 2] > 0) if points.shape[1] > 2 else np.arange(len(points))


def _numbered(coordinates: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Return coordinates with a last column, which transforms keep, of the number of each row."""
    return np.column_stack([coordinates, numbers]).astype(np.float32)


def _numbers(result: Any) -> NDArray[np.int64]:
    """Return the numbers that `_numbered` gave to rows, of those that a transform has returned."""
    found = np.asarray(result)
    return found[:, -1].astype(np.int64) if found.size else np.empty(0, np.int64)


def _boxes_taken(value: Any, result: NDArray[np.float32]) -> Any:
    if result.size:  # rounding leaves slivers of boxes at the edge of the image
        result = result[(result[:, 2:4] - result[:, :2]).min(axis=1) >= _MIN_SIDE]
    kept = _numbers(result)
    boxes = result[:, :4] if result.size else np.empty((0, 4), np.float32)
    if not isinstance(value, Mapping):
        return boxes
    num_before = len(value["boxes"])
    values = {key: _rows(each, kept, num_before) for key, each in value.items()}
    return {**values, "boxes": np.ascontiguousarray(boxes)}


def _rows(values: Any, kept: NDArray[np.int64], num_before: int) -> Any:
    """Return the values of the boxes that were kept, if there is one for each."""
    if isinstance(values, np.ndarray) and values.ndim and len(values) == num_before:
        return values[kept]
    if isinstance(values, Sequence) and not isinstance(values, str | bytes) and len(values) == num_before:
        return [values[place] for place in kept.tolist()]
    return values
