"""Generators that the user's code holds: a sample's numbers do not depend on its worker, or there is a warning."""

import argparse
import dataclasses
import dis
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812  as its documentation does
import numpy as np
import pytest
import torch

from mpload import MPDataset, MPLoader, Views, build_index
from mpload.images.decoders import RandomResizedCrop, RawBytes, ResizeCenterCrop
from mpload.samples.held_generators import HeldGenerators
from mpload.samples.reached import names_loaded_by, reached
from tests.support.held import (
    HOLDERS,
    IMAGE,
    Calling,
    InAttribute,
    Stream,
    apply,
    default_rng_in_reach,
    in_closure,
    noise,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


def samples(dataset: Any, num_workers: int, *, num_epochs: int = 2, **options: Any) -> list[bytes]:
    """Return the samples of epochs as bytes."""
    options = {"batch_size": 4, "shuffle": True, "seed": 1, **options} if not isinstance(dataset, MPDataset) else {}
    with MPLoader(dataset, num_workers=num_workers, multiprocessing_context="fork", **options) as loader:
        return [bytes(np.asarray(each)) for _ in range(num_epochs) for batch in loader for each in first_of(batch)]


def first_of(batch: Any) -> Any:
    """Return the first column of a batch."""
    if isinstance(batch, dict):
        return batch["image"]
    return batch[0] if isinstance(batch, list | tuple) else batch


@pytest.mark.processes
@pytest.mark.parametrize("place", HOLDERS)
def test_transforms_that_a_dataset_holds_draw_what_belongs_to_the_sample(place: str) -> None:
    expected = samples(HOLDERS[place](), 0)
    assert len(set(expected)) == len(expected) == 48  # no two samples draw the same, nor does one in two epochs
    assert samples(HOLDERS[place](), 2) == expected


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("is_dict", [False, True])
def test_transforms_of_monai_draw_what_belongs_to_the_sample(*, is_dict: bool) -> None:
    transforms = pytest.importorskip("monai.transforms")
    image = np.ones((1, 8, 8), np.float32)

    def made(num_workers: int) -> list[bytes]:
        noise = transforms.RandGaussianNoise(prob=1.0)
        augment: Any = transforms.Compose([transforms.OneOf([noise, noise])])
        if is_dict:
            augment = transforms.Compose([transforms.RandFlipd("image"), transforms.RandGaussianNoised("image", 1.0)])
        found: Any = pytest.importorskip("monai.data").Dataset([{"image": image} if is_dict else image] * 24, augment)
        own = [each.R for each in augment.transforms]
        drawn = samples(found, num_workers)
        assert [each.R for each in augment.transforms] == own
        return drawn

    expected = made(0)
    assert len(set(expected)) == 48
    assert made(2) == expected


@pytest.mark.processes
def test_transforms_that_a_collate_function_holds_draw_what_belongs_to_the_batch() -> None:
    augment = noise()

    def collate(images: list[Any]) -> Any:
        return torch.stack([torch.as_tensor(apply(augment, image.numpy())) for image in images])

    dataset = Calling(torch.as_tensor)
    expected = samples(dataset, 0, collate_fn=collate)
    assert len(set(expected)) == 48
    assert samples(dataset, 2, collate_fn=collate) == expected


@pytest.mark.processes
@pytest.mark.parametrize("is_collated", [False, True])
def test_the_workers_of_a_stream_draw_different_numbers(*, is_collated: bool) -> None:
    augment = noise(seed=1)

    def collate(images: list[Any]) -> Any:
        return torch.stack([torch.as_tensor(apply(augment, IMAGE if is_collated else image)) for image in images])

    options: dict[str, Any] = {"shuffle": None, "num_epochs": 1, "collate_fn": collate if is_collated else None}
    drawn = samples(Stream(), 2, **options)
    assert len(set(drawn)) == len(drawn) == 24
    assert sorted(samples(Stream(), 2, **options)) == sorted(drawn)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_sample_is_lost_to_what_cannot_be_searched(num_workers: int) -> None:
    dataset = Calling(default_rng_in_reach)
    with MPLoader(dataset, batch_size=4, num_workers=num_workers, on_error="skip") as loader:
        assert sum(len(batch) for batch in loader) == 24


@pytest.fixture
def index(photo_tree: Path, tmp_path: Path) -> Path:
    """Return an index of a few photos."""
    build_index(photo_tree, tmp_path / "train.txt")
    return tmp_path / "train.txt"


def wrapped_decode(data: bytes) -> Any:
    """Decode with a transform in a global of this module."""
    return apply(GLOBAL, ResizeCenterCrop(8)(data))


GLOBAL = noise()


def with_rng(image: Any, rng: np.random.Generator) -> Any:
    """Draw from the sample's generator and from a transform's."""
    return apply(GLOBAL, image) + np.uint8(rng.integers(2))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "options",
    [
        {"decode": ResizeCenterCrop(8), "transform": in_closure()},
        {"decode": ResizeCenterCrop(8), "transform": with_rng},
        {"decode": wrapped_decode},
        {"decode": {"image": wrapped_decode}},
        {"decode": {"image": Views(all=(2, RandomResizedCrop(8), in_closure()))}},
    ],
    ids=["transform", "transform with rng", "decode", "columns", "views"],
)
def test_transforms_inside_a_pipeline_draw_what_belongs_to_the_sample(index: Path, options: dict[str, Any]) -> None:
    def made(num_workers: int) -> list[bytes]:
        dataset = MPDataset(index, batch_size=2, shuffle=True, seed=5, tail="ragged", **options)
        with MPLoader(dataset, num_workers=num_workers) as loader:
            found = []
            for images in (first_of(batch) for _ in range(3) for batch in loader):
                found += [bytes(np.asarray(each)) for each in (images["all"] if isinstance(images, dict) else images)]
            return found

    expected = made(0)
    assert len(set(expected)) == len(expected)
    assert made(2) == expected


