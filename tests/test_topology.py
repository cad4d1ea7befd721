"""The world is looked at in one place, and believed in this order."""

import pytest

from mpload import Topology, detect_topology
from mpload.errors import ArgumentError

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
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Topology()),  # a batch script without srun is one process
    ],
)
def test_launchers_are_recognised(environment: dict[str, str], expected: Topology) -> None:
    assert detect_topology(environment) == expected


@pytest.mark.parametrize("environment", [{"RANK": "8", "WORLD_SIZE": "8"}, {"RANK": "x", "WORLD_SIZE": "8"}])
def test_variables_that_make_no_sense_are_named(environment: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match=r"RANK=. and WORLD_SIZE=8 are no place in a job: .* pass topology="):
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
