"""All ranks together read an epoch as the tail policy says, also after they resume with other ranks and batches."""

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import (
    BlockShuffle,
    ErrorPolicy,
    MPDataset,
    MPLoader,
    Sequential,
    Shuffle,
    Topology,
)
from tests.support.batches import flat, ids, numbers, numbers_index
from tests.support.decoders import number_in

shuffles = st.sampled_from([False, True, BlockShuffle(block_samples=8, window_blocks=3), Sequential(), Shuffle()])


@pytest.mark.filterwarnings("ignore:.*the epoch has no batch")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_samples=st.sampled_from([1, 2, 3, 31, 32, 33, 64, 65, 100]),
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 9),
    tail=st.sampled_from(["pad", "drop", "ragged"]),
    shuffle=shuffles,
    epoch=st.integers(0, 3),
)
def test_all_ranks_together_cover_an_epoch_as_the_tail_policy_says(
    folder: Path, num_samples: int, world_size: int, batch_size: int, tail: str, shuffle: Any, epoch: int
) -> None:
    ranks = []
    for rank in range(world_size):
        topology = Topology(rank=rank, world_size=world_size)
        options = {"batch_size": batch_size, "tail": tail, "shuffle": shuffle, "topology": topology}
        dataset = numbers(folder, num_samples, **options)
        dataset.set_epoch(epoch)
        expected = len(dataset)
        ranks.append(ids(dataset))
        assert len(ranks[-1]) == expected
    seen = flat([flat(batches) for batches in ranks])
    if tail == "ragged":
        assert sorted(seen) == list(range(num_samples))
    elif tail == "pad":
        assert set(seen) == set(range(num_samples))
        assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
    else:
        assert len(seen) == len(set(seen)) == num_samples // (batch_size * world_size) * batch_size * world_size


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_samples=st.integers(1, 80),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    batch_sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    shuffle=shuffles,
    data=st.data(),
)
def test_resuming_with_any_other_ranks_and_batches_yields_exactly_the_rest(
    folder: Path,
    num_samples: int,
    worlds: tuple[int, int],
    batch_sizes: tuple[int, int],
    shuffle: Any,
    data: st.DataObject,
) -> None:
    def run(world_size: int, batch_size: int, num_batches: int | None, state: Any) -> tuple[list[int], list[Any]]:
        """Read some batches on all ranks; return the sample ids in global order, and the states of the ranks."""
        ranks, states = [], []
        for rank in range(world_size):
            topology = Topology(rank=rank, world_size=world_size)
            dataset = numbers(
                folder, num_samples, topology=topology, batch_size=batch_size, tail="ragged", shuffle=shuffle
            )
            dataset.set_epoch(2)
            if state is not None:
                dataset.load_state_dict(state)
            ranks.append(ids(itertools.islice(dataset, num_batches)))
            states.append(dataset.state_dict())
        return [i for step in zip(*ranks, strict=True) for batch in step for i in batch], states

    whole, _ = run(1, num_samples, None, None)
    probe = numbers(folder, num_samples, topology=Topology(world_size=worlds[0]), batch_size=batch_sizes[0])
    num_batches = data.draw(st.integers(0, len(probe)))
    before, states = run(worlds[0], batch_sizes[0], num_batches, None)
    assert all(state == states[0] for state in states)
    after, _ = run(worlds[1], batch_sizes[1], None, json.loads(json.dumps(states[0])))
    if num_batches == 0:
        before = []
    if len(before) < num_samples:
        assert before + after == whole
    else:
        assert before == whole
        assert states[0]["epoch"] == 3


def test_len_is_the_number_of_samples_or_batches_yielded(folder: Path) -> None:
    for batch_size, tail, rank in itertools.product([None, 3], ["pad", "drop", "ragged"], range(3)):
        topology = Topology(rank=rank, world_size=3)
        dataset = numbers(folder, 31, batch_size=batch_size, tail=tail, topology=topology)
        assert len(dataset) == len(list(dataset))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [None, 0, 1])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_an_empty_batch_has_the_dtype_and_shape_of_the_others(
    folder: Path, num_workers: int | None, shape: tuple[int, ...]
) -> None:
    def decode(data: bytes) -> Any:
        return np.full(shape, number_in(data), np.int32)

    dataset = MPDataset(
        numbers_index(folder, 43), decode=decode, batch_size=4, tail="ragged", topology=Topology(rank=1, world_size=2)
    )
    with contextlib.ExitStack() as opened:
        loader = dataset if num_workers is None else opened.enter_context(MPLoader(dataset, num_workers=num_workers))
        numbers, labels = list(loader)[-1]
    assert (numbers.shape, numbers.dtype) == ((0, *shape), torch.int32)
    assert (labels.shape, labels.dtype) == ((0,), torch.int64)


def test_an_empty_batch_is_made_even_if_the_first_sample_is_bad(folder: Path, tmp_path: Path) -> None:
    def decode(data: bytes) -> Any:
        number = number_in(data)
        if number == 0:
            raise ValueError("bad")
        return number

    dataset = MPDataset(
        numbers_index(folder, 43), decode=decode, batch_size=4, tail="ragged", topology=Topology(rank=1, world_size=2),
        on_error=ErrorPolicy(action="skip", report=tmp_path / "report.jsonl"),
    )  # fmt: skip
    numbers, labels = list(dataset)[-1]
    assert len(numbers) == len(labels) == 0
    assert not (tmp_path / "report.jsonl").exists()
