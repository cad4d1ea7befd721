"""`MPLoader`: the batches of a dataset through shared memory, made by worker processes that cost little."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray

from mpload.device.prefetcher import DevicePrefetcher
from mpload.errors import ArgumentError, SampleError, TooManyBadSamples
from mpload.loader.advice import Adviser
from mpload.loader.dataset import Batch, MPDataset
from mpload.loader.engine import Engine
from mpload.loader.epochs import Epoch
from mpload.loader.frameworks import AccelerateIteration, is_accelerate_used
from mpload.loader.iterations import Iteration, OnHost
from mpload.loader.machine_share import detect_share
from mpload.loader.source import source_of
from mpload.memory.budget import MemoryBudget
from mpload.plan.batch_number import BatchNumber
from mpload.plan.order import OrderChoice
from mpload.plan.plan import Plan, Tail
from mpload.plan.topology import Topology
from mpload.samples.map_work import MapDataset
from mpload.telemetry.counting import Telemetry
from mpload.telemetry.showing import show_progress
from mpload.telemetry.stats import LoaderStats
from mpload.telemetry.writers import Report, StatsWriter
from mpload.transport.batches import BatchTask, PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.units import format_bytes, format_facts, html_table

if TYPE_CHECKING:
    from mpload.transport.stream import Stream

__all__ = ["MPLoader"]

_ADVICE_SECONDS = 20.0
_OF_A_DATA_LOADER = frozenset({"batch_sampler", "collate_fn", "drop_last", "generator", "pin_memory", "sampler"})


class MPLoader(Generic[Batch]):
    """Iterates a dataset by worker processes that write samples straight into shared memory.

    The same batches as the dataset gives alone or in a stock DataLoader, bit for bit, whatever `num_workers` is and
    whichever workers die: a dead one is replaced and its part done again. A batch is a view of its slot, which is used
    again when the last of its tensors has died. Hold as many as you like: beyond the slots they are copies.

    Iterating again goes on to the next epoch. `with MPLoader(...) as loader`, or `close()`, ends the workers; so does
    the loader's own end.

    A `SampleError` that you catch ends one batch, not the epoch: the next `next()` gives the batch after it, and a
    state counts the failed one as received.

    Type checkers take the type of batches from the `MPDataset`. For a map-style dataset write it down:
    `loader: MPLoader[list[Tensor]] = MPLoader(dataset, batch_size=8)`. Without, batches are `Any`.

    Args:
        dataset: an `MPDataset` with a `batch_size`, or any map-style dataset (`__len__` and `__getitem__`), whose
            batches are then those that `default_collate` makes. What its `__getitem__` draws from the global generators
            of `random`, NumPy and torch depends on seed, epoch and sample.
        batch_size: samples of a batch of this rank. This and the next four arguments are for a map-style dataset only:
            an `MPDataset` has its own.
        shuffle: False, True, or an order, as in `MPDataset`.
        seed: of order and randomness, in [0, 2**63).
        tail: what happens where the samples do not fill the last global batch, as in `MPDataset`.
        topology: rank and world size; None asks `detect_topology()` when iteration begins.
        num_workers: processes; `"auto"`: one per core that this process may use, and more while the consumer waits for
            workers that wait for storage; 0 makes batches in this process.
        memory_budget: bytes, or a text like `"4GiB"`, for slots and workers together; `"auto"`: half of what is
            available. Bounds the number of batches made ahead; fewer are, and a warning says so, while memory runs
            short. Large images are decoded one at a time where it holds no more. Where several ranks share a machine,
            `"auto"` divides its cores and its memory by them.
        options: how workers are treated: timeouts, restarts, fresh processes in place of forks.
        device: where batches are handed out, images as float32 in [0, 1]: short for a `DevicePrefetcher` around the
            loader, which can do more. None: as they are, on the host.

    Memory: slots as the budget allows, and some MB for each worker, whatever the script has imported.
    Process: belongs to the process and thread that made it. Linux only, except with `num_workers=0`.

    Raises:
        ArgumentError: an argument breaks a rule, the budget is too small, or the pipeline cannot be pickled.
        SampleError: none of the first samples could be made, where one has to be made to know its shape.
        WorkerError: workers cannot be started.
    """

    # What accelerator.prepare_data_loader looks for: nothing is to be wrapped, and save_state saves the state_dict.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    @overload
    def __init__(
        self,
        dataset: MPDataset[Batch],
        *,
        num_workers: int | Literal["auto"] = "auto",
        memory_budget: int | str = "auto",
        options: PoolOptions | None = None,
        device: torch.device | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        dataset: MapDataset,
        *,
        batch_size: int,
        shuffle: bool | OrderChoice = False,
        seed: int = 0,
        tail: Tail | Literal["drop", "pad", "ragged"] = Tail.PAD,
        topology: Topology | None = None,
        num_workers: int | Literal["auto"] = "auto",
        memory_budget: int | str = "auto",
        options: PoolOptions | None = None,
        device: torch.device | str | None = None,
    ) -> None: ...

    def __init__(
        self,
        dataset: MPDataset[Batch] | MapDataset,
        *,
        batch_size: int | None = None,
        shuffle: bool | OrderChoice = False,
        seed: int = 0,
        tail: Tail | Literal["drop", "pad", "ragged"] = Tail.PAD,
        topology: Topology | None = None,
        num_workers: int | Literal["auto"] = "auto",
        memory_budget: int | str = "auto",
        options: PoolOptions | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._source = source_of(
            dataset, batch_size=batch_size, shuffle=shuffle, seed=seed, tail=tail, topology=topology
        )
        if num_workers != "auto" and (type(num_workers) is not int or num_workers < 0):
            raise ArgumentError(f"num_workers must be 'auto' or at least 0, got {num_workers!r}")
        self.dataset = dataset
        """What is iterated."""
        self._num_workers = None if isinstance(num_workers, str) else num_workers
        share = detect_share()
        self._num_cores = share.num_cores
        self.memory_budget = MemoryBudget.parse(memory_budget, available_bytes=share.memory_bytes)
        """What slots and workers may take together."""
        self._options = options or PoolOptions()
        self._epoch: Epoch | None = None
        self._num_received = 0
        self._iteration = 0
        self._stream: Stream | None = None
        self._telemetry = Telemetry(made_here=self._source.made_here, with_page=num_workers != 0)
        adviser = Adviser(
            is_auto=num_workers == "auto", num_cores=share.num_cores, image_excess=self._source.image_excess
        )
        self._telemetry.listen(adviser, every_seconds=_ADVICE_SECONDS)
        self._engine: Engine | None = None
        self._is_closed = False
        self._prefetcher = None if device is None else DevicePrefetcher(OnHost(self), device=device)
        self._fields = self._source.prepare() if num_workers != 0 else ()
        if num_workers != 0:
            self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch, also where the next one is resumed.

        Frameworks count the batches of a resumed epoch from its beginning.
        """
        return self._source.plan_of(self._source.epochs.next.whole).num_batches

    def __iter__(self) -> Iterator[Batch]:
        batches = self._iterate_on_host() if self._prefetcher is None else iter(self._prefetcher)
        return AccelerateIteration(batches, self._current_plan) if is_accelerate_used() else batches

    def _iterate_on_host(self) -> Iterator[Any]:
        """Begin an iteration whose batches stay on the host, as all do without a `device`."""
        if self._is_closed:
            raise ArgumentError("the loader is closed. Make a new one")
        self._stop()
        self._epoch = None
        self._source.epochs.set_next(self._source.epochs.next)  # no epoch is current until it has begun
        return Iteration(self)

    def _set_epoch_on_host(self, epoch: int) -> None:
        self._source.set_epoch(epoch)
        self._epoch = None

    def _state_on_host(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that are on their way to a device too."""
        return self._source.state_after(self._epoch, self._num_received)

    def _load_state_on_host(self, state_dict: Mapping[str, Any]) -> None:
        self._stop()
        self._source.load_state_dict(state_dict)
        self._epoch = None

    def _begin(self) -> Iterator[Any]:
        """Begin the next epoch: with the first batch, since some frameworks call `iter` once more than they iterate."""
        self._epoch = epoch = self._source.epochs.begin(worker=0, num_workers=1)
        self._num_received = 0
        plan = self._source.plan_of(epoch)
        make = partial(self._source.make, epoch)  # a generator would end with the first batch that fails
        if self._num_workers == 0:
            return map(make, range(plan.num_batches))
        # All batches but a ragged last one are full; an empty one is nothing for a worker.
        num_tasks = plan.num_batches - (plan.num_batches > 0 and not plan.size(plan.num_batches - 1))
        self._stream = self._usable_pool().stream(_tasks(epoch, plan, num_tasks))
        made_by_workers = map(partial(self._source.present, epoch), self._stream)
        return chain(made_by_workers, map(make, range(num_tasks, plan.num_batches)))

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next iteration reads; see `MPDataset.set_epoch`."""
        (self._set_epoch_on_host if self._prefetcher is None else self._prefetcher.set_epoch)(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that were received, not those made ahead."""
        return self._state_on_host() if self._prefetcher is None else self._prefetcher.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken; see `MPDataset.load_state_dict`."""
        (self._load_state_on_host if self._prefetcher is None else self._prefetcher.load_state_dict)(state_dict)

    def stats(self) -> LoaderStats:
        """Return what was done so far, and what that takes now; `str()` of it is for people."""
        return self._telemetry.snapshot(self._pool, num_workers=self.num_workers)

    def stats_to(self, writer: StatsWriter, *, every_seconds: float = 10.0) -> None:
        """Have `writer` get the statistics of each span of `every_seconds`, while batches are taken.

        Args:
            writer: `JsonLinesWriter(path)`, `PrometheusWriter(path)`, `TensorBoardWriter(folder)`, or any object with
                `write(span, total)`.
            every_seconds: how often.
        """
        self._telemetry.listen(Report(writer, since=self.stats()), every_seconds=every_seconds)

    def progress(self) -> Iterator[Batch]:
        """Iterate, and show on a terminal or in a notebook how fast that goes, how long it waits, and its memory."""
        return show_progress(self, self.stats)

    def __repr__(self) -> str:
        return format_facts(f"MPLoader of {self._source.name}", self._facts())

    def _repr_html_(self) -> str:
        return html_table(f"MPLoader of {self._source.name}", self._facts())

    def _facts(self) -> dict[str, str]:
        epoch = self._epoch
        received = "" if epoch is None else f" ({self._num_received:,} of {self._current_plan().num_batches:,} batches)"
        return {
            **self._source.facts(),
            "epoch": f"{(epoch or self._source.epochs.next).number}{received}",
            "workers": "closed" if self._is_closed else f"{self.num_workers}{' (auto)' * (self._num_workers is None)}",
            "memory": f"at most {format_bytes(self.memory_budget.total_bytes)}",
        }

    @property
    def num_workers(self) -> int:
        """Processes that make batches; with `"auto"` it changes, and is 0 while they are released."""
        if self._num_workers is not None:
            return self._num_workers
        return 0 if self._pool is None else self._pool.num_workers

    @property
    def batch_size(self) -> int:
        """Samples of a full batch of this rank."""
        return self._source.batch_size

    if not TYPE_CHECKING:  # or type checkers would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name in _OF_A_DATA_LOADER:
                raise AttributeError(
                    f"an MPLoader has no {name!r}, since it is not a DataLoader that can be rebuilt from its parts: "
                    "it shards and resumes by itself. Iterate it as it is, without skip_first_batches, "
                    "setup_dataloaders or prepare_data_loader, and keep its state_dict(): "
                    "docs/how-to/frameworks.md says how"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def _first_place(self) -> int:
        """Place of this rank's first sample in a global batch."""
        plan = self._source.plan_of(self._source.epochs.next)
        return plan.topology.rank * plan.batch_size

    def _lock_slot(self, address: int) -> NDArray[np.uint8] | None:
        """Return the part of a slot that holds `address`, to be pinned: all fields of one shape. None elsewhere.

        That part is never given back to the kernel from now on.
        """
        return None if self._pool is None else self._pool.ring.lock(address)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the zygote and the workers, by the names that `ps` shows."""
        return {} if self._pool is None else self._pool.pids

    def release(self) -> None:
        """Give workers and slots back until the next iteration, which starts them anew (some 0.3 s).

        For a validation loader between two validations. Batches that are still held keep their memory.
        """
        if self._prefetcher is not None:
            self._prefetcher.release()
        self._stop()
        if self._pool is not None:
            self._telemetry.keep(self._pool)
            self._pool.close()
            self._engine = None

    def close(self) -> None:
        """End the workers for good. May be called again."""
        self._is_closed = True
        self.release()
        self._telemetry.close()

    def _take(self, batches: Iterator[Any]) -> Any:
        """Return the next of an iteration's batches; no reference is kept, so that its slot can be recycled."""
        asked = time.monotonic()
        if asked >= self._telemetry.due:
            stats = self._telemetry.notify(self._pool, num_workers=self.num_workers)
            if self._engine is not None:
                self._engine.adjust(stats)
            asked = time.monotonic()
        try:
            batch = next(batches)
        except (SampleError, TooManyBadSamples):
            self._num_received += 1  # or a state would repeat the batch
            raise
        self._telemetry.count_batch(asked)
        self._num_received += 1
        return batch

    def _current_plan(self) -> Plan:
        return self._source.plan_of(self._epoch or self._source.epochs.next)

    @property
    def _pool(self) -> WorkerPool | None:
        return None if self._engine is None else self._engine.pool

    def _stop(self) -> None:
        """End the iteration that is under way, and whatever was made ahead for it."""
        self._iteration += 1
        self._telemetry.pause()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _usable_pool(self) -> WorkerPool:
        """Return the pool, or a new one where an error has closed it."""
        if self._pool is not None and self._pool.is_closed:
            self._telemetry.keep(self._pool)
            self._engine = None
        return self._pool or self._start()

    def _start(self) -> WorkerPool:
        self._engine = Engine(
            self._source,
            self._fields,
            num_workers=self._num_workers,
            num_cores=self._num_cores,
            budget=self.memory_budget,
            options=self._options,
        )
        return self._engine.pool


def _tasks(epoch: Epoch, plan: Plan, num_tasks: int) -> Iterator[BatchTask]:
    """Yield the tasks of an epoch, of which only the last may be short."""
    for batch in range(num_tasks):
        number = BatchNumber(
            seed=epoch.seed, epoch=epoch.number, start=epoch.position, batch=batch, topology=plan.topology
        )
        num_samples = plan.batch_size if batch < num_tasks - 1 else plan.size(batch)
        yield BatchTask(numbers=number.numbers, num_samples=num_samples)
