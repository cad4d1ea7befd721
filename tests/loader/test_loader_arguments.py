"""Arguments of an MPLoader: errors name the wrong ones, and a memory budget bounds the slots."""

import copy
import inspect
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, random_split

from mpload import (
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    Topology,
)
from mpload.errors import ArgumentError, MploadWarning
from mpload.loader.map_options import MapArguments
from mpload.units import GIB
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


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.new_interpreters
@pytest.mark.filterwarnings("ignore:memory is short")  # which so small a budget may be
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


def test_every_argument_of_a_data_loader_is_accepted() -> None:
    accepted = inspect.signature(MPLoader).parameters.keys() | MapArguments.__annotations__.keys()
    assert not inspect.signature(DataLoader).parameters.keys() - accepted
    with pytest.raises(ArgumentError, match=r"MPLoader has no argument num_worker=: docs/from-dataloader\.md"):
        MPLoader([*range(8)], num_workers=0, num_worker=0)  # type: ignore[call-overload]


def test_positional_arguments_are_shown_with_the_names_that_a_data_loader_gives_them() -> None:
    make: Any = MPLoader
    with pytest.raises(ArgumentError, match=r"but got 3. .*\(dataset, batch_size=32, shuffle=True\)"):
        make([*range(8)], 32, True)

    class Halves(MPLoader[Any]):
        def __init__(self, dataset: Any, batch_size: int) -> None:
            super().__init__(dataset, batch_size=batch_size // 2, num_workers=0)

    assert len(Halves([*range(8)], 4)) == 4


def test_an_attribute_that_only_a_data_loader_has_says_why() -> None:
    with MPLoader([*range(8)], num_workers=0) as loader:
        for name in inspect.signature(DataLoader).parameters:
            if name in {"dataset", "batch_size", "num_workers"}:
                getattr(loader, name)
            elif name != "shuffle":
                with pytest.raises(
                    AttributeError, match=f"does not show its '{name}', because frameworks build another"
                ):
                    getattr(loader, name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sampler", "Keep the sampler that you passed and call its set_epoch, or call set_epoch of the loader"),
        ("batch_sampler", "Keep the sampler that you passed and call its set_epoch, or call set_epoch of the loader"),
        ("drop_last", "Keep the value that you passed"),
        ("collate_fn", "Keep the value that you passed"),
    ],
)
def test_an_attribute_of_a_data_loader_says_what_to_do_instead(name: str, advice: str) -> None:
    with MPLoader([*range(8)], num_workers=0) as loader, pytest.raises(AttributeError, match=advice):
        getattr(loader, name)


def test_the_batch_size_is_none_where_that_of_a_data_loader_is() -> None:
    dataset: Any = [*range(8)]
    options: Any
    for options in (
        {},
        {"batch_size": 3},
        {"batch_size": 3, "sampler": range(4)},
        {"batch_size": None},
        {"batch_size": None, "sampler": range(4)},
        {"batch_sampler": BatchSampler(range(4), 2, drop_last=False)},
    ):
        with MPLoader(dataset, num_workers=0, **options) as loader:
            assert loader.batch_size == DataLoader(dataset, **options).batch_size
    for batch_size in (None, 3):
        dataset = Stream()
        with MPLoader(dataset, num_workers=0, batch_size=batch_size) as loader:
            assert loader.batch_size == batch_size


class Endless(Dataset[int]):
    """Has samples, but no number of them."""

    def __getitem__(self, number: int) -> int:
        return number


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(4)


def test_a_dataset_needs_a_length_only_without_a_sampler() -> None:
    dataset: Any = Endless()
    sampled: list[dict[str, Any]] = [{"sampler": [4, 5, 6], "batch_size": 3}, {"batch_sampler": [[4, 5, 6]]}]
    for options in sampled:
        with MPLoader(dataset, num_workers=0, **options) as loader:
            assert len(loader) == 1
            assert [batch.tolist() for batch in loader] == [[4, 5, 6]]
    with pytest.raises(ArgumentError, match=r"Endless has no __len__, .* or pass sampler= or batch_sampler="):
        MPLoader(dataset, num_workers=0)


def test_a_loader_without_a_length_says_what_lacks_one() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([*range(8)], {"sampler": iter([1])}, "sampler"),
        (Stream(), {}, "dataset"),
    ]
    for dataset, options, what in cases:
        with pytest.raises(TypeError, match=f"the {what} has no length, so the loader of .* has none"):
            len(MPLoader(dataset, num_workers=0, **options))


