"""A running job takes over appended lines when it is asked to, from the next epoch on, and on all ranks alike."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import DataLoader

from mpload import Balanced, MPLoader, PartialCache, RawBytes, Topology
from mpload.errors import ArgumentError, IndexChangedError, MploadError
from tests.support.batches import flat
from tests.support.growing import HEAD, growing, numbers_in, write_numbers


def is_whole_epoch(batches: list[list[int]], num_samples: int) -> bool:
    return sorted(flat(batches)) == list(range(num_samples))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_follows_at_the_next_epoch_and_not_before_it_is_asked(tmp_path: Path, num_workers: int) -> None:
    path = write_numbers(tmp_path / "train.txt", 50)
    expected = numbers_in(growing(path))
    dataset = growing(path)
    with MPLoader(dataset, num_workers=num_workers) as loader:
        iterator = iter(loader)
        got = numbers_in(itertools.islice(iterator, 3))
        write_numbers(path, 70)
        assert dataset.refresh() == 70
        assert loader.state_dict()["num_samples"] == 50
        state = loader.state_dict()
        assert got + numbers_in(iterator) == expected
        assert (loader.state_dict()["epoch"], loader.state_dict()["num_samples"]) == (1, 70)
        assert len(loader) == 18
        write_numbers(path, 90)
        assert is_whole_epoch(numbers_in(loader), 70)
        assert dataset.refresh() == dataset.refresh() == 90
        assert is_whole_epoch(numbers_in(loader), 90)
        loader.load_state_dict(state)  # of the index two steps ago
        assert got + numbers_in(loader) == expected
        assert is_whole_epoch(numbers_in(loader), 90)


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
def test_the_workers_of_a_data_loader_follow_even_if_they_are_persistent(tmp_path: Path, persistent: bool) -> None:
    path = write_numbers(tmp_path / "train.txt", 50)
    dataset = growing(path)
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    assert is_whole_epoch(numbers_in(loader), 50)
    write_numbers(path, 70)
    assert is_whole_epoch(numbers_in(loader), 50)
    dataset.refresh()
    write_numbers(path, 90)
    assert is_whole_epoch(numbers_in(loader), 70)
    assert dataset.state_dict(num_batches=len(dataset))["num_samples"] == 70


def test_a_refresh_before_the_rest_of_a_restored_epoch_does_not_change_it(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "train.txt", 50)
    dataset = growing(path, shuffle=Balanced())
    expected = numbers_in(growing(path, shuffle=Balanced()))
    got = numbers_in(itertools.islice(dataset, 3))
    resumed = growing(path, shuffle=Balanced())
    resumed.load_state_dict(dataset.state_dict())
    write_numbers(path, 70)
    assert resumed.refresh() == 70
    assert got + numbers_in(resumed) == expected
    assert len(flat(numbers_in(resumed))) == 70


@pytest.mark.processes
def test_workers_that_start_again_in_a_running_job_read_the_old_samples_of_a_longer_index(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "train.txt", 50)
    dataset = growing(path)
    with MPLoader(dataset, num_workers=1) as loader:
        first = numbers_in(loader)
        write_numbers(path, 70)
        loader.release()
        assert is_whole_epoch(numbers_in(loader), 50)
        dataset.set_epoch(0)
        assert numbers_in(loader) == first


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "".join(f"{number}\tother {number}\t{number % 3}\n" for number in range(80)),
        HEAD + "#root elsewhere\n" + "".join(f"{n}\tsample {n}\t{n % 3}\n" for n in range(80)),
        HEAD + "".join(f"{number}\tsample {number}\t{number % 3}\n" for number in range(40)),
    ],
    ids=["other lines", "another root", "fewer lines"],
)
def test_an_index_that_changed_in_another_way_is_refused_and_the_job_goes_on(tmp_path: Path, text: str) -> None:
    path = write_numbers(tmp_path / "train.txt", 50)
    dataset = growing(path)
    (tmp_path / "new").write_text(text)
    (tmp_path / "new").replace(path)
    with pytest.raises(IndexChangedError, match="was changed in another way than by appending lines"):
        dataset.refresh()
    assert is_whole_epoch(numbers_in(dataset), 50)


def test_ranks_that_cannot_ask_each_other_must_name_the_number_of_samples(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "train.txt", 50)
    ranks = [growing(path, topology=Topology(rank=rank, world_size=2)) for rank in range(2)]
    write_numbers(path, 70)
    with pytest.raises(ArgumentError, match=r"by torch\.distributed, which is not initialised\. .*num_samples="):
        ranks[0].refresh()
    assert ranks[0].refresh(num_samples=60) == 60
    write_numbers(path, 80)
    assert ranks[1].refresh(num_samples=60) == 60
    read = [numbers_in(rank) for rank in ranks]
    assert is_whole_epoch(read[0] + read[1], 60)
    assert ranks[0].state_dict() == ranks[1].state_dict()
    with pytest.raises(ArgumentError, match=r"has 60 samples .* already\. It can only grow"):
        ranks[0].refresh(num_samples=59)
    with pytest.raises(ArgumentError, match=r"num_samples=81, but .* has 80 samples\. Wait"):
        ranks[0].refresh(num_samples=81)


def rank_main(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dataset = growing(folder / f"{rank}.txt", topology=None)
    epochs = [numbers_in(dataset)]
    torch.distributed.barrier()
    if rank == 0:
        write_numbers(folder / "0.txt", 71)
        write_numbers(folder / "1.txt", 64)  # not all lines have arrived there
    torch.distributed.barrier()
    found = dataset.refresh()
    epochs += [numbers_in(dataset)]
    state = dataset.state_dict()
    if rank == 0:
        write_numbers(folder / "1.txt", 90)
        text = (folder / "1.txt").read_text().replace("sample 66", "other 66")
        (folder / "1.txt").write_text(text)
    torch.distributed.barrier()
    with pytest.raises(IndexChangedError, match="the ranks see different lines in it, among the first 71"):
        dataset.refresh()
    (folder / f"{rank}.json").write_text(json.dumps({"found": found, "epochs": epochs, "state": state}))
    torch.distributed.barrier()
    (folder / "1.txt").unlink(missing_ok=True)
    torch.distributed.barrier()
    expected = IndexChangedError if rank == 0 else (MploadError, OSError)
    with pytest.raises(expected, match="rank 1 cannot read it again" if rank == 0 else "1.txt"):
        dataset.refresh()
    torch.distributed.barrier()


@pytest.mark.processes
def test_ranks_that_see_the_file_at_different_times_use_the_samples_that_all_of_them_see(tmp_path: Path) -> None:
    for rank in range(2):
        write_numbers(tmp_path / f"{rank}.txt", 50)
    start: Any = start_processes
    start(rank_main, args=(tmp_path,), nprocs=2, start_method="fork")
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert one["found"] == other["found"] == 64
    assert one["state"] == other["state"]
    for num_samples, *epochs in zip((50, 64), one["epochs"], other["epochs"], strict=True):
        assert is_whole_epoch(epochs[0] + epochs[1], num_samples)


def test_a_cache_and_tables_of_the_shorter_index_never_answer_for_the_longer_one(tmp_path: Path) -> None:
    def write(num_files: int) -> Path:
        for number in range(num_files):
            (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
        lines = "".join(f"{number}.bin\t{number}\n" for number in range(num_files))
        (tmp_path / "new").write_text(f"#mpload 1\n#columns file:path label:int\n{lines}")
        return (tmp_path / "new").replace(tmp_path / "train.txt")

    def check(batches: Any) -> int:
        count = 0
        for files, labels in batches:
            assert [int(each) for each in files] == labels.tolist()
            count += len(labels)
        return count

    path = write(20)
    options = {"decode": RawBytes(), "cache": PartialCache(tmp_path / "cache", fraction=1.0, max_bytes="2MiB")}
    dataset = growing(path, **options)
    assert check(dataset) == 20
    check(itertools.islice(dataset, 2))
    state = dataset.state_dict()
    write(50)
    resumed = growing(path, **options)
    resumed.load_state_dict(state)
    hits = resumed._runs.of(resumed._runs.epochs.next).cache
    assert hits is not None
    assert all(map(hits.holds, range(20)))  # those of the shorter index
    assert check(resumed) == 12
    assert check(resumed) == 50
    assert check(resumed) == 50
    assert len([*(tmp_path / "cache").iterdir()]) == 2
