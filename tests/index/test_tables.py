"""Tables of orders on a hostile machine: a full disk."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from mpload import Balanced, Curriculum, MPDataset, PKBatches, open_index
disk = Path(sys.argv[1])
os.environ["XDG_CACHE_HOME"] = str(disk / "cache")
index = disk / "train.txt"
index.write_text("#mpload 1\\n#columns label:int loss:float\\n" + "".join(f"{n % 7}\\t{n}\\n" for n in range(40_000)))
open_index(index)
space = os.statvfs(disk)
(disk / "ballast").write_bytes(b"0" * (space.f_bavail * space.f_frsize - 100_000))
before = sorted(os.listdir(disk))
for order in (PKBatches("label", 2, 2), Balanced("label"), Curriculum("loss", window_samples=8)):
    try:
        MPDataset(index, shuffle=order, batch_size=4)
    except Exception as error:
        print(type(error).__name__, error)
assert sorted(os.listdir(disk)) in (before, sorted([*before, "cache"]))
"""


@pytest.mark.processes
def test_a_table_that_does_not_fit_on_the_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    before = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=8m mpload {tmp_path} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here (needs Linux and root)")
    command = [*before, sys.executable, "-c", _ON_A_FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line, name in zip(lines, ("classes(label)", "balanced(label)", "sorted(loss)"), strict=True):
        assert line.startswith("SidecarError")
        assert f"the table {name} cannot be written anywhere ([Errno 28] No space left" in line
