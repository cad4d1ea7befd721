"""The global generators of `random`, NumPy and torch give decoders and transforms each sample's own numbers."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mpload import ErrorPolicy, MPDataset, MPLoader, RawBytes, Topology
from tests.support import decoders
from tests.support.batches import numbers_index

NUM_SAMPLES = 60
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers_index(tmp_path_factory.mktemp("numbers"), NUM_SAMPLES)


def epochs(index: Path, how: str, **options: Any) -> list[torch.Tensor]:
    """Return the numbers drawn in each of two epochs, float64 [n, ...], ordered by sample."""
    options = {"shuffle": True, "seed": 5, "topology": Topology(), "tail": "ragged", "batch_size": 7, **options}
    dataset = MPDataset(index, **options)

    def read(batches: Any) -> torch.Tensor:
        found = torch.cat([batch[0] for batch in batches])
        return found[found[:, 0].argsort()]

    if how == "alone":
        return [read(dataset) for _ in range(2)]
    if how == "DataLoader":
        loader = DataLoader(dataset, batch_size=None, num_workers=2)
        return [read(loader) for _ in range(2)]
    with MPLoader(dataset, num_workers=int(how)) as batches:
        return [read(batches) for _ in range(2)]


DRAWING: dict[str, dict[str, Any]] = {
    "decode": {"decode": decoders.drawn_number},
    "decode, for some samples": {"decode": decoders.sometimes_drawn},
    "decode, beside rng": {"decode": decoders.drawn_with_rng},
    "decode, from torch": {"decode": decoders.torch_drawn},
    "decode, from OpenCV": {"decode": decoders.opencv_drawn},
    "decode, before a transform": {"decode": decoders.drawn_number, "transform": decoders.add_noise},
    "transform, from torch": {"decode": decoders.number_in, "transform": decoders.torch_drawing},
    "decode, one of two normal numbers": {"decode": decoders.one_normal},
    "decode, by a seed of its own": {"decode": decoders.own_seed},
}


@pytest.mark.slow
@pytest.mark.processes
@needs_linux
@pytest.mark.parametrize("case", DRAWING)
def test_drawn_numbers_depend_on_seed_epoch_and_sample_alone(index: Path, case: str) -> None:
    options = DRAWING[case]
    expected = epochs(index, "alone", **options)
    for how in ["DataLoader", "0", "2"] if case in {"decode", "transform, from torch"} else ["2"]:
        for epoch, other in zip(epochs(index, how, **options), expected, strict=True):
            assert torch.equal(epoch, other), how
    other_batches = epochs(index, "alone", batch_size=11, **options)
    assert all(torch.equal(epoch, other) for epoch, other in zip(other_batches, expected, strict=True))


@pytest.mark.parametrize("case", [case for case in DRAWING if "some" not in case and "own" not in case])
def test_drawn_numbers_differ_between_samples_and_epochs(index: Path, case: str) -> None:
    drawn = torch.cat(epochs(index, "alone", **DRAWING[case]))[:, 1:]
    assert [len(set(column.tolist())) for column in drawn.T] == [2 * NUM_SAMPLES] * drawn.shape[1]


@pytest.mark.processes
@needs_linux
@pytest.mark.parametrize("decode", [decoders.failing_now_and_then, decoders.leaving_now_and_then])
def test_random_failures_depend_on_seed_epoch_and_sample_alone(index: Path, tmp_path: Path, decode: Any) -> None:
    def kept(how: str) -> list[list[int]]:
        policy = ErrorPolicy(action="skip", report=tmp_path / "errors.jsonl", max_error_fraction=1)
        with pytest.warns(match="a bad sample"):
            found = epochs(index, how, decode=decode, on_error=policy)
        return [epoch[:, 0].tolist() for epoch in found]

    expected = kept("alone")
    assert all(20 < len(epoch) < NUM_SAMPLES for epoch in expected)
    assert kept("2") == expected != kept("0")[::-1]


def test_a_sample_never_gets_the_scripts_left_over_normal_number(index: Path) -> None:
    random.seed(1)
    expected = epochs(index, "alone", decode=decoders.one_normal)
    random.gauss(0, 1)
    left_over = epochs(index, "alone", decode=decoders.one_normal)
    assert all(torch.equal(epoch, other) for epoch, other in zip(left_over, expected, strict=True))


def drawn_from_each_generator() -> list[float]:
    return [random.random(), *np.random.rand(2), torch.rand(1).item()]  # noqa: NPY002


@pytest.mark.parametrize("batch_size", [7, None])
@pytest.mark.parametrize("case", DRAWING)
def test_the_scripts_generators_are_not_changed(index: Path, case: str, batch_size: int | None) -> None:
    def seeded(read: Callable[[], object]) -> list[float]:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        read()
        return drawn_from_each_generator()

    dataset = MPDataset(index, batch_size=batch_size, topology=Topology(), **DRAWING[case])
    assert seeded(lambda: None) == seeded(lambda: list(dataset))


def test_built_in_decoders_do_not_use_the_global_generators(index: Path) -> None:
    random.gauss(0, 1), np.random.randn()  # noqa: NPY002
    states = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    list(MPDataset(index, decode=RawBytes(), batch_size=7, topology=Topology()))
    assert random.getstate() == states[0]
    np.testing.assert_equal(np.random.get_state(legacy=False), states[1])  # noqa: NPY002
