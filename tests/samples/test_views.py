"""Views: several crops of one image, each with random numbers of its own."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import mpload
from mpload import ArgumentError, DecodeError, Limits, MPDataset, RandomResizedCrop, ResizeCenterCrop, Views
from mpload.images.geometry import open_as, show
from tests.support.augmentations import ELASTIC
from tests.support.jpegs import make

DATA = make("420", 203, 301, seed=0)
LARGE, SMALL = RandomResizedCrop((50, 60), scale=(0.3, 1.0)), RandomResizedCrop(24, scale=(0.05, 0.3), antialias=True)
VIEWS = Views(glob=(2, LARGE), local=(5, SMALL))


def test_each_view_shows_what_its_decoder_shows_with_the_next_random_numbers() -> None:
    views = VIEWS(DATA, np.random.default_rng(1))
    rng = np.random.default_rng(1)
    for name, decode, count in (("glob", LARGE, 2), ("local", SMALL, 5)):
        assert views[name].shape == (count, *decode.output_shape)
        for view in views[name]:
            np.testing.assert_array_equal(view, decode(DATA, rng))
    assert len({view.tobytes() for view in views["local"]}) == 5


def test_views_are_written_to_out() -> None:
    out = {name: np.zeros(shape, np.uint8) for name, shape in (VIEWS.output_shape or {}).items()}
    made = VIEWS(DATA, np.random.default_rng(1), out)
    for name, expected in VIEWS(DATA, np.random.default_rng(1)).items():
        assert made[name] is out[name]
        np.testing.assert_array_equal(out[name], expected)


def test_views_are_a_value() -> None:
    for views in (VIEWS, Views(of="image", only=(1, ResizeCenterCrop(20), brighter))):
        assert pickle.loads(pickle.dumps(views)) == views
        assert hash(copy.copy(views)) == hash(views)
    assert eval(repr(VIEWS), {name: getattr(mpload, name) for name in mpload.__all__}) == VIEWS


def brighter(view: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    return view.astype(np.float32) + rng.random(dtype=np.float32)
