"""Calls albumentations on whole samples: images, masks, boxes and keypoints are passed as its targets."""

import copy
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.samples.targets import Target
from mpload.samples.transforms import SeededAlbumentations

__all__ = ["AlbumentationsOnSamples"]

_NAMES = {Target.IMAGE: "image", Target.MASK: "mask", Target.BOXES: "bboxes", Target.KEYPOINTS: "keypoints"}
_PIXEL_CENTRE = 0.5
"""Added to albumentations' keypoints, which count from the centre of the first pixel, to count from its corner."""


class AlbumentationsOnSamples:
    """Calls an albumentations transform or `Compose` on samples.

    The first image of a sample is the target `image`, unless another key has that name; so are the first mask (`mask`),
    boxes (`bboxes`) and keypoints (`keypoints`). Further ones, and the keys that the transform itself has as additional
    targets, are additional targets. All other values stay as they are.

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
        # It becomes a part of another `Compose`, which changes it, and the user may use it elsewhere.
        self._call = SeededAlbumentations(
            module.Compose(
                [copy.deepcopy(transform)],
                bbox_params=boxes if Target.BOXES in targets.values() else None,
                keypoint_params=points if Target.KEYPOINTS in targets.values() else None,
                additional_targets={**own, **further},
                is_check_shapes=getattr(transform, "is_check_shapes", True),
            )
        )

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the transformed sample."""
        data: dict[str, Any] = {}
        for key, name in self._names.items():
            if key in sample:
                data[name] = self._given(sample[key], self._targets.get(key))
                if self._label_fields and self._targets.get(key) is Target.BOXES:
                    data.update(self._labels(sample[key]))
        # Forced, since otherwise the outer `Compose` draws a number to decide whether to do anything.
        made = self._call(rng, force_apply=True, **data)
        changed = {
            key: self._taken(sample[key], made[name], self._targets.get(key), made["image"])
            for key, name in self._names.items()
            if key in sample
        }
        return {**sample, **changed}

    def _given(self, value: Any, target: Target | None) -> Any:
        """Return a value of a sample as the target of a transform."""
        match target:
            case Target.MASK:
                return value.astype(_mask_dtype(value), copy=False)
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

    def _taken(self, value: Any, result: Any, target: Target | None, image: Any) -> Any:
        """Return the result of a transform as a value of a sample, in place of `value`."""
        match target:
            case Target.MASK:
                return np.ascontiguousarray(result, value.dtype)
            case Target.BOXES:
                return _boxes_taken(value, np.asarray(result, np.float32))
            case Target.KEYPOINTS:
                return self._points_taken(value, np.asarray(result), image)
        return np.ascontiguousarray(result) if isinstance(result, np.ndarray) else result

    def _points_taken(self, value: NDArray[Any], result: NDArray[Any], image: Any) -> NDArray[Any]:
        numbers = result[:, -1].astype(np.int64) if result.size else np.empty(0, np.int64)
        xy = result[:, :2] + _PIXEL_CENTRE if result.size else np.empty((0, 2))
        if self._drops_points:
            points = value[numbers]
            points[:, :2] = xy
            return points
        points = value.copy()
        points[numbers, :2] = xy
        if points.shape[1] > 2:
            # Tensors of `ToTensorV2` are [C, H, W].
            height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.shape[-2:]
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


def _mask_dtype(mask: NDArray[Any]) -> Any:
    """Return a dtype that holds a mask's values and that OpenCV can move, with room for a fill value such as -1."""
    if mask.dtype.kind not in "iub":
        return mask.dtype
    low, high = (int(mask.min()), int(mask.max())) if mask.size else (0, 0)
    for dtype, limit in (np.int16, 1 << 15), (np.float32, 1 << 24):
        if -limit <= low and high < limit:
            return dtype
    return np.float64


def _known(points: NDArray[Any]) -> NDArray[np.intp]:
    """Return the places of the points that are known: all, if points have no visibility."""
    return np.flatnonzero(points[:, 2] > 0) if points.shape[1] > 2 else np.arange(len(points))


def _numbered(coordinates: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Return coordinates with a last column, which transforms keep, of the number of each row."""
    return np.column_stack([coordinates, numbers]).astype(np.float32)


def _boxes_taken(value: Any, result: NDArray[np.float32]) -> Any:
    kept = result[:, 4].astype(np.int64) if result.size else np.empty(0, np.int64)
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
