"""An epoch ends over the samples that it began with, however the index grows; later epochs go over all samples."""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from mpload import (
    Balanced,
    BlockShuffle,
    Buckets,
    Mixture,
    MPDataset,
    MPLoader,
    Sequential,
    Shuffle,
    Topology,
    Weighted,
)
from mpload.errors import ArgumentError, StateError
from tests.support.batches import flat
from tests.support.growing import HEAD, growing, line, numbers_in, write_numbers

shuffles = st.sampled_from(
    [Sequential(), Shuffle(), BlockShuffle(block_samples=8, window_blocks=3), Balanced(), Weighted("id")]
)


class Job:
    """A job of some ranks, which stops after some batches or at the end of the epoch."""

    def __init__(self, path: Path, *, world_size: int, state: Any = None, **options: Any) -> None:
        self.world_size = world_size
        ranks = [Topology(rank=rank, world_size=world_size) for rank in range(world_size)]
        self.datasets = [growing(path, topology=topology, **options) for topology in ranks]
        for dataset in self.datasets:
            if state:
                dataset.load_state_dict(json.loads(json.dumps(state)))
        assert len({len(dataset) for dataset in self.datasets}) == 1

    def read(self, num_batches: int | None = None) -> list[int]:
        """Read batches on all ranks, and return their numbers in the order of the epoch."""
        ranks = [numbers_in(itertools.islice(dataset, num_batches)) for dataset in self.datasets]
        return flat([flat(list(batches)) for batches in zip(*ranks, strict=True)])

    def state(self) -> dict[str, Any]:
        states = [dataset.state_dict() for dataset in self.datasets]
        assert all(state == states[0] for state in states)
        assert len(json.dumps(states[0])) <= 1024
        return states[0]


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(2, 60), min_size=3, max_size=3, unique=True).map(sorted),
    worlds=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    batch_sizes=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    shuffle=shuffles,
    kills=st.tuples(st.integers(1, 8), st.integers(0, 8)),
    epoch=st.integers(0, 2),
)
def test_an_epoch_killed_twice_while_the_index_grows_is_that_of_a_run_never_killed(
    tmp_path: Path,
    lengths: list[int],
    worlds: list[int],
    batch_sizes: list[int],
    shuffle: Any,
    kills: tuple[int, int],
    epoch: int,
) -> None:
    path = write_numbers(tmp_path / "train.txt", lengths[0])
    whole = Job(path, world_size=1, batch_size=1, shuffle=shuffle)
    for dataset in whole.datasets:
        dataset.set_epoch(epoch)
    expected = whole.read()
    got: list[int] = []
    state: dict[str, Any] = {}
    for length, world_size, batch_size, num_batches in zip(lengths, worlds, batch_sizes, (*kills, None), strict=True):
        write_numbers(path, length)
        job = Job(path, world_size=world_size, batch_size=batch_size, shuffle=shuffle, state=state)
        for dataset in job.datasets:
            dataset.set_epoch(epoch)  # which keeps the position of a state
        got += job.read(num_batches)
        state = job.state()
        if state["epoch"] != epoch:
            break
    assert got == expected
    write_numbers(path, lengths[-1])
    following = Job(path, world_size=worlds[0], batch_size=batch_sizes[0], shuffle=shuffle, state=state)
    later = following.read()
    assert len(later) == lengths[-1]
    if not isinstance(shuffle, Balanced | Weighted):
        assert sorted(later) == list(range(lengths[-1]))


def finish(path: Path, kind: str, state: Any) -> list[list[list[int]]]:
    """Restore a state, and read the rest of its epoch and the next one in a process of the given kind."""
    dataset = growing(path)
    if kind in {"loader", "here"}:
        with MPLoader(dataset, num_workers=2 if kind == "loader" else 0) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            rest = numbers_in(loader)
            assert loader.state_dict()["num_samples"] == len(dataset.index)
            return [rest, numbers_in(loader)]
    dataset.load_state_dict(state)
    batches: Any = DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        persistent_workers=kind == "persistent",
        multiprocessing_context="spawn" if kind == "spawned" else None,
    )
    return [numbers_in(batches), numbers_in(batches)]


@pytest.mark.processes
@pytest.mark.parametrize(
    "kind", ["loader", "here", "forked", "persistent", pytest.param("spawned", marks=pytest.mark.slow)]
)
def test_workers_of_every_kind_end_the_epoch_over_the_old_samples_and_begin_the_next_with_all(
    tmp_path: Path, kind: str
) -> None:
    path = write_numbers(tmp_path / "train.txt", 90)
    dataset = growing(path)
    expected = numbers_in(growing(path))
    got = numbers_in(itertools.islice(dataset, 10))
    state = dataset.state_dict()
    write_numbers(path, 131)
    rest, following = finish(path, kind, state)
    assert got + rest == expected
    assert sorted(flat(following)) == list(range(131))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_of_a_stateful_data_loader_survives_growth(tmp_path: Path, num_workers: int) -> None:
    path = write_numbers(tmp_path / "train.txt", 90)

    def loader() -> "StatefulDataLoader[Any]":
        return StatefulDataLoader(growing(path), batch_size=None, num_workers=num_workers)

    expected = numbers_in(loader())
    saving = loader()
    iterator = iter(saving)
    got = numbers_in(itertools.islice(iterator, 7))
    state = pickle.loads(pickle.dumps(saving.state_dict()))
    del iterator
    write_numbers(path, 131)
    resumed = loader()
    resumed.load_state_dict(state)
    assert got + numbers_in(resumed) == expected
    assert sorted(flat(numbers_in(resumed))) == list(range(131))