def test_an_empty_batch_that_fails_is_said_to_have_no_samples() -> None:
    with pytest.raises(IndexError, match="collate_fn on no samples of list"):
        list(MPLoader([*range(8)], num_workers=0, batch_sampler=[[]]))


def test_arguments_without_a_meaning_are_named_in_one_warning() -> None:
    with pytest.warns(MploadWarning, match=r"no use for in_order: .*; pin_memory_device: torch knows") as warned:
        MPLoader([*range(8)], num_workers=0, pin_memory_device="cuda", in_order=False)
    assert len(warned) == 1
    assert warned[0].filename == __file__


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"sampler": [1], "shuffle": True}, r"sampler= and shuffle= contradict each other, got shuffle=True"),
    (
        {"batch_sampler": [[1]], "batch_size": 2},
        r"batch_sampler= and batch_size= contradict each other, got batch_size=2",
    ),
    ({"batch_sampler": [[1]], "sampler": [1]}, r"batch_sampler= and sampler= contradict each other"),
    ({"batch_sampler": [[1]], "drop_last": True}, r"batch_sampler= and drop_last= contradict each other"),
    ({"sampler": [1], "tail": "pad"}, r"sampler= and tail= contradict each other"),
    ({"sampler": [1], "topology": Topology()}, r"sampler= and topology= contradict each other"),
    ({"generator": torch.Generator(), "seed": 3}, r"generator= and seed= contradict each other"),
    ({"batch_size": None, "drop_last": True}, r"drop_last=True needs batches"),
    ({"drop_last": True, "tail": "ragged"}, r"drop_last=True contradicts tail='ragged'"),
    ({"batch_size": 0}, r"batch_size must be at least 1, or None for single samples, got 0"),
    ({"prefetch_factor": 0}, r"prefetch_factor must be at least 1, got 0"),
    ({"timeout": -1}, r"timeout must not be negative, got -1"),
]


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS)
def test_contradicting_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MPLoader([*range(8)], num_workers=0, **options)


@pytest.mark.processes
@pytest.mark.new_interpreters
@pytest.mark.filterwarnings("ignore:memory is short")  # this process takes more with some versions of Python
def test_a_budget_bounds_the_slots(photos: Path) -> None:
    dataset = MPDataset(photos, decode=RandomResizedCrop(224), batch_size=2, topology=Topology())
    with MPLoader(dataset, num_workers=2, memory_budget="34MiB") as loader:
        assert loader._pool is not None
        assert loader._pool.ring.num_slots == 5
        assert len(list(loader)) == len(dataset)


@pytest.mark.slow
@pytest.mark.processes
def test_a_loader_with_workers_is_not_copied_and_one_without_is() -> None:
    dataset: Any = [1, 2, 3]
    with MPLoader(dataset, num_workers=1) as loader:
        for attempt in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="Pass its dataset, and make a loader there"):
                attempt(loader)
        assert copy.copy(loader).num_workers == 1
    with MPLoader(dataset, num_workers=0) as loader:
        assert str(list(pickle.loads(pickle.dumps(loader)))) == str(list(loader))


def test_numbers_of_numpy_are_numbers(folder: Path) -> None:
    plain = numbers(folder, 20, batch_size=4, seed=3)
    of_numpy: Any = {"batch_size": np.int64(4), "seed": np.int32(3)}
    same = numbers(folder, 20, **of_numpy)
    assert same.state_dict() == plain.state_dict()
    none: Any = np.int64(0)
    with MPLoader(same, num_workers=none) as loader:
        assert loader.num_workers == 0


def test_an_mpdataset_that_is_asked_for_a_sample_by_number_names_what_to_use_instead(folder: Path) -> None:
    part, _ = random_split(numbers(folder, 20), [0.5, 0.5])
    with pytest.raises(TypeError, match="pass an index of them: `mpload select`"):
        part[0]


@pytest.mark.processes
@pytest.mark.parametrize(("prefetch_factor", "num_ahead"), [(None, 7), (1, 5), (9, 21)])
def test_prefetch_factor_says_how_many_large_batches_are_made_ahead(
    prefetch_factor: int | None, num_ahead: int
) -> None:
    options: dict[str, Any] = {"num_workers": 2, "collate_fn": list, "prefetch_factor": prefetch_factor}
    with MPLoader(range(8), **options) as loader:
        list(loader)
        assert loader._engine is not None
        governor = loader._engine.governor
        assert governor._reasonable_depth(GIB) == num_ahead == governor._max_depth
