"""Calls transforms of torchvision v2 on whole samples: images, masks, boxes and keypoints are passed as tv_tensors."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from mpload.errors import ArgumentError
from mpload.samples.object_parts import moving_parts
from mpload.samples.seeded_albumentations import is_of
from mpload.samples.targets import Target, checked_sample
from mpload.samples.transforms import seed_generators

__all__ = ["TorchvisionOnSamples"]

_TORCHVISION = frozenset({"torchvision"})
_PIXEL_CENTRE = 0.5
"""Added to torchvision's keypoints, which count from the centre of the first pixel, to count from its corner."""


class TorchvisionOnSamples:
    """Calls a transform of torchvision v2 on samples.

    The transform may also be a `torch.nn.Sequential` of such. It gets a sample as a dict, with `Image`, `Mask`,
    `BoundingBoxes` and `KeyPoints` in place of images [H, W, C], masks, boxes and the x and y of keypoints; so are the
    masks and keypoints of objects. All other values are as they are. It returns a dict, whose tv_tensors become
    tensors. Keypoints that leave the image get the visibility 0.

    Process:
        Cannot be pickled. Torch is already loaded, since the transform has been made or unpickled.

    Raises:
        ArgumentError: No key of a sample is an image, or the transform is one of PIL images, of torchvision's first
            version.
    """

    seeds_generators = True
    """Whether it seeds the global generators: always, transforms draw from torch's."""

    def __init__(self, transform: Any, targets: Mapping[str, Target]) -> None:
        parts = [transform] if is_of(transform, _TORCHVISION) else list(transform)  # a `torch.nn.Sequential`
        wrong = [part for part in parts if is_of(part, _TORCHVISION) and not _is_v2(part)]
        name = type((wrong or [transform])[0]).__qualname__
        if wrong:
            raise ArgumentError(
                f"{name} of torchvision transforms single images, not samples. Use torchvision.transforms.v2, or make "
                "it a part of the image's decoder: decode={'image': PilTransform(...), ...}"
            )
        self._image_keys = [key for key, target in targets.items() if target is Target.IMAGE]
        if not self._image_keys:
            raise ArgumentError(
                f"{name} of torchvision transforms images, but none of decode's columns is one. Decode one with "
                "ImageDecoder(), or pass a callable that gets the sample as a dict"
            )
        self._transform = transform
        self._targets = targets
        self._torch, self._tv = import_module("torch"), import_module("torchvision.tv_tensors")
        if Target.KEYPOINTS in targets.values() and not hasattr(self._tv, "KeyPoints"):
            raise ArgumentError("this torchvision has no keypoints. pip install -U torchvision")

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the transformed sample."""
        size = sample[self._image_keys[0]].shape[:2]
        given = {key: self._given(value, self._targets.get(key), size) for key, value in sample.items()}
        seed_generators(rng)
        with self._torch.no_grad():
            made = checked_sample(self._transform(given), self._transform)
        shape = next((value.shape[-2:] for value in made.values() if isinstance(value, self._tv.Image)), size)
        return {key: self._taken(key, value, sample.get(key), shape) for key, value in made.items()}

    def _given(self, value: Any, target: Target | None, size: tuple[int, int]) -> Any:
        tensor = self._torch.from_numpy
        match target:
            case Target.IMAGE:
                return self._tv.Image(tensor(np.require(value, requirements=["C", "W"])).permute(2, 0, 1))
            case Target.MASK:
                return self._tv.Mask(tensor(np.require(value, requirements=["C", "W"])))
            case Target.BOXES:
                boxes = value["boxes"] if isinstance(value, Mapping) else value
                found = self._tv.BoundingBoxes(tensor(np.array(boxes)), format="XYXY", canvas_size=size)
                if not isinstance(value, Mapping):
                    return found
                values = {name: tensor(each) if isinstance(each, np.ndarray) else each for name, each in value.items()}
                parts = {name: self._given(value[name], part, size) for name, part in moving_parts(value, size).items()}
                return {**values, **parts, "boxes": found}
            case Target.KEYPOINTS:
                return self._tv.KeyPoints(tensor(value[..., :2] - _PIXEL_CENTRE), canvas_size=size)
            case _:
                return value

    def _taken(self, key: str, value: Any, before: Any, shape: tuple[int, int]) -> Any:
        """Return a value that the transform returned, in place of the sample's value `before`."""
        if isinstance(value, Mapping) and isinstance(before, Mapping) and self._targets.get(key) is Target.BOXES:
            self._check_boxes(key, value, before)
            taken = {inner: self._plain(each) for inner, each in value.items()}
            for inner, each in value.items():
                if isinstance(each, getattr(self._tv, "KeyPoints", ())) and isinstance(before.get(inner), np.ndarray):
                    taken[inner] = self._points_taken(each, before[inner], shape)
            return taken
        plain = self._plain(value)
        if self._targets.get(key) is not Target.KEYPOINTS or len(plain) != len(before):
            return plain
        return self._points_taken(value, before, shape)

    def _points_taken(self, value: Any, before: Any, shape: tuple[int, int]) -> Any:
        """Return points [..., 2 or 3] in place of those `before`, whose visibility they have while they are inside."""
        points = self._torch.from_numpy(before.copy())
        points[..., :2] = self._plain(value) + _PIXEL_CENTRE
        if points.shape[-1] > 2:
            size = self._torch.tensor([shape[1], shape[0]], device="cpu")
            is_inside = ((points[..., :2] >= 0) & (points[..., :2] <= size)).all(dim=-1)
            points[~is_inside | self._torch.from_numpy(before[..., 2] <= 0), :3] = 0
        return points

    def _plain(self, value: Any) -> Any:
        return value.as_subclass(self._torch.Tensor) if isinstance(value, self._tv.TVTensor) else value

    def _check_boxes(self, key: str, value: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        num_before, num_now = len(before["boxes"]), len(value.get("boxes", ()))
        has_points = isinstance(before.get("keypoints"), np.ndarray) and before["keypoints"].ndim == 3
        if num_now != num_before and has_points:
            raise ArgumentError(
                f"transform dropped boxes of sample[{key!r}], which have keypoints. torchvision cannot drop those with "
                "them. Let Boxes(min_side=..., min_visible=...) drop boxes, or use albumentations"
            )
        for name, each in value.items():
            was_one_each = isinstance(before.get(name), np.ndarray | list) and len(before[name]) == num_before
            if num_now != num_before and was_one_each and len(each) != num_now:
                raise ArgumentError(
                    f"transform dropped boxes of sample[{key!r}], but not their {name!r}. Name them: "
                    f"SanitizeBoundingBoxes(labels_getter=lambda sample: sample[{key!r}][{name!r}])"
                )


def _is_v2(transform: object) -> bool:
    return any(base.__module__.startswith("torchvision.transforms.v2") for base in type(transform).__mro__)
