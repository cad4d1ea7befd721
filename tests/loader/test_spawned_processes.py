"""A process that `torch.multiprocessing` has spawned loads what its script defines, as the script itself does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import spawned_program
from tests.support.batches import numbers_index
from tests.support.programs import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.mark.slow
@pytest.mark.processes
def test_what_the_script_defines_reaches_the_helper_process(tmp_path: Path) -> None:
    command = [sys.executable, spawned_program.__file__, str(numbers_index(tmp_path, 4))]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "{True} [[0, 1], [4, 9], [16, 25], [36, 49]]",
        "{True} [0, 1, 4, 9, 16, 25, 36, 49]",
        "[[9, 25]]",
        "[1, 2, 3, 4]",
    ]
