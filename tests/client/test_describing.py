"""What samples are made of is described alike in all processes, and differently wherever samples may differ."""

import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import albumentations  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

from mpload import BySource, ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.client.describing import described
from mpload.client.plain_objects import parameters_of
from tests.support.programs import run_script


class _Plain:
    pass


class _Noise:
    def __init__(self, p: object, size: Any = ()) -> None:
        self.p = p
        self._size = size
        self.lock = threading.Lock()
        self.num_calls, self.made_at = 0, time.time()

    def method(self, value: object) -> object:
        return value


class _Slots:
    __slots__ = ("__strength", "cache")

    def __init__(self, strength: int) -> None:
        self.__strength = strength


@dataclass
class _Hidden:
    shown: int
    secret: str = field(repr=False)
    cache: str = field(repr=False, compare=False)


class _Hostile:
    def __init__(self, value: object) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError


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
        (_Noise(0.5, [1, 2]), "_Noise(p=0.5, size=[1, 2])"),
        (_Noise(_Noise(1)).method, "_Noise.method(p=_Noise(p=1, size=[]), size=[])"),
        (_Slots(3), "_Slots(strength=3)"),
        (_Hidden(1, "s", "c"), "_Hidden(shown=1, secret=#2e31e56d94096d07)"),
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


def _parameter_values() -> list[Any]:
    array = np.arange(6.0)
    return [
        0.05, 9, "9", b"9", None, True, (1, 2), [1, [2]], {"a": 1}, {"a": 2}, {1, 2}, _of_a_module, np.add, print,
        _Noise(1), _Noise(2),
        [_Noise(1), _Noise(2)], {"a": _Noise(1)}, array, array.reshape(2, 3), array.astype(np.float32), array + 1,
        np.float32(1), np.float64(1), torch.arange(6.0), torch.arange(6.0) + 1, torch.ones(2, dtype=torch.bfloat16),
        "x" * 1000, "x" * 1001, list(range(1000)), [*range(999), 0], partial(_of_a_module, 1), partial(_of_a_module, 2),
        _Plain, _Hidden(1, "s", "c"), _Hidden(1, "t", "c"),
    ]  # fmt: skip


def test_parameters_of_plain_objects_are_described() -> None:
    values = _parameter_values()
    found = [described(_Noise(value)) for value in values]
    assert len(set(found)) == len(values)
    assert all("(p=" in text for text in found)
    assert max(map(len, found)) < 400
    assert found == [described(_Noise(value)) for value in _parameter_values()]
    assert described(_Noise({"a": 1, "b": 2})) == described(_Noise({"b": 2, "a": 1}))


def test_what_may_differ_between_processes_is_left_out() -> None:
    with tempfile.TemporaryFile() as file:
        values: list[Any] = [
            threading.Lock(), np.random.default_rng(), random.Random(1), file, object(), "/data/one", Path("/data"),
            [file], {"a": threading.Event()}, np.array([object()]), torch.Generator(), list(range(100_000)), iter(""),
        ]  # fmt: skip
        assert {described(_Noise(value)) for value in values} == {"_Noise(size=[])"}


def test_no_code_of_the_user_is_called_and_recursion_ends() -> None:
    assert parameters_of(_Hostile(_Hostile(1))) == "(value=_Hostile(value=1))"
    loop = _Noise(1)
    loop.p = [loop] * 100
    began = time.monotonic()
    assert described(loop) == "_Noise(size=[])"
    assert time.monotonic() - began < 5


@pytest.mark.processes
@pytest.mark.slow
def test_equal_objects_are_described_alike_in_another_process() -> None:
    program = (
        "from tests.client.test_describing import _Noise, described\n"
        "import numpy as np\n"
        "print(described(_Noise([_Noise({'a', 'b', 'c'}), np.arange(9), print], {'x': 1.5, 'y': 'z'})))"
    )
    value = _Noise([_Noise({"a", "b", "c"}), np.arange(9), print], {"x": 1.5, "y": "z"})
    assert run_script(program, PYTHONHASHSEED="1").stdout.strip() == described(value)
    assert "{'a', 'b', 'c'}" in described(value)
