"""Arguments of an MPLoader: errors name the wrong ones, and a memory budget bounds the slots."""

import inspect
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from mpload import (
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    Topology,
)
from mpload.errors import ArgumentError
from tests.support.batches import numbers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


def test_a_pipeline_that_cannot_be_pickled_is_refused_at_construction(folder: Path) -> None:
    lock = threading.Lock()
    dataset = numbers(folder, 60)
    dataset._run.pipeline.maker.decode = lambda data: (lock, np.frombuffer(data, np.int64))[1]
    with pytest.raises(ArgumentError, match=r"workers cannot get a copy of .*lock"):
        MPLoader(dataset, num_workers=1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_workers": -1}, "num_workers must be 'auto' or an integer of at least 0, got -1"),
    ({"num_workers": "many"}, "num_workers must be 'auto' or an integer of at least 0, got 'many'"),
    ({"memory_budget": "lots"}, "'lots' is not a size in bytes"),
    (
        {"num_workers": 2, "memory_budget": "1MiB"},
        r"memory_budget 1.0 MiB is too small: the loader needs at least 32.1 MiB",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_errors_name_wrong_arguments(photos: Path, options: dict[str, Any], message: str) -> None:
    dataset = MPDataset(photos, decode=RandomResizedCrop(48), batch_size=4, topology=Topology())
    with pytest.raises(ArgumentError, match=message):
        MPLoader(dataset, **options)
    with pytest.raises(ArgumentError, match="pass batch_size= to the MPDataset"):
        MPLoader(MPDataset(photos, topology=Topology()), num_workers=1)


@pytest.mark.processes
def test_the_budget_that_the_error_suggests_is_the_least_that_is_accepted(photos: Path) -> None:
    dataset = MPDataset(photos, decode=RandomResizedCrop(224), batch_size=4, topology=Topology())
    with pytest.raises(
        ArgumentError, match=r"too small: the loader needs .*, for 3 batches of .* and 2 workers of 16\.0 MiB"
    ) as raised:
        MPLoader(dataset, num_workers=2, memory_budget="10MB")
    (suggested,) = re.findall(r'Pass memory_budget="(\d+)MiB" or more', str(raised.value))
    with pytest.raises(ArgumentError, match="too small"):
        MPLoader(dataset, num_workers=2, memory_budget=f"{int(suggested) - 1}MiB")
    with MPLoader(dataset, num_workers=2, memory_budget=f"{suggested}MiB") as loader:
        assert len(list(loader)) == len(dataset)


OF_A_DATA_LOADER = inspect.signature(DataLoader).parameters.keys() - inspect.signature(MPLoader).parameters.keys()


@pytest.mark.parametrize("name", [*sorted(OF_A_DATA_LOADER), "num_worker"])
def test_an_argument_of_a_data_loader_is_refused_with_what_to_use_instead(name: str) -> None:
    unknown: dict[str, Any] = {name: None}
    with pytest.raises(ArgumentError, match=rf" {name}: .*docs/from-dataloader\.md") as raised:
        MPLoader([*range(8)], batch_size=4, num_workers=0, **unknown)
    assert ("there is no such argument" in str(raised.value)) == (name == "num_worker")


@pytest.mark.processes
def test_a_budget_bounds_the_slots(photos: Path) -> None:
    dataset = MPDataset(photos, decode=RandomResizedCrop(224), batch_size=2, topology=Topology())
    with MPLoader(dataset, num_workers=2, memory_budget="34MiB") as loader:
        assert loader._pool is not None
        assert loader._pool.ring.num_slots == 5
        assert len(list(loader)) == len(dataset)
