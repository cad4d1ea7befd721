"""The topology is detected in one place, when an iteration begins, from several sources in a fixed order."""

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import DataLoader, Subset, TensorDataset

from mpload import MPLoader, MploadWarning, Topology, detect_topology
from mpload.errors import ArgumentError
from tests.support.batches import ids, numbers, numbers_index
from tests.support.map_styles import Named

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Topology()),
        (TORCHRUN, Topology(rank=3, world_size=8)),
        (SRUN, Topology(rank=2, world_size=4)),
        (MPIRUN, Topology(rank=1, world_size=2)),
        (TORCHRUN | SRUN | MPIRUN, Topology(rank=3, world_size=8)),
        (SRUN | MPIRUN, Topology(rank=1, world_size=2)),  # mpirun starts its helpers with srun
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Topology()),  # a batch script without srun is one process
    ],
)
def test_launchers_are_recognised(environment: dict[str, str], expected: Topology) -> None:
    assert detect_topology(environment) == expected


@pytest.mark.parametrize("environment", [{"RANK": "8", "WORLD_SIZE": "8"}, {"RANK": "x", "WORLD_SIZE": "8"}])
def test_invalid_variables_are_reported(environment: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match=r"RANK=. and WORLD_SIZE=8 do not give a valid rank: .* pass topology="):
        detect_topology(environment)


def test_an_initialised_process_group_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for name, value in TORCHRUN.items():
            monkeypatch.setenv(name, value)
        assert detect_topology() == Topology(rank=0, world_size=1)
    finally:
        dist.destroy_process_group()
    assert detect_topology() == Topology(rank=3, world_size=8)


def loader_of(kind: str, folder: Path) -> Iterable[Any]:
    if kind.startswith("map"):
        return MPLoader(Named(43), batch_size=4, tail="ragged", num_workers=int(kind[-1]))
    dataset = numbers(folder, 43, topology=None, tail="ragged")
    match kind[:-1]:
        case "bare":
            return dataset
        case "stock":
            return DataLoader(dataset, batch_size=None, num_workers=int(kind[-1]))
        case "spawn":
            workers = int(kind[-1])
            return DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context="spawn")
        case _:
            return MPLoader(dataset, num_workers=int(kind[-1]))


def labels_of(batches: Iterable[Any]) -> list[int]:
    return [label for _, labels in batches for label in labels.tolist()]


KINDS = ["bare0", "stock0", "stock1", "spawn1", "loader0", "loader1", "map0", "map1"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_the_rank_is_detected_when_an_iteration_begins_and_must_not_change(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader: Any = loader_of(kind, tmp_path)
    assert len(loader) == 11  # no other rank is visible yet
    if kind == "bare0":
        loader = pickle.loads(pickle.dumps(loader))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    if not kind.startswith("map"):
        monkeypatch.setenv("RANK", "0")
        other = labels_of(numbers(tmp_path, 43, topology=None, tail="ragged"))
        monkeypatch.setenv("RANK", "1")
        assert sorted(labels_of(loader) + other) == list(range(43))
    else:
        assert len(labels_of(loader)) == 20
    assert len(loader) == 6
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ArgumentError, match="was read as rank 1 of 2 before, and is now read as rank 1 of 3"):
        list(loader)
    if isinstance(loader, MPLoader):
        loader.close()


def rank_main(rank: int, dataset: Any, folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    (folder / f"{rank}.json").write_text(json.dumps([labels_of(loader) for _ in range(3)]))
    torch.distributed.barrier()


@pytest.mark.processes
@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ranks_started_by_one_process_split_the_samples_and_count_epochs_separately(
    start_method: str, tmp_path: Path
) -> None:
    dataset = numbers(tmp_path, 43, topology=None, tail="ragged")
    len(dataset)
    start: Any = start_processes
    start(rank_main, args=(dataset, tmp_path), nprocs=2, start_method=start_method)
    of_ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for one, other in zip(*of_ranks, strict=True):
        assert sorted(one + other) == list(range(43))
    assert of_ranks[0][0] != of_ranks[0][1] != of_ranks[0][2]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_len_counts_the_whole_epoch_even_after_a_resume(num_workers: int, tmp_path: Path) -> None:
    numbers_index(tmp_path, 76)
    with MPLoader(numbers(tmp_path, 76), num_workers=num_workers) as loader:
        batches = iter(loader)
        received = ids(next(batches) for _ in range(5))
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert len(loader) == 19
        received += ids(loader)
        assert len(received) == 19
        assert len(ids(loader)) == 19


@pytest.mark.parametrize("options", [{}, {"collate_fn": list}])
def test_a_subset_with_the_share_of_a_rank_is_warned_about_once(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    dataset = TensorDataset(torch.arange(83))
    share, other = Subset(dataset, range(3, 83, 8)), Subset(dataset, range(20))
    with MPLoader(share, num_workers=0, **options) as loader:
        with pytest.warns(MploadWarning, match=r"10 of 83 samples, and there are 8 ranks\. .* topology=") as seen:
            for _ in loader:
                pass
        assert seen[0].filename == __file__
        list(loader)
    for subset, topology in ((share, Topology()), (share, detect_topology()), (other, None)):
        with MPLoader(subset, num_workers=0, topology=topology, **options) as loader:
            list(loader)
