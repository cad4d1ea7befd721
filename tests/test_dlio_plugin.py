"""The plug-in for DLIO, with a small stand-in for the classes of DLIO that it uses.

`python benchmarks/bench_dlio.py` checks the same with DLIO itself, where that is installed.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.processes

STAND_IN = {
    "common/enumerations": """
from enum import Enum
DataLoaderType = Enum("DataLoaderType", "PYTORCH")
DatasetType = Enum("DatasetType", "TRAIN VALID")
Shuffle = Enum("Shuffle", "OFF SEED")
""",
    "utils/config": """
class ConfigArguments:
    instance = None

    def __setstate__(self, state):
        self.__dict__.update(state)
        ConfigArguments.instance = self

    @staticmethod
    def get_instance():
        return ConfigArguments.instance
""",
    "data_loader/base_data_loader": """
from dlio_benchmark.utils.config import ConfigArguments

class BaseDataLoader:
    def __init__(self, format_type, dataset_type, epoch_number, data_loader_type):
        self._args = ConfigArguments.get_instance()
        self.format_type, self.dataset_type, self.epoch_number = format_type, dataset_type, epoch_number
        self.batch_size = self._args.batch_size
""",
    "reader/reader_factory": """
import numpy as np
from dlio_benchmark.utils.config import ConfigArguments

class Reader:
    def read_index(self, number, step):
        path, place = ConfigArguments.get_instance().train_global_index_map[number]
        return np.array([number, int(path), place])

class ReaderFactory:
    @staticmethod
    def get_reader(format_type, dataset_type, thread_index, epoch_number):
        return Reader()
""",
}


@pytest.fixture
def dlio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    for name, source in STAND_IN.items():
        module = tmp_path / "dlio_benchmark" / f"{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    import dlio_plugin
    from dlio_benchmark.common.enumerations import DatasetType, Shuffle
    from dlio_benchmark.utils.config import ConfigArguments

    yield SimpleNamespace(
        MploadLoader=dlio_plugin.MploadLoader,
        ConfigArguments=ConfigArguments,
        DatasetType=DatasetType,
        Shuffle=Shuffle,
    )
    for name in set(sys.modules) - before:
        if name.startswith("dlio"):
            del sys.modules[name]


def epochs_of(dlio: Any, *, numbers: range, batch_size: int, shuffle: str, num_epochs: int = 2) -> list[list[int]]:
    """Return the numbers of the samples of each epoch, as DLIO's training loop gets them."""
    arguments = dlio.ConfigArguments()
    arguments.__setstate__(
        {
            "train_global_index_map": {number: (str(10 * number), 3) for number in numbers},
            "read_threads": 2,
            "batch_size": batch_size,
            "sample_shuffle": dlio.Shuffle[shuffle],
            "seed": 1,
        }
    )
    loader = dlio.MploadLoader("jpeg", dlio.DatasetType.TRAIN, 1)
    loader.read()
    epochs = []
    for _ in range(num_epochs):
        rows = [row for batch in loader.next() for row in batch.tolist()]
        assert all(row == [row[0], 10 * row[0], 3] for row in rows)
        epochs.append([row[0] for row in rows])
        loader.finalize()
    loader.loader.close()
    return epochs


def test_an_epoch_of_dlio_holds_each_sample_once_in_an_order_of_its_own(dlio: Any) -> None:
    first, second = epochs_of(dlio, numbers=range(12), batch_size=4, shuffle="SEED")
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second != sorted(second)


def test_a_rank_of_dlio_reads_its_own_samples_and_drops_the_rest_of_a_batch(
    dlio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)  # DLIO has divided the samples already
    (epoch,) = epochs_of(dlio, numbers=range(10, 20), batch_size=4, shuffle="OFF", num_epochs=1)
    assert epoch == list(range(10, 18))
