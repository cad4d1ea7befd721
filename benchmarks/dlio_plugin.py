"""A data loader for DLIO, the driver of MLPerf Storage, that loads with mpload: docs/how-to/dlio.md says how to use it.

DLIO finds it as `workload.reader.data_loader_classname=dlio_plugin.MploadLoader` if this folder is on the PYTHONPATH.
"""

import pickle
from collections.abc import Iterator
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.reader_factory import ReaderFactory
from dlio_benchmark.utils.config import ConfigArguments

import mpload

__all__ = ["MploadLoader"]


class Samples:
    """The samples of this rank, as DLIO's own reader of their format reads them."""

    def __init__(self, numbers: list[int], *reader: Any) -> None:
        self.numbers, self.of_reader = numbers, reader
        self.arguments = pickle.dumps(ConfigArguments.get_instance())

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Any:
        return self.reader.read_index(self.numbers[place], 1)

    def open(self, worker: int) -> None:
        """Make a worker's reader. It finds DLIO's arguments in a singleton, which is restored by unpickling them."""
        pickle.loads(self.arguments)
        format_type, dataset_type, epoch = self.of_reader
        self.reader: Any = ReaderFactory.get_reader(format_type, dataset_type, worker, epoch)


class MploadLoader(BaseDataLoader):  # type: ignore[misc]  # DLIO has no types
    """Batches of `Samples` from an `MPLoader` with `read_threads` workers."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        arguments, is_training = self._args, self.dataset_type is DatasetType.TRAIN
        files = (
            arguments.train_global_index_map if is_training else arguments.val_global_index_map
        )  # of this rank alone
        samples = Samples(list(files), self.format_type, self.dataset_type, self.epoch_number)
        self.loader: mpload.MPLoader[Any] = mpload.MPLoader(
            samples,
            num_workers=arguments.read_threads,
            batch_size=self.batch_size,
            shuffle=arguments.sample_shuffle is not Shuffle.OFF,
            seed=arguments.seed,
            drop_last=True,
            topology=mpload.Topology(rank=0, world_size=1),
            worker_init_fn=samples.open,
        )

    def next(self) -> Iterator[Any]:
        yield from self.loader

    def finalize(self) -> None:
        pass
