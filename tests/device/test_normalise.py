"""Normaliser: every value is correctly rounded, with any memory layout."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.device.normalise import Normaliser
from mpload.errors import ArgumentError
from tests.support.device_batches import DTYPES, MEAN, STD, every_pixel, reference


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("comes_channels_last", [True, False])
def test_values_are_computed_in_float64_and_rounded_once(
    dtype: torch.dtype, channels_last: bool, comes_channels_last: bool
) -> None:
    images = every_pixel() if comes_channels_last else every_pixel().contiguous()
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(images.shape, dtype=dtype, memory_format=memory_format)
    Normaliser(dtype=dtype, mean=MEAN, std=STD).write(images, out)
    assert torch.equal(out, reference(images).to(dtype))


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 5), st.integers(0, 5)),
    dtype=st.sampled_from(DTYPES),
    channels_last=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_number_of_channels_and_any_size_is_accepted(
    shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mean, std = rng.uniform(-1, 2, shape[1]).tolist(), rng.uniform(0.01, 3, shape[1]).tolist()
    images = torch.from_numpy(rng.integers(0, 256, shape, np.uint8))
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(shape, dtype=dtype, memory_format=memory_format)
    normaliser = Normaliser(dtype=dtype, mean=mean, std=std)
    assert normaliser.takes(images)
    normaliser.write(images, out)
    assert torch.equal(out, reference(images, mean, std).to(dtype))


def test_other_tensors_are_not_images() -> None:
    normaliser = Normaliser(dtype=torch.float32, mean=MEAN, std=STD)
    assert not normaliser.takes(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
    assert not normaliser.takes(torch.zeros(3, 4, 4, dtype=torch.uint8))
    assert not normaliser.takes(torch.zeros(2, 3, 4, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "dtype must be one of"),
        ({"mean": (0.5,)}, "one number per channel, got 1 and 3"),
        ({"mean": (), "std": ()}, "one number per channel"),
        ({"std": (1, 0, 1)}, "std positive"),
        ({"mean": (math.nan, 0, 0)}, "mean must be finite"),
    ],
)
def test_arguments_that_break_a_rule_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Normaliser(**{"dtype": torch.float32, "mean": MEAN, "std": STD, **change})