def test_the_process_of_the_script_keeps_its_generators() -> None:
    dataset = InAttribute(3)
    inner = dataset.augment.transforms[0].transforms[0]
    before = [(each.random_generator, each.py_random) for each in (dataset.augment, inner)]
    drawn = InAttribute(3)[0]
    samples(dataset, 0, collate_fn=lambda images: (dataset.augment(image=IMAGE), torch.stack(images))[1])
    assert [(each.random_generator, each.py_random) for each in (dataset.augment, inner)] == before
    assert torch.equal(dataset[0], drawn)


SCRIPT = """
from mpload import MPLoader
from tests.support.held import KINDS, Drawing, NotDrawing

def load(dataset, num_workers):
    with MPLoader(dataset, batch_size=4, num_workers=num_workers) as loader:
        for _ in range(2):
            list(loader)

class Images(NotDrawing):
    def __init__(self):
        super().__init__("NumPy")
        self.loader = float  # an attribute with the name of a global

    def __getitem__(self, index):
        return self.loader(index)

    def unused(self):
        return other

loader = other = MPLoader(Images(), batch_size=4, num_workers=1)
for _ in range(2):
    list(loader)
    loader.release()  # so that the generators of the loader have been used when workers start
load(NotDrawing("NumPy"), 2)
load(Drawing("NumPy"), 0)
for kind in KINDS:
    load(Drawing(kind), 2)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_there_is_one_warning_if_samples_draw_from_a_generator_that_has_copies() -> None:
    """In a script of its own: within pytest, workers would keep their warnings."""
    command = [sys.executable, "-c", SCRIPT]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
    found = re.findall(
        r"samples draw random numbers from Drawing.rng, a generator of (\w+). Each worker has a copy", told
    )
    assert found == ["NumPy", "NumPy", "random", "torch"]
    assert told.count("Warning") == 4


class Nowhere:
    """Its class is in no module."""


Nowhere.__module__ = None  # type: ignore[assignment]


class Strange:
    """Its attributes cannot be looked at."""

    __slots__ = ("missing",)

    @property
    def __class__(self) -> Any:
        raise RuntimeError("it stands for nothing")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Queue(list[Any]):
    """Takes its items out."""

    def __iter__(self) -> Any:
        while self:
            yield self.pop()

    def __len__(self) -> int:
        raise RuntimeError("its length takes long")


class Chained(A.ImageOnlyTransform):  # type: ignore[misc]
    """A transform of the library whose `transforms` are no list of such, or itself."""

    def __init__(self, transforms: Any) -> None:
        super().__init__(p=1)
        self.transforms = [self] if transforms is None else transforms


def test_no_code_of_the_user_is_called_and_no_shape_of_objects_matters() -> None:
    queue = Queue([[noise()], 2])
    held = HeldGenerators([queue, Chained(None), Chained(len), Chained([3])])
    assert held.are_seeded()
    held.seed(np.random.default_rng(0))
    held.restore()
    assert list.__len__(queue) == 2


def module_with(text: str, **values: Any) -> ModuleType:
    """Return a module of the user."""
    module = ModuleType("of_user")
    vars(module).update(values)
    exec(text, vars(module))
    return module


def test_the_name_of_an_attribute_is_not_taken_for_that_of_a_global() -> None:
    rngs = [np.random.default_rng(number) for number in range(4)]
    text = """
