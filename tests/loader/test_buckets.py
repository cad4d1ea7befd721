"""Batches of samples of similar length, through real workers, ranks, kills and resumed runs."""

import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    ArgumentError,
    Balanced,
    BlockShuffle,
    Buckets,
    Mixture,
    MPDataset,
    MPLoader,
    Pad,
    RawBytes,
    Sequential,
    Shuffle,
    StateError,
    Topology,
    open_index,
)
from mpload.index import bucket_table
from tests.support.transport_kills import kill_a_worker

NUM_SAMPLES = 400
LENGTHS = np.random.default_rng(0).lognormal(4, 0.6, NUM_SAMPLES).astype(int) + 1
EDGES = [40, 60, 100]
BUCKETS = np.searchsorted(EDGES, LENGTHS)
LENGTH_BUCKETS = Buckets(by="length", edges=EDGES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = "".join(f"{number}\t{length}\n" for number, length in enumerate(LENGTHS))
    (tmp_path / "texts.txt").write_text("#mpload 1\n#columns number:int length:int\n" + lines)
    return tmp_path


def numbers(folder: Path, *, rank: int = 0, world_size: int = 1, **options: Any) -> MPDataset[Any]:
    chosen: dict[str, Any] = {"batch_size": 8, "shuffle": True, "tail": "ragged", "buckets": LENGTH_BUCKETS} | options
    return MPDataset(folder / "texts.txt", topology=Topology(rank=rank, world_size=world_size), **chosen)


def ids(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


def flat(batches: Sequence[Sequence[int]]) -> list[int]:
    return [each for batch in batches for each in batch]


def test_every_batch_is_of_one_bucket_and_every_sample_comes_once(folder: Path) -> None:
    dataset = numbers(folder)
    for _ in range(2):
        batches = ids(dataset)
        assert len(batches) == len(dataset) == sum(-(-count // 8) for count in np.bincount(BUCKETS).tolist())
        assert all(len(set(BUCKETS[batch].tolist())) == 1 for batch in batches)
        assert sorted(flat(batches)) == list(range(NUM_SAMPLES))
    assert ids(numbers(folder)) != ids(dataset)  # which is in epoch 2


def test_a_bucket_without_shuffle_goes_through_its_samples_in_order(folder: Path) -> None:
    found = flat(ids(numbers(folder, shuffle=Sequential())))
    for bucket in range(4):
        own = [each for each in found if BUCKETS[each] == bucket]
        assert own == np.flatnonzero(bucket == BUCKETS).tolist()
    shuffled = flat(ids(numbers(folder, shuffle=Shuffle())))
    assert [each for each in shuffled if BUCKETS[each] == 1] != np.flatnonzero(BUCKETS == 1).tolist()


@pytest.mark.processes
@pytest.mark.parametrize("tail", ["drop", "pad", "ragged"])
def test_workers_and_stock_data_loaders_make_the_same_batches(folder: Path, tail: str) -> None:
    expected = ids(numbers(folder, tail=tail))
    for num_workers in (0, 1, 3):
        with MPLoader(numbers(folder, tail=tail), num_workers=num_workers) as loader:
            assert ids(loader) == expected
            assert len(loader) == len(expected)
    for num_workers in (0, 2):
        assert ids(DataLoader(numbers(folder, tail=tail), batch_size=None, num_workers=num_workers)) == expected


@pytest.mark.processes
def test_all_ranks_meet_the_same_bucket_in_each_step(folder: Path) -> None:
    ranks = [ids(numbers(folder, rank=rank, world_size=3)) for rank in range(3)]
    assert len({len(batches) for batches in ranks}) == 1
    for step in zip(*ranks, strict=True):
        assert len(set(BUCKETS[flat(step)].tolist())) == 1
    assert sorted(each for batches in ranks for each in flat(batches)) == list(range(NUM_SAMPLES))
    with MPLoader(numbers(folder, rank=2, world_size=3), num_workers=2) as loader:
        assert ids(loader) == ranks[2]  # with the empty batches at the end
    assert ranks[2][-1] == []


def test_global_batches_do_not_depend_on_how_ranks_divide_them(folder: Path) -> None:
    found = []
    for world_size in (1, 2, 4):
        ranks = [
            ids(numbers(folder, rank=rank, world_size=world_size, batch_size=8 // world_size))
            for rank in range(world_size)
        ]
        found.append([flat(step) for step in zip(*ranks, strict=True)])
    assert found[0] == found[1] == found[2]


def run(dataset: MPDataset[Any], num_batches: int, *, num_workers: int) -> tuple[list[list[int]], dict[str, Any]]:
    """Return some batches of a loader, and its state after them."""
    with MPLoader(dataset, num_workers=num_workers) as loader:
        batches = iter(loader)
        found = [next(batches)[0].tolist() for _ in range(num_batches)]
        return found, loader.state_dict()


@pytest.mark.processes
def test_resumed_run_continues_at_any_batch_with_any_number_of_workers(folder: Path) -> None:
    expected = ids(numbers(folder, tail="pad"))
    for num_batches, num_workers in ((0, 0), (1, 2), (17, 0), (len(expected) - 1, 2), (len(expected), 0)):
        found, state = run(numbers(folder, tail="pad"), num_batches, num_workers=num_workers)
        assert found == expected[:num_batches]
        resumed = numbers(folder, tail="pad", seed=9)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        rest, _ = run(resumed, max(0, len(expected) - num_batches), num_workers=2 - num_workers)
        if num_batches < len(expected):
            assert rest == expected[num_batches:]
        else:
            assert resumed.epoch == 1


@pytest.mark.processes
def test_runs_with_other_numbers_of_ranks_visit_every_sample_once(folder: Path) -> None:
    found: list[int] = []
    state: dict[str, Any] | None = None
    for world_size, num_batches, num_workers in ((4, 5, 0), (3, 4, 2), (4, 2, 0), (1, 10, 2), (5, 1000, 0)):
        states = []
        for rank in range(world_size):
            dataset = numbers(folder, rank=rank, world_size=world_size)
            if state is not None:
                dataset.load_state_dict(state)
            with MPLoader(dataset, num_workers=num_workers) as loader:
                for number, batch in enumerate(loader, 1):
                    found += batch[0].tolist()
                    if number == num_batches:
                        break
                states.append(loader.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        assert len(json.dumps(state)) < 1000
    assert Counter(found) == Counter(range(NUM_SAMPLES))
    assert state is not None
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.processes
def test_persistent_workers_of_a_data_loader_follow_a_restored_state(folder: Path) -> None:
    states = []
    for rank in range(3):
        dataset = numbers(folder, rank=rank, world_size=3)
        iterator = iter(dataset)
        for _ in range(4):
            next(iterator)
        states.append(dataset.state_dict())
    assert states[0] == states[1] == states[2]
    expected_of = numbers(folder)
    expected_of.load_state_dict(states[0])
    expected = ids(expected_of)
    assert len(flat(expected)) == NUM_SAMPLES - 3 * 4 * 8
    dataset = numbers(folder)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    whole = ids(loader)
    dataset.load_state_dict(states[0])
    assert ids(loader) == expected
    dataset.set_epoch(0)
    assert ids(loader) == whole


@pytest.mark.parametrize(
    "changes",
    [
        {"position": 9},
        {"segments": []},
        {"segments": [[8, 1000]]},
        {"segments": [[8, 3], [4, 10**9]]},
        {"segments": [[8, 1, 2]]},
        {"segments": [[8, 1]] * 20},
        {"segments": [["8", 1]]},
    ],
)
def test_damaged_states_are_refused(folder: Path, changes: dict[str, Any]) -> None:
    _, state = run(numbers(folder), 3, num_workers=0)
    numbers(folder).load_state_dict(state)
    with pytest.raises(StateError):
        numbers(folder).load_state_dict(state | changes)


def test_states_of_other_buckets_or_orders_are_refused(folder: Path) -> None:
    _, state = run(numbers(folder), 3, num_workers=0)
    others: list[dict[str, Any]] = [
        {"buckets": Buckets(by="length", edges=[40, 60])},
        {"buckets": Buckets(by="number", num_buckets=4)},
        {"buckets": Buckets(by="length", edges=EDGES, batch_size=[1, 2, 3, 4]), "batch_size": None},
        {"buckets": None},
        {"shuffle": False},
    ]
    for options in others:
        with pytest.raises(StateError, match="buckets="):
            numbers(folder, **options).load_state_dict(state)
    numbers(folder, batch_size=5).load_state_dict(state)


@pytest.mark.processes
def test_cost_of_a_batch_stays_within_its_limit(folder: Path) -> None:
    dataset = numbers(folder, batch_size=None, buckets=Buckets(by="length", edges=EDGES, max_cost=500))
    sizes: dict[int, int] = {}
    for _, lengths in dataset:
        assert len(lengths) * int(lengths.max()) <= 500
        bucket = int(np.searchsorted(EDGES, int(lengths[0])))
        sizes[bucket] = max(sizes.get(bucket, 0), len(lengths))
    largest = [int(LENGTHS[bucket == BUCKETS].max()) for bucket in range(4)]
    assert [sizes[bucket] for bucket in range(4)] == [max(1, 500 // length) for length in largest]
    with MPLoader(dataset, num_workers=2) as loader:
        assert loader.batch_size == dataset.batch_size == 500 // largest[0]
        assert sorted(flat(ids(loader))) == list(range(NUM_SAMPLES))
    assert f"{500 // largest[3]} to {500 // largest[0]}, by bucket" in repr(dataset)


def test_list_of_batch_sizes_has_one_for_each_bucket(folder: Path) -> None:
    dataset = numbers(folder, batch_size=None, buckets=Buckets(by="length", edges=EDGES, batch_size=[8, 4, 2, 1]))
    for batch in ids(dataset):
        assert len(batch) <= [8, 4, 2, 1][BUCKETS[batch[0]]]
    with pytest.raises(ArgumentError, match="2 numbers, but there are 4 buckets"):
        numbers(folder, batch_size=None, buckets=Buckets(by="length", edges=EDGES, batch_size=[8, 4]))


def test_few_values_make_few_buckets(folder: Path) -> None:
    (folder / "few.txt").write_text("#mpload 1\n#columns n:int\n" + "5\n7\n7\n" * 4)
    dataset = MPDataset(folder / "few.txt", buckets=Buckets(by="n"), batch_size=4, tail="ragged")
    assert sorted(batch.tolist() for batch in dataset) == [[5] * 4, [7] * 4, [7] * 4]


def test_a_table_is_made_once_and_made_again_when_it_is_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids(numbers(folder))
    (table,) = folder.glob("*.mpb")
    before = table.stat().st_mtime_ns
    assert table.stat().st_size == 2**15 + 4 * NUM_SAMPLES
    assert ids(numbers(folder)) == expected
    assert table.stat().st_mtime_ns == before
    table.write_bytes(table.read_bytes()[:-1])
    assert ids(numbers(folder)) == expected
    assert table.stat().st_mtime_ns > before
    for head in (b"{}", b"[]", b"null", b'{"counts": 3}', b"[" * 2**15, b"no JSON"):
        table.write_bytes(head.ljust(2**15) + table.read_bytes()[2**15 :])
        assert ids(numbers(folder)) == expected
    table.write_bytes(table.read_bytes()[: 2**15] + bytes(4 * NUM_SAMPLES))
    assert ids(numbers(folder)) == expected
    table.unlink()
    monkeypatch.setattr(bucket_table, "_MAX_SHORT", 10)  # rows of 8 bytes
    assert ids(numbers(folder)) == expected
    assert table.stat().st_size == 2**15 + 8 * NUM_SAMPLES


def test_a_table_goes_to_the_cache_folder_if_the_index_folder_is_read_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_index(folder / "texts.txt")
    opened = Path.open

    def refusing(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.parent == folder and ".mpb" in path.name:
            raise PermissionError(13, "read-only")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    assert sorted(flat(ids(numbers(folder)))) == list(range(NUM_SAMPLES))
    assert len([*(platformdirs.user_cache_path("mpload") / "buckets").iterdir()]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": None}, "pass batch_size="),
        ({"buckets": Buckets(by="length", batch_size=3)}, "not to both"),
        ({"buckets": Buckets(by="size")}, "no such column"),
        ({"buckets": Buckets(by="nbytes")}, "--stat"),
        ({"buckets": Buckets(by="aspect", area=4096)}, "--image-sizes"),
        ({"buckets": 3}, "must be Buckets"),
        ({"epoch_samples": 9}, "epoch_samples cannot be combined"),
        ({"shuffle": BlockShuffle(block_samples=4, window_blocks=2)}, "cannot be combined"),
        ({"shuffle": Balanced("number")}, "cannot be combined"),
        ({"batch_size": None, "buckets": Buckets(by="number", max_cost=5, num_buckets=1)}, None),
    ],
)  # fmt: skip
def test_what_cannot_be_bucketed_is_refused(folder: Path, options: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert numbers(folder, **options).batch_size == 1
        return
    with pytest.raises(ArgumentError, match=message):
        numbers(folder, **options)


def test_mixtures_have_no_buckets(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="not for a mixture"):
        MPDataset(Mixture({folder / "texts.txt": 1.0}), batch_size=2, buckets=LENGTH_BUCKETS)


def test_growth_of_the_index_is_refused(folder: Path) -> None:
    dataset = numbers(folder)
    _, state = run(numbers(folder), 3, num_workers=0)
    with (folder / "texts.txt").open("a") as text:
        text.write("400\t50\n")
    with pytest.raises(ArgumentError, match="buckets cannot take over lines"):
        dataset.refresh()
    with pytest.raises(StateError, match="another index"):
        numbers(folder).load_state_dict(state)


def test_values_that_are_no_numbers_are_refused(folder: Path) -> None:
    (folder / "bad.txt").write_text("#mpload 1\n#columns n:float\n1.0\nnan\n")
    with pytest.raises(ArgumentError, match=r"bad.txt:4: column n must be a finite number"):
        MPDataset(folder / "bad.txt", batch_size=2, buckets=Buckets(by="n"))


def test_memory_does_not_grow_with_the_samples(folder: Path) -> None:
    def peak_bytes(num_samples: int) -> int:
        path = folder / f"{num_samples}.txt"
        path.write_text("#mpload 1\n#columns n:int\n" + "".join(f"{n * 7919 % 5000}\n" for n in range(num_samples)))
        index = open_index(path)
        tracemalloc.start()
        buckets = Buckets(by="n", edges=list(range(100, 4000, 100)))
        dataset: Any = MPDataset(index, batch_size=64, shuffle=True, buckets=buckets)
        batches = iter(dataset)
        for _ in range(20):
            next(batches)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(100_000)
    assert peak_bytes(600_000) < peak_bytes(150_000) + 2**19  # the rows alone have 2.4 MB


@pytest.mark.processes
def test_killed_workers_lose_and_repeat_no_sample(folder: Path) -> None:
    expected = ids(numbers(folder, tail="pad"))
    found = []
    with MPLoader(numbers(folder, tail="pad"), num_workers=2) as loader:
        for number, batch in enumerate(loader):
            found.append(batch[0].tolist())
            if number in (3, 20):
                kill_a_worker(loader.pids)
    assert found == expected


@pytest.mark.processes
def test_padding_is_small(folder: Path) -> None:
    (folder / "files").mkdir()
    lines = []
    for number, length in enumerate(LENGTHS.tolist()):
        (folder / "files" / f"{number}.bin").write_bytes(bytes([1]) * length)
        lines.append(f"files/{number}.bin\t{length}\n")
    (folder / "files.txt").write_text("#mpload 1\n#columns data:path length:int\n" + "".join(lines))

    def padding(num_workers: int, **options: Any) -> float:
        dataset: Any = MPDataset(
            folder / "files.txt",
            decode=RawBytes(as_array=True),
            collate=Pad(0),
            batch_size=8,
            shuffle=True,
            tail="ragged",
            **options,
        )
        with MPLoader(dataset, num_workers=num_workers) as loader:
            batches = [data for data, _ in loader]
        assert all(isinstance(batch, torch.Tensor) for batch in batches)
        assert sum(int(batch.sum()) for batch in batches) == LENGTHS.sum()
        return float(1 - LENGTHS.sum() / sum(batch.numel() for batch in batches))

    assert padding(0) > 0.3
    assert padding(0, buckets=Buckets(by="length", num_buckets=16)) < 0.06
    assert padding(2, buckets=Buckets(by="length", num_buckets=16)) < 0.06


def test_a_dataset_with_buckets_is_pickled_without_its_rows(folder: Path) -> None:
    dataset = numbers(folder)
    expected = ids(dataset)
    pickled = pickle.dumps(numbers(folder))
    assert len(pickled) < len(pickle.dumps(numbers(folder, buckets=None))) + 2000
    assert ids(pickle.loads(pickled)) == expected