def test_the_index_may_lack_its_last_newline_and_gain_classes_and_comments_of_its_head_may_change(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.txt"
    path.write_text(HEAD + "".join(map(line, range(20))).removesuffix("\n"))
    dataset = growing(path)
    expected = numbers_in(growing(path))
    got = numbers_in(itertools.islice(dataset, 2))
    write_numbers(path, 30, head=HEAD + "#classes a\tb\tc\td\n#root .\n")
    resumed = growing(path)
    resumed.load_state_dict(dataset.state_dict())
    assert resumed.state_dict() == dataset.state_dict()
    assert got + numbers_in(resumed) == expected
    write_numbers(path, 20)
    resumed = growing(path)
    resumed.load_state_dict(dataset.state_dict())  # only the newline was added
    assert got + numbers_in(resumed) == expected


def test_a_plain_list_with_carriage_returns_may_grow(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    rows = ["path,label", *(f"{number}.jpg,{number}" for number in range(30))]

    def labels(dataset: MPDataset[Any]) -> list[int]:
        order = dataset._run.order_of(dataset._runs.epochs.next)
        found: list[int] = dataset.index.labels[order.sample_ids(np.arange(len(dataset.index)))].tolist()
        return found

    path.write_bytes("\r\n".join(rows[:21]).encode())
    dataset = MPDataset(path, shuffle=True, batch_size=4, topology=Topology())
    state = dataset.state_dict() | {"position": 4}
    expected = labels(dataset)
    path.write_bytes("\r\n".join(rows).encode())
    resumed = MPDataset(path, shuffle=True, batch_size=4, topology=Topology())
    resumed.load_state_dict(state)
    older = resumed._runs.of(resumed._runs.epochs.next)
    assert older.index.labels[older.order_of(resumed._runs.epochs.next).sample_ids(np.arange(20))].tolist() == expected
    assert len(older.index.labels) == 20
    assert len(resumed.index) == 30


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sample 3", "sample x"),
        (line(0), ""),
        (line(19), line(19).replace("\t1\n", "\t0\n")),
        (line(5), line(5) + line(5)),
        ("id:int text", "id:int words"),
    ],
)
def test_a_state_of_an_index_whose_old_lines_changed_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = write_numbers(tmp_path / "train.txt", 20)
    state = growing(path).state_dict() | {"position": 8}
    write_numbers(path, 30)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(StateError, match=r"made with another index.* Lines may only be appended"):
        growing(path).load_state_dict(state)
    write_numbers(path, 19)
    with pytest.raises(StateError, match="made with another index"):
        growing(path).load_state_dict(state)


def test_a_state_of_an_older_version_fits_its_index_but_not_a_longer_one(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "train.txt", 20)
    state = growing(path).state_dict() | {"position": 8}
    del state["num_samples"]
    growing(path).load_state_dict(state)
    write_numbers(path, 30)
    with pytest.raises(StateError, match="made with another index"):
        growing(path).load_state_dict(state)


def test_weights_in_a_file_may_grow_with_the_index(tmp_path: Path) -> None:
    path, weights = write_numbers(tmp_path / "train.txt", 40), tmp_path / "weights.npy"
    np.save(weights, np.arange(40.0))
    expected = numbers_in(growing(path, shuffle=Weighted(weights)))
    dataset = growing(path, shuffle=Weighted(weights))
    got = numbers_in(itertools.islice(dataset, 3))
    write_numbers(path, 60)
    np.save(weights, np.arange(60.0))
    resumed = growing(path, shuffle=Weighted(weights))
    resumed.load_state_dict(dataset.state_dict())
    assert got + numbers_in(resumed) == expected
    assert len(flat(numbers_in(resumed))) == 60


def test_a_mixture_refuses_a_state_of_shorter_sources_and_does_not_follow_them(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "train.txt", 20)
    dataset = growing(Mixture({path: 1.0}))
    state = dataset.state_dict() | {"position": 8}
    write_numbers(path, 30)
    with pytest.raises(ArgumentError, match="a mixture cannot take over lines"):
        dataset.refresh()
    with pytest.raises(StateError, match="not to one of a mixture"):
        growing(Mixture({path: 1.0})).load_state_dict(state)


def test_a_state_of_a_shorter_index_with_buckets_is_refused_with_the_reason(tmp_path: Path) -> None:
    path, buckets = write_numbers(tmp_path / "train.txt", 20), Buckets(by="id", edges=[10])
    dataset = growing(path, buckets=buckets)
    next(iter(dataset))
    write_numbers(path, 30)
    with pytest.raises(StateError, match=r"Lines may only be appended .* not to one of a mixture or with buckets"):
        growing(path, buckets=buckets).load_state_dict(dataset.state_dict())
