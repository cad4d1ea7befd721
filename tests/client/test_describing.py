"""What samples are made of is described alike in all processes, and differently wherever samples may differ."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import albumentations  # type: ignore[import-untyped]
import pytest

from mpload import BySource, ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.client.describing import described


class _Plain:
    pass


class _Failing:
    def __repr__(self) -> str:
        raise RuntimeError


def _of_a_module(value: object, key: str = "") -> object:
    del key
    return value


def _made() -> Callable[..., Any]:
    def inner(value: object) -> object:
        return value

    return inner


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (0.5, "0.5"),
        (_of_a_module, "_of_a_module"),
        (_made(), "inner"),
        (_Plain(), "_Plain"),
        (_Failing(), "_Failing"),
        (_Plain, "_Plain"),
        (partial(_of_a_module, 1, key="x"), "partial(_of_a_module, 1, {key: 'x'})"),
        ([1, (2, {"a": _Plain()})], "[1, [2, {a: _Plain}]]"),
        (frozenset({2, 1}), "{1, 2}"),
        (BySource({Path("/one/a.txt"): ResizeCenterCrop(8), "/b.txt": None}), None),
    ],
)
def test_description_names_functions_and_objects_and_repeats_values(value: object, text: str | None) -> None:
    found = described(value)
    assert "0x" not in found
    assert "/one" not in found
    assert text is None or found == text


def test_parameters_of_decoders_and_transforms_are_described() -> None:
    values: list[object] = [
        RandomResizedCrop(32),
        RandomResizedCrop(33),
        RandomResizedCrop(32, antialias=True),
        ResizeCenterCrop(32),
        ImageDecoder(),
        albumentations.Compose([albumentations.HorizontalFlip(p=0.5)]),
        albumentations.Compose([albumentations.HorizontalFlip(p=0.6)]),
        {"image": RandomResizedCrop(32), "mask": ImageDecoder()},
        {"mask": ImageDecoder(), "image": RandomResizedCrop(32)},
    ]
    found = [described(value) for value in values]
    assert len(set(found)) == len(values)
    assert not any("\n" in text for text in found)
    assert described(RandomResizedCrop(32)) == found[0]
