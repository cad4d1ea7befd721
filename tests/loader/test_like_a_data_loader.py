"""What PyTorch's own tests ask of a DataLoader, asked of an MPLoader: `tests.support.torch_yardstick` runs those."""

import errno
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper

from mpload import ArgumentError, MPLoader, MploadWarning, WorkerError
from tests.support.map_styles import Broken, Counted, Tuples
from tests.support.streams_of_users import Counting, Sharded
from tests.support.whole_batches import AllAtOnce, Listed, Meeting, same

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]

TENSORS = TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20))
HUGE = [2**63 - 1, 2**62]
CALLS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "in order": lambda: (TENSORS, {}),
    "in batches": lambda: (TENSORS, {"batch_size": 3}),
    "without the rest": lambda: (TENSORS, {"batch_size": 3, "drop_last": True}),
    "samples": lambda: (TENSORS, {"batch_size": None}),
    "concatenated": lambda: (ConcatDataset([TENSORS, Subset(TENSORS, [3, 1])]), {"batch_size": 5}),
    "stacked": lambda: (StackDataset(x=TENSORS, y=Subset(TENSORS, range(20))), {"batch_size": 4}),
    "sampler": lambda: (TENSORS, {"batch_size": 4, "sampler": SequentialSampler(range(7))}),
    "batch sampler": lambda: (TENSORS, {"batch_sampler": BatchSampler(SequentialSampler(range(7)), 3, False)}),
    "lists of indices": lambda: (AllAtOnce(), {"batch_size": None, "sampler": [[1, 2], [3]]}),
    "huge indices": lambda: (Listed(), {"batch_size": 2, "sampler": HUGE, "collate_fn": list}),
    "random with replacement": lambda: (
        TENSORS,
        {"sampler": RandomSampler(TENSORS, replacement=True, num_samples=9, generator=torch.Generator())},
    ),
    "memoryviews": lambda: ([memoryview(bytes([number, 7])) for number in range(4)], {"batch_size": 2}),
    "memoryviews one by one": lambda: ([memoryview(bytes([number, 7])) for number in range(4)], {"batch_size": None}),
    "collections": lambda: (Listed(), {"batch_size": 5}),
    "an iterable dataset": lambda: (Counting(), {"batch_size": 4}),
    "a chain": lambda: (ChainDataset([Counting(), Counting(3)]), {"batch_size": 4}),
    "DataPipe": lambda: (IterableWrapper(range(9)).sharding_filter(), {"batch_size": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_gives_the_batches_of_a_data_loader(call: str, num_workers: int) -> None:
    dataset, options = CALLS[call]()
    theirs = DataLoader(dataset, **options)
    expected, length = list(theirs), _length_of(theirs)
    dataset, options = CALLS[call]()
    if options.get("batch_size", 1) is not None and "batch_sampler" not in options:
        options.setdefault("drop_last", False)
    with loader(dataset, num_workers=num_workers, **options) as ours:
        assert same(list(ours), expected)
        assert _length_of(ours) == length


def loader(dataset: Any, **options: Any) -> MPLoader[Any]:
    return MPLoader(dataset, **{"multiprocessing_context": "fork"} | options)


def _length_of(batches: Any) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None


@pytest.mark.parametrize("batch_size", [1, 2])
def test_all_workers_work_at_the_same_time_from_the_first_batch_on(batch_size: int) -> None:
    dataset = Meeting(num_workers=4, batch_size=batch_size)
    with loader(dataset, batch_size=batch_size, num_workers=4) as batches:
        met = torch.cat([batch.flatten() for batch in batches])
    assert len(set(met.tolist())) == 4


def test_several_loaders_and_iterations_do_not_disturb_each_other() -> None:
    with loader(TENSORS, batch_size=2, num_workers=1) as one, loader([*range(20)], num_workers=1) as other:
        iteration = iter(other)
        for batch in one:
            assert int(next(iteration)) == int(batch[1][0]) // 2
        assert len([*iteration]) == 10


def test_worker_init_fn_may_choose_the_cores() -> None:
    core = max(os.sched_getaffinity(0))

    class Cores(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, _: int) -> int:
            return len(os.sched_getaffinity(0)) * 1000 + max(os.sched_getaffinity(0))

    with loader(Cores(), num_workers=2, worker_init_fn=lambda _: os.sched_setaffinity(0, [core])) as batches:
        assert {int(batch) for batch in batches} == {1000 + core}


def test_workers_that_persist_keep_the_dataset_that_they_have() -> None:
    dataset = Listed()
    with loader(dataset, batch_size=None, num_workers=1, persistent_workers=True) as batches:
        dataset.factor = 3  # before the first iteration
        first = [sample["number"] for sample in batches]
        dataset.factor = 5
        assert [sample["number"] for sample in batches] == first == [3 * number for number in range(20)]


def test_a_length_that_is_exceeded_is_warned_about() -> None:
    class Alike(Sharded):
        def __iter__(self) -> Any:
            yield from range(self.num_samples)

    with loader(Alike(6), num_workers=2) as batches:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sum(1 for _ in batches) == 12
        assert len(batches) == 6
        with pytest.warns(MploadWarning, match=r"Alike has a length of 6, but \d+ samples have been fetched"):
            list(batches)
    assert get_worker_info() is None


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_shuffled_data_pipe_yields_each_sample_once_in_an_order_of_seed_and_epoch(num_workers: int) -> None:
    def epochs(seed: int) -> list[list[int]]:
        pipe = IterableWrapper(range(40)).shuffle(buffer_size=20).sharding_filter()
        with loader(pipe, batch_size=None, shuffle=True, seed=seed, num_workers=num_workers) as batches:
            return [list(batches), list(batches)]

    first, second = epochs(1)
    assert sorted(first) == sorted(second) == list(range(40))
    if num_workers < 2:  # otherwise batches of the workers come as they are made
        assert first != second
        assert epochs(1) == [first, second]
        assert epochs(2)[0] != first


@pytest.mark.parametrize(
    "name",
    ["batch_size", "sampler", "batch_sampler", "drop_last", "dataset", "collate_fn", "worker_init_fn", "generator"],
)
def test_what_a_loader_was_made_with_cannot_be_changed(name: str) -> None:
    batches = loader(Tuples(), num_workers=0)
    with pytest.raises(ArgumentError, match=f"{name} of an MPLoader cannot be changed") as raised:
        setattr(batches, name, {})
    assert isinstance(raised.value, ValueError)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pin_memory_without_an_accelerator_is_warned_about() -> None:
    with pytest.warns(MploadWarning, match="pin_memory=True has no effect, since there is no accelerator"):
        batches = loader(Tuples(), num_workers=0, pin_memory=True)
    assert len(list(batches)) == 23


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_page_locked_if_that_is_asked_for(num_workers: int) -> None:
    with loader(TENSORS, batch_size=4, pin_memory=True, num_workers=num_workers) as batches:
        received = list(batches)
    assert all(tensor.is_pinned() for batch in received for tensor in batch)
    assert torch.equal(torch.cat([batch[1] for batch in received]), torch.arange(20))


def test_read_only_arrays_of_a_sample_can_be_written_to_in_a_batch() -> None:
    arrays: Any = [np.frombuffer(bytes([number, 7]), np.uint8) for number in range(4)]
    for make in (loader, DataLoader):
        for batch in make(arrays, batch_size=2, num_workers=1, collate_fn=list):
            batch[0] += 1


@pytest.mark.parametrize("sample", [2, 14])  # in a batch of an unknown form, and in a later one
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_that_fails_is_asked_for_once(sample: int, num_workers: int, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class FailsOnce(Counted):
        def __getitem__(self, i: int) -> int:
            has_failed = f"{sample}\n" in log.read_text() if log.exists() else False
            super().__getitem__(i)
            if i == sample and not has_failed:
                raise KeyError("only the first time")
            return i

    with (
        loader(FailsOnce(log), batch_size=4, num_workers=num_workers) as batches,
        pytest.raises(KeyError, match="only the first time") as raised,
    ):
        list(batches)
    assert log.read_text().splitlines().count(str(sample)) == 1
    assert "During handling" not in "".join(format_exception(raised.value))


@pytest.mark.parametrize("options", [{}, {"collate_fn": list}])
def test_an_error_with_a_long_text_is_of_the_class_of_the_datasets_error(options: dict[str, Any]) -> None:
    class Wordy(Tuples):
        def __getitem__(self, _: int) -> Any:
            raise UnicodeError("x" * 100_000)

    with loader(Wordy(), batch_size=4, num_workers=1, **options) as batches, pytest.raises(UnicodeError, match="xxx"):
        next(iter(batches))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("dataset", [TENSORS, Counting()])
def test_an_error_in_worker_init_fn_is_of_its_own_class_too(dataset: Any, method: str) -> None:
    def without_data(_: int) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such folder", "/data")

    with (
        pytest.raises(WorkerError, match=r"worker 0 cannot prepare for its work: FileNotFoundError: .*") as raised,
        loader(dataset, num_workers=1, worker_init_fn=without_data, multiprocessing_context=method) as batches,
    ):
        next(iter(batches))
    assert isinstance(raised.value, FileNotFoundError)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, "/data")
    assert type(pickle.loads(pickle.dumps(raised.value))) is WorkerError


def test_an_error_is_of_the_class_of_the_datasets_error() -> None:
    with loader(Broken(), batch_size=23, num_workers=1) as batches, pytest.raises(KeyError):
        next(iter(batches))
