"""A DataLoader that stacks the batches of an MPDataset warns, because few users want that."""

import warnings
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from mpload.errors import MploadWarning
from tests.support.batches import numbers


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_around_batches_is_told_to_take_batch_size_none(tmp_path: Path, num_workers: int) -> None:
    loader = DataLoader(numbers(tmp_path, 8, batch_size=2), batch_size=4, num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MploadWarning)  # also in forked workers
        with pytest.raises(MploadWarning, match=r"Write DataLoader\(dataset, batch_size=None\)"):
            next(iter(loader))


@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 1, "collate_fn": list}])
def test_nothing_is_said_where_batches_stay_as_they_are(tmp_path: Path, options: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", MploadWarning)
        next(iter(DataLoader(numbers(tmp_path, 8, batch_size=2), **options)))  # type: ignore[arg-type]


def test_single_samples_may_be_stacked(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", MploadWarning)
        next(iter(DataLoader(numbers(tmp_path, 8, batch_size=None), batch_size=4)))
