"""Workers that are no forks of the script agree with it, and with each other, or a warning says that they may not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]

MODULE = """
import csv, os, sys
import numpy as np

NAMES = [f"class {number}" for number in range(12)]
CLASSES = {name: number for number, name in enumerate(set(NAMES))}
ORDERED = list(CLASSES)
SAME = {name: len(name) for name in set(NAMES)}

def classes(data):
    return np.array([CLASSES[name] for name in NAMES])

def state(data):
    values = [sys.getrecursionlimit(), csv.field_size_limit(), np.geterr()["divide"] == "raise", sys.flags.optimize]
    return np.array([*values, sys.flags.utf8_mode, os.environ.get("PYTHONHASHSEED") is None])
"""
PROGRAM = """
import csv, os, signal, sys
from pathlib import Path
import numpy as np
import labels
from mpload import MPDataset, MPLoader, RawBytes

Path("a.bin").write_bytes(b"data")
Path("index.txt").write_text("a.bin 0\\n")
if sys.argv[1] == "state":
    sys.setrecursionlimit(1234)
    csv.field_size_limit(1 << 20)
    np.seterr(divide="raise")
transform = getattr(labels, sys.argv[1])
dataset = MPDataset("index.txt", decode=RawBytes(), transform=transform, batch_size=1)
print(transform(b"").tolist())
with MPLoader(dataset, num_workers=1) as loader:
    print(next(iter(loader))[0][0].tolist())
    os.kill(loader.pids["mpload-zygote"], signal.SIGKILL)
    print(next(iter(loader))[0][0].tolist())
"""


def lines(folder: Path, case: str, *flags: str, **environment: str) -> tuple[list[str], str]:
    (folder / "labels.py").write_text(MODULE)
    (folder / "program.py").write_text(PROGRAM)
    others = {name: value for name, value in os.environ.items() if name not in {"PYTHONHASHSEED", "PYTHONWARNINGS"}}
    done = subprocess.run(
        [sys.executable, *flags, "program.py", case],
        cwd=folder,
        env={**others, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_an_order_that_depends_on_hashes_is_warned_of_and_the_same_in_all_workers(tmp_path: Path) -> None:
    (here, first, second), warned = lines(tmp_path, "classes")
    assert sorted(here) == sorted(first)
    assert here != first  # one in 12! times they are the same
    assert first == second
    assert "program.py:17: MploadWarning: labels.CLASSES, labels.ORDERED: workers have the same items" in warned
    assert "PYTHONHASHSEED=0" in warned


def test_with_a_hash_seed_workers_agree_with_the_script(tmp_path: Path) -> None:
    (here, first, second), warned = lines(tmp_path, "classes", PYTHONHASHSEED="5")
    assert here == first == second
    assert not warned


def test_settings_and_flags_reach_workers(tmp_path: Path) -> None:
    (here, first, second), warned = lines(tmp_path, "state", "-O", "-X", "utf8=1", "-W", "ignore")
    assert here == first == second == "[1234, 1048576, 1, 1, 1, 1]"
    assert not warned


def test_development_mode_finds_nothing_to_warn_of(tmp_path: Path) -> None:
    _, warned = lines(tmp_path, "state", "-X", "dev", PYTHONHASHSEED="5")
    assert not [line for line in warned.splitlines() if "ResourceWarning" in line]
