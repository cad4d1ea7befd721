"""`MPLoader`: loads the batches of a dataset in lightweight worker processes, through shared memory."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray

from mpload.client.options import Fallback, Servers, servers_of
from mpload.device.prefetcher import DevicePrefetcher
from mpload.errors import ArgumentError
from mpload.loader.advice import ADVICE_SECONDS, Adviser
from mpload.loader.dataset import Batch, MPDataset
from mpload.loader.described import facts_of
from mpload.loader.engine import Engine
from mpload.loader.frameworks import told_of_end
from mpload.loader.instead import Guarded
from mpload.loader.iterations import Ahead, Iteration, OnHost, Turns
from mpload.loader.machine_share import detect_share
from mpload.loader.map_options import MapArguments, MapOptions
from mpload.loader.pinned import pin_of
from mpload.loader.planned import is_batch
from mpload.loader.reweighting import change_weights, stats_by_source, updated_state
from mpload.loader.source import is_stream, no_length, source_of, workers_for
from mpload.memory.budget import MemoryBudget
from mpload.plan.batching import AnyPlan
from mpload.plan.ranges import MAX_NUM_SAMPLES
from mpload.samples.seeded_dataset import MapDataset
from mpload.telemetry.counting import Telemetry
from mpload.telemetry.stats import LoaderStats
from mpload.telemetry.writers import Report, StatsWriter
from mpload.transport.batches import PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.units import format_facts, html_table

if TYPE_CHECKING:
    from mpload.loader.epochs import Epoch
    from mpload.transport.stream import Stream

__all__ = ["MPLoader"]


class MPLoader(Guarded, Generic[Batch]):
    """Iterates over a dataset in worker processes that write samples directly into shared memory.

    Yields the same batches, bit for bit, as the dataset yields alone or in a DataLoader, for any `num_workers` and even
    if workers die: a dead worker is replaced, and its unfinished work is done again. A batch is a view of a slot in
    shared memory. The slot is reused when the last tensor of the batch has been freed. You may hold any number of
    batches: when all slots are in use, further batches are copies.

    Each iteration reads the next epoch. `close()`, the end of a `with` block and garbage collection stop the workers.

    After a `SampleError` only that batch is lost: the following `next()` returns the next one, and a state counts it as
    received. If an `OutageError` is its `__cause__`, the following `next()` makes the same batch again.

    Type checkers infer the type of batches from the `MPDataset`. For a map-style dataset, annotate it:
    `loader: MPLoader[list[Tensor]] = MPLoader(dataset, batch_size=8)`. Otherwise batches are `Any`.

    Args:
        dataset: an `MPDataset` with a `batch_size`, or any map-style dataset (`__len__` and `__getitem__`). Random
            numbers that its `__getitem__` draws from the global generators of `random`, NumPy and torch depend only on
            seed, epoch and sample. Also an `IterableDataset`, with fewer promises: see docs/from-dataloader.md.
        num_workers: number of worker processes. `"auto"` starts one per core available to this process, doubles that
            while consumer and workers both wait, and stops workers that do not help. 0 makes batches in this process.
        memory_budget: upper bound for slots and workers together, in bytes or as a string such as `"4GiB"`. `"auto"`
            is half of the available memory. The budget limits how many batches are made ahead. While memory is short,
            fewer are made ahead, and a warning says so. Images too large to be decoded side by side within the budget
            are decoded one at a time. Ranks that share a machine divide its cores and memory if it is `"auto"`.
        options: how workers are treated: timeouts, restarts, fresh processes instead of forks.
        device: device on which batches are yielded, with images as float32 in [0, 1]. This is a shortcut for wrapping
            the loader in a `DevicePrefetcher`, which has more options. None yields batches on the host, unchanged.
        servers: URLs of servers (`mpload serve`) that make samples of an `MPDataset`, the `Path` of a file that names
            them and may change, or `Servers`. The samples are the same as those that workers make.
        token: the secret that the servers want to see, if any.
        fallback: `"local"` makes samples that no server makes in the workers. `"raise"` raises a `ServerError`.
        **of_dataset: arguments for map-style datasets. An `MPDataset` has its own `batch_size`, `shuffle`, `seed`,
            `tail` and `topology`. Those that a DataLoader also has:

            - `batch_size`: number of samples in a batch of this rank, 1 by default. None yields single samples, not
              batches.
            - `shuffle`: False, True, or an order, as for `MPDataset`.
            - `sampler`, `batch_sampler`: which samples are read, or which make a batch, instead of `shuffle`. Each rank
              reads what its own sampler yields. Random numbers then belong to the place in the epoch, not the sample.
            - `collate_fn`: makes a batch from a list of samples, in a worker. It may return anything.
            - `drop_last`: True is `tail="drop"`, False "ragged" ("pad" on several ranks). `generator`: draws the seed.
            - `worker_init_fn`: called in each worker with its number. Random numbers are seeded later, for each sample.
            - `prefetch_factor`: batches in flight per worker, with a `collate_fn`, a sampler, `__getitems__` or
              `batch_size=None`. Otherwise workers share the samples of a batch.
            - `timeout`: as `PoolOptions.sample_timeout_seconds`: a worker that hangs is replaced.
            - `multiprocessing_context`: None forks workers from this process where that is safe: it is made in the main
              thread, no other Python threads run, and CUDA is not in use. Otherwise workers get a pickled copy of the
              dataset. `"fork"` always forks, `"spawn"` and `"forkserver"` never do.
            - `persistent_workers`: False makes new workers for an iteration if attributes of the dataset have changed.
            - `pin_memory`: copies batches into page-locked memory. Others are accepted with a warning.

            And those of `MPDataset`: `seed`, `tail` (by default `"pad"`), `topology`, `on_error`. A bad sample of a
            sampler is substituted by another one of its batch. If `collate_fn` or `__getitems__` fails, the batch does.

    Memory: slots within the budget, and a few MB per worker, whatever the script has imported.
    Process: may be used only in the process and thread that created it. Linux only, except with `num_workers=0`.

    Raises:
        ArgumentError: an argument breaks a rule, the budget is too small, or the pipeline cannot be pickled.
        SampleError: a sample of an `MPDataset` shows the shape, but none of the first ones could be made.
        WorkerError: workers cannot be started.
    """

    # Accelerate reads these: prepare_data_loader then does not wrap the loader, and save_state saves its state_dict.
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
        servers: Sequence[str] | PathLike[str] | Servers | None = None,
        token: str | None = None,
        fallback: Fallback = "local",
    ) -> None: ...

    @overload
    def __init__(
        self,
        dataset: MapDataset,
        *,
        num_workers: int | Literal["auto"] = "auto",
        memory_budget: int | str = "auto",
        options: PoolOptions | None = None,
        device: torch.device | str | None = None,
        **of_dataset: Unpack[MapArguments],
    ) -> None: ...

    def __init__(
        self,
        dataset: MPDataset[Batch] | MapDataset,
        *,
        num_workers: int | Literal["auto"] = "auto",
        memory_budget: int | str = "auto",
        options: PoolOptions | None = None,
        device: torch.device | str | None = None,
        servers: Sequence[str] | PathLike[str] | Servers | None = None,
        token: str | None = None,
        fallback: Fallback = "local",
        **of_dataset: Unpack[MapArguments],
    ) -> None:
        num_workers = workers_for(dataset, num_workers)
        share = detect_share()
        map_options = MapOptions.of(of_dataset)
        self._options = map_options.pool_options(options or PoolOptions(), may_restart=not is_stream(dataset))
        asked = servers_of(servers, token, fallback, num_workers=num_workers, options=self._options)
        first_workers = share.num_cores if isinstance(num_workers, str) else num_workers
        self._source = source_of(dataset, map_options, self._options, num_workers=first_workers, servers=asked)
        self.dataset = dataset
        """The dataset that was passed in."""
        self._num_workers = None if isinstance(num_workers, str) else num_workers
        self._num_cores = share.num_cores
        self.memory_budget = MemoryBudget.parse(memory_budget, available_bytes=share.memory_bytes)
        """Upper bound for the memory of slots and workers together."""
        self._epoch: Epoch | None = None
        self._num_received = 0
        self._turns = Turns()
        self._rest: Epoch | None = None
        self._ahead = Ahead()
        self._stream: Stream | None = None
        made_here, by_source = self._source.made_here, stats_by_source(self._source)
        with_page, urls = num_workers != 0, () if asked is None else asked.urls
        self._telemetry = Telemetry(made_here=made_here, with_page=with_page, by_source=by_source, server_urls=urls)
        if asked is None:  # otherwise this machine does not limit the loader
            excess = self._source.image_excess
            adviser = Adviser(is_auto=num_workers == "auto", num_cores=share.num_cores, image_excess=excess)
            self._telemetry.listen(adviser, every_seconds=ADVICE_SECONDS)
        self._engine: Engine | None = None
        self._is_closed = False
        self._prefetcher = None if device is None else DevicePrefetcher(OnHost(self), device=device)
        self._pin = pin_of(is_wanted=map_options.pin_memory and device is None)
        self._fields = self._source.prepare() if num_workers != 0 else ()
        if num_workers != 0:
            self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch, even if the next epoch is resumed in the middle.

        Frameworks count the batches of a resumed epoch from its beginning.
        """
        if self._epoch is None:
            self._refresh()
        num_batches = self._source.plan_of(self._source.epochs.next.whole).num_batches
        if num_batches == MAX_NUM_SAMPLES:
            raise no_length(self.dataset)
        return num_batches

    def __iter__(self) -> Iterator[Batch]:
        return self._told(self._iterate_ahead())

    def _told(self, batches: Iterator[Any]) -> Iterator[Any]:
        return told_of_end(batches, self._current_plan)

    def _iterate_ahead(self) -> Iterator[Any]:
        return self._iterate_on_host() if self._prefetcher is None else iter(self._prefetcher)

    def _iterate_on_host(self) -> Iterator[Any]:
        if self._is_closed:
            raise ArgumentError("the loader is closed. Create a new one")
        with self._turns.alone():
            self._stop()
        self._epoch = None
        self._source.epochs.set_next(self._source.epochs.next)  # no epoch is current until the first batch is requested
        return Iteration(self)

    def _set_epoch_on_host(self, epoch: int) -> None:
        self._source.set_epoch(epoch)
        self._epoch = self._ahead.state = None

    def _state_on_host(self) -> dict[str, Any]:
        """Return the state of the run. Batches still on their way to a device count as received."""
        return self._source.state_after(self._epoch, self._num_received)

    def _updated_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return an earlier state of this run, with the weights as they are now."""
        return updated_state(self._source, state_dict)

    def _load_state_on_host(self, state_dict: Mapping[str, Any]) -> None:
        self._stop()
        self._source.load_state_dict(state_dict)
        self._source.epochs.note_restored(self)
        self._epoch = None

    def _begin(self) -> Iterator[Any]:
        """Begin the next epoch at its first batch, since frameworks may only call `iter`; or go on with new weights."""
        epochs = self._source.epochs
        following = self._rest or epochs.next_for(self)
        vars(self).update(_epoch=following, _num_received=0, _rest=None)  # at once: an interrupt may ask for the state
        epoch = self._epoch = epochs.enter(following, worker=0, num_workers=1)
        self._refresh()
        if self._num_workers == 0:
            batches = self._source.batches(epoch)
        else:
            engine, tasks = self._usable_engine(), self._source.tasks(epoch)
            self._stream = engine.pool.stream(tasks, on_wait=partial(engine.adjust, self._telemetry.waited))
            made_by_workers = filter(is_batch, map(partial(self._source.present, epoch), self._stream))
            batches = chain(made_by_workers, self._source.rest(epoch))
        return batches if self._pin is None else map(self._pin, batches)

    def _refresh(self) -> None:
        if self._source.refresh() and self._num_workers != 0:
            self._drop_engine()
            self._fields = self._source.prepare()

    def _drop_engine(self) -> None:
        if self._pool is not None:
            self._telemetry.keep(self._pool)
            self._pool.close()
            self._engine = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads; see `MPDataset.set_epoch`."""
        (self._set_epoch_on_host if self._prefetcher is None else self._prefetcher.set_epoch)(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run. It counts batches that were received, not batches made ahead."""
        handed_over = None if self._prefetcher is not None else self._ahead.state
        return self._state_ahead() if handed_over is None else self._updated_state(handed_over)

    def _state_ahead(self) -> dict[str, Any]:
        """As `state_dict`, counting what a `DevicePrefetcher` around this loader has ahead."""
        return self._state_on_host() if self._prefetcher is None else self._prefetcher.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state; see `MPDataset.load_state_dict`."""
        (self._load_state_on_host if self._prefetcher is None else self._prefetcher.load_state_dict)(state_dict)

    def set_weights(self, weights: Mapping[Any, float]) -> None:
        """Change the weights of a mixture to `weights` from the next batch on, also in the middle of an iteration.

        Batches made ahead are discarded, and workers start again, in about 0.3 s. All ranks must make the same call
        after the same number of batches. States contain the change: see `MPDataset.set_weights`.

        Raises:
            ArgumentError: the dataset is no mixture, the weights break one of its rules, or in the middle of an epoch a
                `DevicePrefetcher` has taken batches ahead.
        """
        change_weights(self, weights)

    def stats(self) -> LoaderStats:
        """Return the statistics so far, and the current memory use. `str()` formats them for people."""
        return self._telemetry.snapshot(self._pool, num_workers=self.num_workers)

    def stats_to(self, writer: StatsWriter, *, every_seconds: float = 10.0) -> None:
        """Pass statistics to `writer` at regular intervals, while batches are being requested.

        Args:
            writer: `JsonLinesWriter(path)`, `PrometheusWriter(path)`, `TensorBoardWriter(folder)`, or any object with a
                method `write(span, total)`.
            every_seconds: length of the interval.
        """
        self._telemetry.listen(Report(writer, since=self.stats()), every_seconds=every_seconds)

    def progress(self) -> Iterator[Batch]:
        """Iterate, and show progress, speed, waiting time and memory in the terminal or notebook."""
        showing = import_module("mpload.telemetry.showing")  # imports rich, which most training scripts do not use
        return cast("Iterator[Batch]", showing.show_progress(self, self.stats))

    def __repr__(self) -> str:
        return format_facts(f"MPLoader of {self._source.name}", facts_of(self))

    def _repr_html_(self) -> str:
        return html_table(f"MPLoader of {self._source.name}", facts_of(self))

    @property
    def num_workers(self) -> int:
        """Number of worker processes. With `"auto"` it changes over time, and is 0 after `release()`."""
        if self._num_workers is not None:
            return self._num_workers
        return 0 if self._pool is None else self._pool.num_workers

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a full batch of this rank; None with a `batch_sampler`, and for single samples."""
        return self._source.batch_size

    @property
    def _first_place(self) -> int:
        """Position of this rank's first sample within a global batch."""
        plan = self._source.plan_of(self._source.epochs.next)
        return plan.topology.rank * plan.batch_size

    def _lock_slot(self, address: int) -> NDArray[np.uint8] | None:
        """Return the fixed-shape fields of the slot that contains `address`, for pinning; None if it lies elsewhere."""
        return None if self._pool is None else self._pool.ring.lock(address)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the zygote and the workers, keyed by the process names that `ps` shows."""
        return {} if self._pool is None else self._pool.pids

    def release(self) -> None:
        """Stop the workers and free the slots until the next iteration, which restarts them in about 0.3 s.

        Useful for a validation loader between two validations. Batches that you still hold keep their memory.
        """
        if self._prefetcher is not None:
            self._prefetcher.release()
        self._stop()
        self._drop_engine()

    def close(self) -> None:
        """Stop the workers for good. It is safe to call this more than once."""
        self._is_closed = True
        self.release()
        self._telemetry.close()

    def _current_plan(self) -> AnyPlan:
        return self._source.plan_of(self._epoch or self._source.epochs.next)

    @property
    def _pool(self) -> WorkerPool | None:
        return None if self._engine is None else self._engine.pool

    def _stop(self) -> None:
        """End the current iteration, and discard the batches made ahead for it."""
        self._turns.number += 1
        self._rest = None
        if self._prefetcher is None:
            self._ahead = Ahead()
        self._telemetry.pause()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _usable_engine(self) -> Engine:
        if self._pool is not None and self._pool.is_closed:
            self._drop_engine()
        return self._engine or self._start()

    def _start(self) -> Engine:
        self._engine = Engine(
            self._source,
            self._fields,
            num_workers=self._num_workers,
            num_cores=self._num_cores,
            budget=self.memory_budget,
            options=self._options,
        )
        return self._engine
