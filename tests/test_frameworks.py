"""Training jobs in real frameworks: over all ranks, each epoch has each sample exactly once."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

from mpload import Topology
from tests.support.batches import ids, numbers, numbers_index

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")

JOBS = [
    ("accelerate", "accelerate", 1),
    ("accelerate", "accelerate", 2),
    ("lightning", "pytorch_lightning", 1),
    ("lightning", "pytorch_lightning", 2),
    ("fabric", "lightning_fabric", 2),
    ("transformers", "transformers", 1),
    ("transformers", "transformers", 2),
    ("ray", "ray", 2),
]


def run_job(folder: Path, framework: str, num_ranks: int) -> None:
    script = [str(Path(__file__).parent / "support" / "training_jobs.py"), framework, str(folder)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    launches_itself = num_ranks == 1 or framework in {"lightning", "ray"}
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NUM_DEVICES": str(num_ranks),
        "ACCELERATE_USE_CPU": "true",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
    }
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    command = [sys.executable, *([] if launches_itself else torchrun), *script]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=230, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("framework", "module", "num_ranks"), JOBS)
def test_every_epoch_has_every_sample_once(tmp_path: Path, framework: str, module: str, num_ranks: int) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    for num_samples in (43, 48):
        numbers_index(tmp_path, num_samples)
    run_job(tmp_path, framework, num_ranks)
    of_ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    assert of_ranks[0]
    for way in of_ranks[0]:
        assert {len(found[way]) for found in of_ranks} == {len(of_ranks[0][way])}, way
        for epoch, received in enumerate(zip(*(found[way] for found in of_ranks), strict=True)):
            everything = sorted(chain.from_iterable(received))
            assert everything == list(range(max(everything) + 1)), f"{way}, epoch {epoch}"
            assert len(everything) in {43, 48}, f"{way}, epoch {epoch}"


@pytest.mark.slow
def test_two_ranks_split_the_epochs_of_a_loader_made_before_the_process_group(tmp_path: Path) -> None:
    numbers_index(tmp_path, 43)
    run_job(tmp_path, "torchrun", 2)
    alone = numbers(tmp_path, 43, batch_size=8, tail="ragged", topology=Topology())
    for epoch in range(2):
        expected = ids(alone)  # a single process, with batches as large as the global batch
        for rank in (0, 1):
            received = json.loads((tmp_path / f"{rank}.json").read_text())["MPLoader"][epoch]
            assert received == [label for batch in expected for label in batch[4 * rank : 4 * rank + 4]]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_job_on_ray_loses_a_node_and_goes_on_with_fewer_ranks_exactly() -> None:
    """The other examples are run by `.ci/run`, where Ray is not installed."""
    example = Path(__file__).parents[1] / "examples" / "train_on_ray.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "ranks: 2, then 1; all 130 samples once" in done.stdout
