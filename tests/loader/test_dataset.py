"""MPDataset: the same batches everywhere, once per epoch."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from mpload import (
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    Topology,
)
from mpload.errors import ArgumentError
from tests.support.batches import flat, ids, numbers, numbers_index

SLOW_START_METHODS = [pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver")]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_do_not_depend_on_the_number_of_workers(folder: Path, num_workers: int) -> None:
    expected = ids(numbers(folder, 103))
    assert sorted(set(flat(expected))) == list(range(103))
    assert ids(DataLoader(numbers(folder, 103), batch_size=None, num_workers=num_workers)) == expected


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("start_method", ["fork", "spawn", *SLOW_START_METHODS[1:]])
def test_batches_do_not_depend_on_the_start_method(folder: Path, start_method: str) -> None:
    loader = DataLoader(
        numbers(folder, 103), batch_size=None, num_workers=2, multiprocessing_context=start_method
    )  # fmt: skip
    assert ids(loader) == ids(numbers(folder, 103))


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("start_method", ["fork", *SLOW_START_METHODS])
def test_each_iteration_reads_the_next_epoch_with_any_reader(folder: Path, start_method: str, persistent: bool) -> None:
    expected = []
    for epoch in range(3):
        dataset = numbers(folder, 50)
        dataset.set_epoch(epoch)
        expected.append(ids(dataset))
    assert expected[0] != expected[1] != expected[2]
    alone = numbers(folder, 50)
    assert [ids(alone) for _ in range(3)] == expected
    loader = DataLoader(
        numbers(folder, 50),
        batch_size=None,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context=start_method,
    )
    assert [ids(loader) for _ in range(3)] == expected


@pytest.mark.processes
def test_set_epoch_reaches_persistent_workers(folder: Path) -> None:
    dataset = numbers(folder, 50)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    first = ids(loader)
    dataset.set_epoch(7)
    seventh = ids(loader)
    dataset.set_epoch(0)
    assert ids(loader) == first
    alone = numbers(folder, 50)
    alone.set_epoch(7)
    assert ids(alone) == seventh


@pytest.mark.processes
def test_epochs_continue_when_the_number_of_workers_changes(folder: Path) -> None:
    dataset, alone = numbers(folder, 50), numbers(folder, 50)
    for num_workers in (3, 1, 0, 4, 2):
        assert ids(DataLoader(dataset, batch_size=None, num_workers=num_workers)) == ids(alone)


@pytest.mark.processes
@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_samples_form_the_same_batches_with_any_number_of_workers(folder: Path, make: Any, num_workers: int) -> None:
    def loader(dataset: MPDataset, num_workers: int) -> Any:
        return make(dataset, batch_size=4, num_workers=num_workers)

    expected = ids(loader(numbers(folder, 43, batch_size=None), 0))
    dataset = numbers(folder, 43, batch_size=None)
    batches = loader(dataset, num_workers)
    assert len(batches) == len(expected) == 11  # frameworks stop after len(batches)
    assert ids(batches) == expected
    dataset.set_epoch(0)
    received = ids(itertools.islice(batches, 5))
    resumed, state = numbers(folder, 43, batch_size=None), dataset.state_dict(num_batches=20)
    resumed.load_state_dict(state)
    assert received + ids(loader(resumed, num_workers)) == expected


@pytest.mark.processes
def test_single_samples_cover_the_epoch_too(folder: Path) -> None:
    expected = flat(ids(numbers(folder, 600)))
    dataset = numbers(folder, 600, batch_size=None)
    assert len(dataset) == 600
    assert [label for _, label in dataset] == expected
    for num_workers in (1, 3):
        loader = DataLoader(numbers(folder, 600, batch_size=None), batch_size=16, num_workers=num_workers)
        assert sorted(flat(ids(loader))) == list(range(600))
    ranks = [
        [label for _, label in numbers(folder, 7, batch_size=None, tail=tail, topology=Topology(rank=r, world_size=3))]
        for tail in ("pad", "ragged", "drop")
        for r in range(3)
    ]
    assert [len(rank) for rank in ranks] == [3, 3, 3, 3, 2, 2, 2, 2, 2]
    assert sorted(flat(ranks[3:6])) == list(range(7))


WRONG = [
    ({"batch_size": 0}, "batch_size must be at least 1, or None for samples, got 0"),
    ({"batch_size": [2, 4]}, r"samples, got \[2, 4\]\. A list of sizes, .* belongs to Buckets\(batch_size=\.\.\.\)"),
    ({"batch_size": np.array([2, 4])}, r"samples, got array\(\[2, 4\]\)\. A list"),
    ({"shuffle": 3}, r"shuffle must be True, False or an order such as BlockShuffle\(\), got 3"),
    ({"tail": "wrap"}, "tail must be one of 'drop', 'pad', 'ragged', got 'wrap'"),
    ({"seed": -1}, "seed must be an integer in"),
    ({"on_error": "ignore"}, "on_error must be one of raise, skip, substitute, got 'ignore'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_errors_name_wrong_arguments(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        numbers(folder, 10, **options)


@pytest.mark.parametrize("index", [42, None, [1, 2]])
def test_an_index_that_is_neither_a_path_nor_an_index_is_refused(index: Any) -> None:
    with pytest.raises(ArgumentError, match=r"index must be a path, an Index or a Mixture, got .* Make an index with"):
        MPDataset(index)


def test_a_storage_that_cannot_read_is_refused(folder: Path) -> None:
    storage: Any = object()
    with pytest.raises(ArgumentError, match="storage must be a RemoteStorage or have a method read, got <object"):
        MPDataset(numbers_index(folder, 3), batch_size=1, storage=storage)


def test_a_decoder_that_cannot_be_called_is_refused(folder: Path) -> None:
    index = numbers_index(folder, 10)
    with pytest.raises(ArgumentError, match="decode must be callable, got 'rgb'"):
        MPDataset(index, decode="rgb")  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentError, match=r"decode is the class RandomResizedCrop\. Pass an instance: RandomResizedCrop"
    ):
        MPDataset(index, decode=RandomResizedCrop)
    assert MPDataset(index, decode=bytes)  # calling this class decodes the bytes


@pytest.mark.processes
@pytest.mark.parametrize("batch_size", [5, None])
def test_as_dict_yields_dicts_keyed_by_column_name(folder: Path, batch_size: int | None) -> None:
    tuples = list(numbers(folder, 23, batch_size=batch_size))
    dicts = list(numbers(folder, 23, batch_size=batch_size, as_dict=True))
    if batch_size:
        with MPLoader(numbers(folder, 23, batch_size=5, as_dict=True), num_workers=1) as loader:
            dicts += loader
            tuples += tuples
    for named, values in zip(dicts, tuples, strict=True):
        assert list(named) == ["number", "label"]
        assert torch.equal(named["number"], values[0])
        assert np.array_equal(named["label"], values[1])


@pytest.mark.slow
@pytest.mark.processes
def test_a_dataset_can_be_created_in_a_process_forked_after_openmp_started_threads(folder: Path) -> None:
    index = numbers_index(folder, 10)
    script = (
        "import os, signal, sys, torch, mpload\n"
        "torch.set_num_threads(2)\n"
        "torch.ones(1 << 20).add_(1)\n"
        "if os.fork() == 0:\n"
        "    signal.alarm(60)\n"
        "    mpload.MPDataset(sys.argv[1], decode=mpload.RawBytes())\n"
        "    os._exit(0)\n"
        "sys.exit(os.wait()[1])\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(index)], check=False, timeout=100)
    assert done.returncode == 0


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_default_device_does_not_change_batches(folder: Path, num_workers: int) -> None:
    with torch.device("meta"), MPLoader(numbers(folder, 10), num_workers=num_workers) as loader:
        assert ids(loader) == ids(numbers(folder, 10))
