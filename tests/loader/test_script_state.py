"""What a script defines, sets and shares reaches workers, also those that are no forks of its process."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from mpload import MPDataset, MPLoader, RawBytes, Topology
from tests.support import script_state
from tests.support.map_styles import Tuples

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    (tmp_path / "a.bin").write_bytes(b"data")
    (tmp_path / "index.txt").write_text("a.bin 0\na.bin 1\n")
    return tmp_path / "index.txt"


def script(*arguments: object) -> list[str]:
    command = [sys.executable, script_state.__file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("cache", "torch.int64 [6765, 5]"),
        ("property", "torch.int64 [7, 6]"),
        ("dtype", "torch.float64 [1.0]"),
        ("flags", "torch.bool [True, True]"),
    ],
)
def test_a_transform_of_the_script_finds_what_the_script_has_set(index: Path, case: str, expected: str) -> None:
    assert script(case, index) == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_tensors_in_shared_memory_stay_shared_with_workers(index: Path, strategy: str) -> None:
    assert script("shared", index, strategy) == [f"[{epoch}] True True" for epoch in range(3)]


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, {"multiprocessing_context": "spawn"}])
def test_the_default_device_does_not_decide_where_batches_are(options: dict[str, Any]) -> None:
    dataset: Any = Tuples()
    with torch.device("meta"), MPLoader(dataset, batch_size=4, **{"num_workers": 1, **options}) as loader:
        for _ in range(2):
            devices = {value.device.type for batch in loader for value in batch if isinstance(value, torch.Tensor)}
            assert devices == {"cpu"}


def stream(**options: Any) -> MPLoader[Any]:
    dataset: Any = ByItsSeed()
    return MPLoader(dataset, batch_size=None, **options)


class ByItsSeed(IterableDataset[int]):
    """Shuffles by the seed that torch gives to workers, as many such datasets do, and has an epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield self.epoch
        yield from np.random.default_rng(info.seed).permutation(50).tolist() if info else ()


def test_an_iterable_dataset_that_shuffles_by_its_workers_seed_has_another_order_in_each_epoch() -> None:
    with stream(num_workers=1, generator=torch.Generator().manual_seed(0)) as loader:
        orders = [list(loader)[1:] for _ in range(3)]
        loader.set_epoch(1)
        assert list(loader) == [1, *orders[1]]
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_set_epoch_reaches_an_iterable_dataset(num_workers: int) -> None:
    with stream(num_workers=num_workers) as loader:
        for epoch in (5, 2):
            loader.set_epoch(epoch)
            assert next(iter(loader)) == epoch


def test_a_process_that_changes_its_folder_still_reads_an_index_that_it_opened_by_a_relative_path(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(index.parent)
    dataset = MPDataset(index.name, decode=RawBytes(), batch_size=1, topology=Topology())
    elsewhere = index.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / index.name).write_text("other.bin 7\n")
    monkeypatch.chdir(elsewhere)
    with MPLoader(dataset, num_workers=1) as loader:
        for _ in range(2):
            assert sorted(int(label) for _, labels in loader for label in labels) == [0, 1]
            loader.release()
