"""`StreamSource`: the batches of an iterable dataset."""

import math
from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset

from mpload.errors import StateError, warn
from mpload.loader.changes import Watch
from mpload.loader.default_batches import collate_on_cpu, convert_on_cpu
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.map_options import MapOptions
from mpload.loader.planned import BATCHES_AHEAD, NO_BATCH
from mpload.loader.sample_errors import error_of_failure
from mpload.plan.batch_number import BatchNumber
from mpload.plan.plan import Plan, Tail
from mpload.plan.ranges import MAX_NUM_SAMPLES
from mpload.plan.topology import Topology
from mpload.samples.batch_work import BATCH
from mpload.samples.data_pipes import is_data_pipe, shared_pipe
from mpload.samples.parcel import unpack
from mpload.samples.seeded_dataset import SeededDataset
from mpload.samples.stream_work import Drawn, StreamWork, batches_of
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample
from mpload.transport.messages import Tally
from mpload.transport.ragged import sample_room_bytes
from mpload.transport.slots import Field, RaggedField

__all__ = ["StreamSource"]


class StreamSource:
    """The batches of an iterable dataset. Each worker iterates over a copy of its own.

    Several workers yield the samples several times, unless the dataset shards itself with `get_worker_info()`. Batches
    of one worker come in its order. Those of several come as they are made, so their order may differ from run to run.
    The position cannot be saved, and a worker that dies ends the epoch with an error.
    """

    def __init__(
        self, dataset: IterableDataset[Any], seeded: SeededDataset, options: MapOptions, *, num_workers: int, seed: int
    ) -> None:
        self.name = type(dataset).__name__
        self.batch_size = options.batch_size
        self._batch_samples = options.batch_size or 1
        self.slot_samples = 1
        self.samples_ahead = self.batches_ahead = options.prefetch_factor or BATCHES_AHEAD
        self.samples_announced = 0
        self.epochs = EpochTable(seed=seed, topology=Topology())
        self.cache_in_memory = None
        self.reads_ahead = False
        self.row_group_bytes = 0
        self.starts_all_workers = True
        self.max_read_seconds = 0.0
        self.forks = options.forks
        self.made_here = Tally()
        self._dataset = dataset
        self._options = options
        self._num_workers = num_workers
        self._watch = Watch(dataset, keeps_workers=options.persistent_workers)
        self._converts = options.batch_size is None and options.collate_fn is None
        self._collate = None if self._converts else options.collate_fn or collate_on_cpu
        self._work = StreamWork(
            dataset=seeded, batch_size=options.batch_size, drop_last=bool(options.drop_last), collate=self._collate
        )
        self._told_samples: int | None = None  # the length, once somebody has asked for it
        self._num_received = self._num_dropped = 0
        self._num_yielded = 0  # in the last epoch that had samples
        self._num_iterations = 0
        self._ended: set[int] = set()  # workers whose iterator is at its end

    def facts(self) -> dict[str, str]:
        """Return facts about the dataset for `repr` and notebooks."""
        return {"order": "the dataset's own", "epoch": str(self.epochs.next.number)}

    def image_excess(self) -> float:
        """Return 1: the ratio is unknown."""
        return 1.0

    def plan_of(self, epoch: Epoch) -> Plan:
        """Return the plan of an epoch, in batches. If the dataset has no length, the plan is as long as can be."""
        del epoch
        num_batches = MAX_NUM_SAMPLES
        if isinstance(self._dataset, Sized):
            self._told_samples = len(self._dataset)
            number = self._told_samples / self._batch_samples
            num_batches = math.floor(number) if self._options.drop_last else math.ceil(number)
        return Plan(num_samples=num_batches, batch_size=1, topology=Topology(), tail=Tail.RAGGED)

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any."""
        if not self._watch.has_changed():
            return False
        self._work = replace(self._work)
        return True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads, and tell the dataset. Random numbers depend on it."""
        self.epochs.set_number(epoch)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Raise an error: an iterable dataset has no position.

        Raises:
            StateError: always.
        """
        del epoch, num_batches
        raise StateError(
            f"the position in {self.name}, an iterable dataset, cannot be saved or restored. Use a map-style dataset "
            "or an MPDataset"
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise an error: an iterable dataset has no position.

        Raises:
            StateError: always.
        """
        del state_dict
        self.state_after(None, 0)

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the field of a slot: the batch."""
        return (RaggedField(name=BATCH, max_sample_bytes=sample_room_bytes(batch_size=1)),)

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> StreamWork:
        """Return the work for the workers. The limits do not apply: the dataset itself reads and decodes."""
        del read_ahead_bytes, decode_bytes
        return self._work

    def batches(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch in this process. An error ends the dataset's iterator."""
        options, dataset = self._options, self._dataset
        if is_data_pipe(dataset):
            dataset = shared_pipe(dataset, seed=epoch.seed, epoch=epoch.number)
        dropped: list[int] = []
        batches = batches_of(
            dataset,
            batch_size=options.batch_size,
            drop_last=bool(options.drop_last),
            collate=self._collate,
            on_dropped=dropped.append,
        )
        is_empty = True
        for num_samples, batch in batches:
            is_empty = False
            self.made_here.add(Tally(num_samples=num_samples))
            yield self._converted(batch)
        if is_empty and dropped:
            self._warn_that_all_is_dropped(epoch)

    def tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield tasks until `present` has seen the end of each worker's iterator."""
        self._num_received = self._num_dropped = 0
        self._num_iterations += 1
        number = BatchNumber(
            seed=epoch.seed, epoch=epoch.number, start=self._num_iterations, batch=0, topology=Topology()
        )
        self._ended = set()
        while len(self._ended) < self._num_workers:
            yield BatchTask(numbers=number.numbers, num_samples=1, num_counted=self._batch_samples)
        if not self._num_received and self._num_yielded:
            self._warn_of_position(epoch)
        elif not self._num_received and self._num_dropped:
            self._warn_that_all_is_dropped(epoch)
        self._num_yielded = self._num_received or self._num_yielded

    def _warn_of_position(self, epoch: Epoch) -> None:
        warn(
            f"{self.name} yields no samples in epoch {epoch.number}, but it yielded {self._num_yielded} in an earlier "
            "one. Workers keep their copy of it between epochs, as with persistent_workers=True, so its position stays "
            "at the end. Let __iter__ begin anew, or make a new loader for each epoch"
        )

    def _warn_that_all_is_dropped(self, epoch: Epoch) -> None:
        each, fewer = "it", ""
        if self._num_workers > 1:
            each, fewer = f"each of the {self._num_workers} copies in the workers", " or fewer workers"
        warn(
            f"{self.name}: epoch {epoch.number} has no batch: {each} yields fewer than {self._batch_samples} "
            f"samples, and drop_last=True drops them. Use smaller batches{fewer}, or drop_last=False"
        )

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return a batch made by the workers."""
        del epoch
        for failure in filled.failures:
            raise error_of_failure(f"{self.name}: {failure.cause}", failure) from failure.origin
        drawn: Drawn = unpack(filled.arrays[BATCH][0])
        if not drawn.num_samples:
            self._ended.add(drawn.worker)
            self._num_dropped += drawn.num_dropped
            return NO_BATCH
        self._num_received += drawn.num_samples
        if self._told_samples is not None and self._num_received > self._told_samples:
            warn(
                f"{self.name} has a length of {self._told_samples}, but {self._num_received} samples have been "
                "fetched. For multiprocessing data-loading, this happens if each worker yields all samples. Make the "
                "dataset shard itself with get_worker_info(), or pass num_workers=1"
            )
        return self._converted(drawn.batch)

    def rest(self, epoch: Epoch) -> Iterator[Any]:
        """Return nothing: workers make all batches."""
        del epoch
        return iter(())

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return None: a batch that kills workers counts as failed."""
        del killed
        return None

    def _converted(self, batch: Any) -> Any:
        return convert_on_cpu(batch) if self._converts else batch
