"""MPLoader in real training jobs of two ranks: each epoch visits each sample once, in the order of a job alone."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mpload import Topology
from tests.test_dataset import ids, numbers, numbers_index

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")

NUM_SAMPLES = 43
JOBS = [
    pytest.param("torchrun", "torch"),
    pytest.param("accelerate", "accelerate", marks=pytest.mark.slow),
    pytest.param("lightning", "pytorch_lightning", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("framework", "module"), JOBS)
def test_two_ranks_share_each_epoch(tmp_path: Path, framework: str, module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    index = numbers_index(tmp_path, NUM_SAMPLES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(Path(__file__).with_name("training_jobs.py")), framework, str(index), str(tmp_path)]
    folder = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    of_ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    alone = numbers(tmp_path, NUM_SAMPLES, batch_size=8, tail="ragged", topology=Topology())
    for epoch in range(2):
        received = [each[epoch] for each in of_ranks]
        assert sorted(received[0] + received[1]) == list(range(NUM_SAMPLES))
        expected = ids(alone)  # batches of a job alone that is as large as the global batch
        for rank in (0, 1):
            assert received[rank] == [label for batch in expected for label in batch[4 * rank : 4 * rank + 4]]
