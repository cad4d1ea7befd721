"""MPLoader with iterable datasets: each worker iterates over a copy, and what cannot be promised is an error."""

import re
import sys
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import DataLoader

from mpload import ArgumentError, MPLoader, MploadWarning, SampleError, StateError, WorkerError
from tests.support.streams_of_users import (
    Counting,
    Dying,
    Failing,
    Hanging,
    KeepingPosition,
    OwnIterator,
    Random,
    Sharded,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


def loader(dataset: Any, **options: Any) -> MPLoader[Any]:
    return MPLoader(dataset, **{"multiprocessing_context": "fork", **options})


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}])
def test_one_worker_yields_what_a_data_loader_does(num_workers: int, options: dict[str, Any]) -> None:
    expected = list(map(str, DataLoader(Counting(), **options)))
    with loader(Counting(), num_workers=num_workers, **options) as batches:
        assert list(map(str, batches)) == list(map(str, batches)) == expected


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_dataset_that_is_its_own_iterator_begins_once_an_epoch(num_workers: int, batch_size: int | None) -> None:
    expected = list(map(str, DataLoader(Counting(), batch_size=batch_size)))
    with loader(OwnIterator(), num_workers=num_workers, batch_size=batch_size) as batches:
        assert list(map(str, islice(batches, 11))) == list(map(str, islice(batches, 11))) == expected


def test_a_dataset_that_stays_at_its_end_is_told_of() -> None:
    with loader(KeepingPosition(), batch_size=4, num_workers=1) as batches:
        assert len(list(batches)) == 3
        for _ in range(2):
            with pytest.warns(MploadWarning, match="yields no samples in epoch ., but it yielded 10"):
                assert not list(batches)


def test_workers_share_a_dataset_that_shards_itself() -> None:
    with loader(Sharded(100), batch_size=3, num_workers=4, collate_fn=list) as batches:
        for _ in range(2):
            received = list(batches)
            assert sorted(sample for batch in received for sample in batch) == list(range(100))
            assert all(len({sample % 4 for sample in batch}) == 1 for batch in received)
        assert len(batches) == 34


def test_by_default_one_worker_yields_each_sample_once() -> None:
    with loader(Counting(), batch_size=None) as batches:
        assert list(batches) == list(range(10))
        with pytest.raises(TypeError, match="has none"):
            len(batches)


def test_an_iteration_that_was_left_early_does_not_leak_into_the_next() -> None:
    with loader(Counting(1000), batch_size=None, num_workers=1) as batches:
        for sample in batches:
            if sample == 5:
                break
        assert list(batches) == list(range(1000))


def test_an_error_of_the_iterator_ends_it() -> None:
    with loader(Failing(), batch_size=2, num_workers=1, collate_fn=list) as batches:
        iteration = iter(batches)
        assert [next(iteration), next(iteration)] == [[0, 1], [2, 3]]
        with pytest.raises(SampleError, match="Failing: LookupError: no more") as raised:
            next(iteration)
        assert isinstance(raised.value, LookupError)
        assert list(iteration) == []


@pytest.mark.parametrize(
    ("dataset", "options", "cause"),
    [(Dying(), {}, "SIGKILL"), (Hanging(), {"timeout": 0.3}, "stuck for more than 0.3 s")],
)
def test_a_dead_worker_is_an_error_since_its_position_is_lost(
    dataset: Counting, options: dict[str, Any], cause: str
) -> None:
    with loader(dataset, batch_size=None, num_workers=1, **options) as batches:
        iteration, found = iter(batches), set[str]()
        assert list(islice(iteration, 4)) == [0, 1, 2, 3]
        for _ in range(3):  # the cause does not change
            with pytest.raises(WorkerError) as raised:
                next(iteration)
            found.add(str(raised.value))
            assert raised.value.history
        message = rf"{type(dataset).__name__}: worker 0 \(process \d+\): {cause}\. The samples of .* is not replaced"
        assert len(found) == 1
        assert re.match(message, found.pop())
        assert next(iter(batches)) == 0


def test_random_numbers_depend_on_seed_epoch_and_worker() -> None:
    def epochs(seed: int) -> list[list[float]]:
        with loader(Random(), batch_size=None, num_workers=1, seed=seed) as batches:
            return [list(batches), list(batches)]

    first, second = epochs(1)
    assert [first, second] == epochs(1) != epochs(2)
    assert first != second


def test_what_needs_samples_by_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Counting is an iterable dataset, .*: leave out shuffle=, on_error="):
        loader(Counting(), shuffle=True, on_error="skip", num_workers=0)
    with loader(Counting(), num_workers=0) as batches:
        with pytest.raises(StateError, match="the position in Counting, an iterable dataset, cannot be saved"):
            batches.state_dict()
        with pytest.raises(StateError, match="the position in Counting"):
            batches.load_state_dict({})
