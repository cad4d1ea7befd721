"""Ranks on the same machine share its cores and its memory."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.loader.engine import WorkerRange
from mpload.loader.machine_share import LocalRanks, detect_share, local_ranks
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES, MemoryBudget
from mpload.memory.machine import num_usable_cores
from mpload.transport.board import MAX_WORKERS
from mpload.units import GIB

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
LOCAL_TORCHRUN = TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}
LOCAL_SRUN = SRUN | {"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_CPUS_ON_NODE": "64", "SLURM_NODEID": "1"}
LOCAL_MPIRUN = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
LIGHTNING = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "count", "cores"),
    [
        ({}, 1, 80),
        (LOCAL_TORCHRUN, 8, 32),
        (LOCAL_SRUN, 8, 64),
        (LOCAL_SRUN | {"SLURM_NODEID": "2"}, 4, 64),
        (LOCAL_SRUN | {"SLURM_NODEID": "3"}, 1, 80),  # there is no such node
        (LOCAL_MPIRUN, 4, 96),
        (LIGHTNING, 2, 32),
        (LIGHTNING | {"MASTER_ADDR": "localhost"}, 2, 32),
        (LIGHTNING | {"MASTER_ADDR": "10.0.0.1"}, 1, 80),  # the other rank may be anywhere
        (LOCAL_SRUN | LOCAL_TORCHRUN, 8, 32),  # srun started torchrun
        (LOCAL_SRUN | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"} | LOCAL_MPIRUN, 4, 96),  # srun started mpirun's helper
        (LOCAL_SRUN | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"} | LIGHTNING, 2, 32),  # a shell by srun --pty
        (LOCAL_TORCHRUN | LIGHTNING | {"LOCAL_WORLD_SIZE": "1"}, 1, 32),  # one container per rank
        (LOCAL_TORCHRUN | {"LOCAL_WORLD_SIZE": "many"}, 1, 80),
        ({"SLURM_NTASKS_PER_NODE": "8", "SLURM_PROCID": "0"}, 1, 80),  # a batch script without srun is one process
    ],
)
def test_local_ranks_and_their_cores_are_detected(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int, cores: int
) -> None:
    monkeypatch.setattr("mpload.loader.machine_share.num_usable_cores", lambda of=80: min(of, 96))
    assert local_ranks(environment, machine_cores=96, parent_cores=32) == LocalRanks(
        count=count, num_common_cores=cores
    )


@pytest.mark.parametrize(
    ("usable", "common", "count", "cores"),
    [
        (96, 96, 1, 96),
        (96, 96, 8, 12),  # no rank is bound
        (12, 96, 8, 12),  # each rank is bound to its own cores
        (48, 96, 8, 12),  # four ranks are bound to each socket
        (6, 96, 8, 6),  # bound to fewer cores than there are
        (8, 8, 8, 1),  # a container of eight cores
        (2, 2, 8, 1),
    ],
)
def test_cores_are_divided_among_the_ranks_only_once(usable: int, common: int, count: int, cores: int) -> None:
    assert LocalRanks(count=count, num_common_cores=common).cores_of_one(usable) == cores


def test_a_quota_is_shared_by_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.loader.machine_share.num_usable_cores", lambda of=96: min(of, 16))
    ranks = local_ranks(LOCAL_TORCHRUN, machine_cores=96, parent_cores=96)
    assert ranks.cores_of_one(num_usable=16) == 2


@pytest.mark.parametrize(("cores", "initial", "limit"), [(1, 1, 64), (12, 12, 64), (96, 96, 192), (384, 256, 256)])
def test_auto_starts_one_worker_per_core_up_to_the_maximum(cores: int, initial: int, limit: int) -> None:
    budget = MemoryBudget(total_bytes=512 * GIB)
    found = WorkerRange.auto(budget, num_cores=cores, least_slots_bytes=0)
    assert found == WorkerRange(initial=initial, limit=limit)
    assert limit <= MAX_WORKERS


@given(st.integers(1, 400), st.integers(0, 64 * GIB))
def test_workers_beyond_one_per_core_take_at_most_half_of_the_budget(cores: int, total_bytes: int) -> None:
    found = WorkerRange.auto(MemoryBudget(total_bytes=total_bytes), num_cores=cores, least_slots_bytes=0)
    assert 1 <= found.initial <= found.limit <= MAX_WORKERS
    assert found.initial <= cores
    if found.limit > found.initial:
        assert found.limit * WORKER_BYTES <= total_bytes // 2


def test_auto_stays_within_the_budget_on_many_cores() -> None:
    slot_bytes = 38 * 10**6
    budget = MemoryBudget(total_bytes=MIN_SLOTS * slot_bytes + 40 * WORKER_BYTES)
    assert WorkerRange.auto(budget, num_cores=384, least_slots_bytes=MIN_SLOTS * slot_bytes).initial == 40


def test_a_single_process_has_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LOCAL_TORCHRUN, *LOCAL_SRUN, *LOCAL_MPIRUN, *LIGHTNING):
        monkeypatch.delenv(name, raising=False)
    assert detect_share().num_cores == num_usable_cores()
    all_bytes = detect_share().memory_bytes
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert detect_share().num_cores == max(1, num_usable_cores() // 8)
    assert detect_share().memory_bytes == pytest.approx(all_bytes / 8, rel=0.2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
def test_ranks_of_torchrun_share_cores_and_memory(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    (tmp_path / "train.txt").write_text("".join(f"{number}.bin\t{number}\n" for number in range(8)))
    (tmp_path / "train.py").write_text(
        textwrap.dedent(f"""
        import json, os
        from mpload import MPDataset, MPLoader, RawBytes

        with MPLoader(MPDataset({str(tmp_path / "train.txt")!r}, decode=RawBytes(), batch_size=2)) as loader:
            found = [len(list(loader)), loader.num_workers, loader.memory_budget.total_bytes]
            open({str(tmp_path)!r} + "/rank" + os.environ["RANK"], "w").write(json.dumps(found))
        """)
    )
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "train.py")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(
        [sys.executable, *command], check=True, capture_output=True, timeout=200, cwd=tmp_path, env=environment
    )
    alone_bytes = detect_share().memory_bytes // 2
    for rank in range(2):
        num_batches, num_workers, budget_bytes = json.loads((tmp_path / f"rank{rank}").read_text())
        assert (num_batches, num_workers) == (2, max(1, num_usable_cores() // 2))
        assert budget_bytes < 0.7 * alone_bytes
