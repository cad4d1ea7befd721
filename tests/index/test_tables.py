"""Tables of orders on a hostile machine: a full disk, damaged files, and long names."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpload import ArgumentError, Balanced, Curriculum, Index, Mixture, MPDataset, PKBatches, Weighted, open_index
from mpload.index.table_files import HEAD_BYTES
from mpload.index.weighting import IndexOrder

ORDERS = (Balanced("label"), Weighted("loss"), PKBatches("label", 2, 4), Curriculum("loss", window_samples=8))

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


@pytest.mark.slow
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


def index_of(path: Path, labels: list[int], *, column: str = "label") -> Index:
    lines = "".join(f"{number}\t{label}\t{number * 37 % 11}\n" for number, label in enumerate(labels))
    path.write_text(f"#mpload 1\n#columns number:int {column}:int loss:float\n" + lines)
    return open_index(path)


def numbers_of(index: Index, order: IndexOrder) -> list[int]:
    return [int(number) for batch in MPDataset(index, shuffle=order, batch_size=8) for number in batch[0]]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_a_damaged_table_is_made_again(order: IndexOrder, tmp_path: Path) -> None:
    index = index_of(tmp_path / "train.txt", [number % 7 for number in range(200)])
    expected = numbers_of(index, order)
    (table,) = tmp_path.glob("*.mpw")
    head, entries = table.read_bytes()[:HEAD_BYTES], table.read_bytes()[HEAD_BYTES:]
    for damaged in (bytes(len(entries)), entries[:-1] + bytes([entries[-1] ^ 1]), entries[:-8], b""):
        table.write_bytes(head + damaged)
        assert numbers_of(index, order) == expected
        assert table.read_bytes() == head + entries


def test_names_of_any_length_have_room_in_a_table(tmp_path: Path) -> None:
    name = "label" * 1000
    index = index_of(tmp_path / "train.txt", [1] * 16, column=name)
    folder = tmp_path.joinpath(*["\N{SNOWMAN}" * 80] * 10)
    folder.mkdir(parents=True)
    np.save(folder / "weights.npy", np.eye(16)[5])
    for _ in range(2):  # the second time, tables are found
        assert set(numbers_of(index, Weighted(folder / "weights.npy"))) == {5}
        assert set(numbers_of(index, Balanced(name))) <= set(range(16))
    assert len(list(tmp_path.glob("*.mpw"))) == 2


def test_the_error_names_the_index_from_which_nothing_can_be_drawn(tmp_path: Path) -> None:
    index_of(tmp_path / "one.txt", [1] * 8)
    index_of(tmp_path / "two.txt", [-1] * 8)
    mixture = Mixture({tmp_path / "one.txt": 1, tmp_path / "two.txt": 1})
    with pytest.raises(ArgumentError, match=r"two\.txt: all values of column label are negative"):
        MPDataset(mixture, shuffle=Balanced("label"))
    np.save(tmp_path / "zeros.npy", np.zeros(8))
    with pytest.raises(ArgumentError, match=r"one\.txt: Weighted\(.*zeros\.npy.*\): all weights are 0"):
        MPDataset(tmp_path / "one.txt", shuffle=Weighted(tmp_path / "zeros.npy"))
