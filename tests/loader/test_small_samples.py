"""Small samples that workers write together are those that the dataset has made, and belong to their seeds."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset

from mpload import MPLoader, SampleError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


class Reusing(Dataset[Any]):
    """Returns the same object each time, with other values."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self.values = np.zeros(4)
        self.wrap = wrap

    def __len__(self) -> int:
        return 512

    def __getitem__(self, number: int) -> Any:
        self.values[:] = number
        return self.wrap(self.values)


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("wrap", [lambda values: values, lambda values: (torch.from_numpy(values),)])
def test_a_dataset_may_use_the_memory_of_its_samples_again(num_workers: int, wrap: Callable[[Any], Any]) -> None:
    with MPLoader(Reusing(wrap), batch_size=128, num_workers=num_workers) as loader:
        for _ in range(3):
            batches = [batch[0] if isinstance(batch, list) else batch for batch in loader]
            assert torch.cat(batches)[:, 0].tolist() == [*range(512)]


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        return (torch.rand(()),)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_a_part_that_was_exchanged_have_seeds_of_their_own(num_workers: int) -> None:
    dataset: Any = ConcatDataset([TensorDataset(torch.arange(64.0))])
    with MPLoader(dataset, batch_size=16, num_workers=num_workers, seed=5) as loader:
        list(loader)
        dataset.datasets[0] = Noisy()
        epochs = [torch.cat([batch[0] for batch in loader]) for _ in range(2)]
        assert len(set(torch.cat(epochs).tolist())) == 128
    exchanged: Any = ConcatDataset([Noisy()])
    with MPLoader(exchanged, batch_size=16, num_workers=0, seed=5) as here:
        here.set_epoch(1)
        assert torch.equal(torch.cat([batch[0] for batch in here]), epochs[0])


class Counting(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(100))


def fails_after_twenty(samples: Any) -> Any:
    return next(iter([])) if 20 in samples else torch.tensor(samples)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stop_iteration_in_collate_is_not_the_end_of_the_epoch(num_workers: int) -> None:
    dataset: Any = Counting()
    with (
        MPLoader(dataset, batch_size=10, num_workers=num_workers, collate_fn=fails_after_twenty) as loader,
        pytest.raises((RuntimeError, SampleError), match="collate_fn raised StopIteration"),
    ):
        list(loader)