def use(self):
    self.loader()
    def inner():
        import of_user_too
        return used.loader + [each.loader for each in (of_user_too, used)]
    class Inner:
        kept = inherited
    return inner, Inner
"""
    others = {"loader": rngs[0], "used": rngs[1], "inherited": rngs[2]}
    sys.modules["of_user_too"] = module_with("", imported=rngs[3])
    try:
        found = list(reached([vars(module_with(text, **others))["use"]], but=[]))
    finally:
        del sys.modules["of_user_too"]
    named = {name: value for name, value in found if isinstance(value, np.random.Generator)}
    assert named == {"used": rngs[1], "inherited": rngs[2], "of_user_too.imported": rngs[3]}


def test_code_loads_the_names_that_its_disassembly_shows() -> None:
    def shown(code: CodeType) -> Iterator[str]:
        loads = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME"}
        yield from (each.argval for each in dis.get_instructions(code) if each.opname in loads)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from shown(constant)

    texts = [Path(str(module.__file__)).read_text() for module in (argparse, dataclasses)]
    texts.append(f"def use():\n    return [{', '.join(f'name{number}' for number in range(1000))}]")  # long arguments
    for text in texts:
        code = compile(text, "of_user.py", "exec")
        assert list(names_loaded_by(code)) == list(shown(code)) != []


def test_loaders_are_not_searched_but_what_makes_samples_is() -> None:
    class Own(MPLoader[Any]):
        """A loader of the user."""

    loaders = [kind(InAttribute(3), num_workers=0) for kind in (MPLoader, Own)]
    list(loaders[0])
    code = [loaders, Views(all=(2, RandomResizedCrop(8), noise()))]
    places = {name.partition(".")[0] for name, value in reached(code, but=[]) if isinstance(value, np.random.Generator)}
    assert places == {"Views"}


class Brightened(MPDataset[Any]):
    """A dataset derived from mpload's, whose own transform draws."""

    def __init__(self, index: Path) -> None:
        self.augment = noise()
        super().__init__(index, decode=RawBytes(), transform=self.changed, batch_size=2)

    def changed(self, data: Any) -> Any:
        return self.augment(data)


def test_a_dataset_derived_from_mploads_is_searched(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("0.bin\n1.bin\n")
    derived = Brightened(tmp_path / "all.txt")
    held = HeldGenerators(derived.changed)
    assert any(isinstance(value, np.random.Generator) for _, value in reached([derived.changed], but=[]))
    assert held.are_seeded()


def test_a_search_is_bounded() -> None:
    """Objects are counted, not seconds."""

    class Many:
        lists: ClassVar[Any] = [[{"boxes": [number]} for number in range(100)] for _ in range(1000)]
        augment = noise()

    assert len(list(reached([Many()], but=[]))) <= 5000
    assert HeldGenerators(Many()).are_seeded()


def test_what_cannot_be_searched_is_left_out() -> None:
    around: list[Any] = [Strange(), Nowhere(), range, sys, random.SystemRandom(), {}, iter(()), noise()]
    around += [around, list(range(1000))]
    held = HeldGenerators(around)
    assert held.are_seeded()
    held.seed(np.random.default_rng(0))
    held.restore()
