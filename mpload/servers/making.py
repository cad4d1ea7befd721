"""`SampleMaker`: a pool of workers that makes the samples of requests, and keeps the latest for other jobs."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpload.client.protocol import AnswerHead, ProtocolError, Wanted, buffers_of
from mpload.errors import ArgumentError, MploadError
from mpload.plan.order import Sequential
from mpload.samples.index_work import substitute_task
from mpload.samples.pipeline import Pipeline
from mpload.servers.sample_work import sample_arrays, serial_of, task_of
from mpload.transport.batches import FilledBatch, KilledSample
from mpload.transport.messages import Failure, Tally
from mpload.transport.pool import WorkerPool
from mpload.transport.ring import UNLENT_SLOTS

__all__ = ["BusyError", "MadeSamples", "MakerCounts", "SampleMaker"]

_TICK_SECONDS = 0.2
"""How often dead workers are looked for. Answers of living ones are noticed at once."""


class BusyError(MploadError):
    """More requests wait for workers than the server allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSamples:
    """The samples of a request. As long as this object, or a buffer of it, lives, its slot is not reused."""

    arrays: Mapping[str, Any]
    num_samples: int
    tally: Tally
    failures: tuple[Failure, ...]

    def answer(self, *, is_repeated: bool) -> list[memoryview | bytes]:
        """Return the buffers that make up the answer.

        Args:
            is_repeated: whether another answer has already said what the samples cost.
        """
        tally = Tally(num_samples=self.num_samples) if is_repeated else self.tally
        head = AnswerHead(tally=tally, failures=self.failures).encode()
        return [head, *buffers_of(self.arrays, 0, self.num_samples)]

    @property
    def is_final(self) -> bool:
        """Whether making them again would change nothing: they did not fail for a cause that may pass."""
        return all(failure.details.get("skipped") or failure.details.get("substituted") for failure in self.failures)


@dataclass(slots=True, kw_only=True)
class MakerCounts:
    """Counters since the start."""

    num_made: int = 0
    """Samples made by workers."""
    num_shared: int = 0
    """Samples that were not made again, because an equal request had come shortly before."""


@dataclass(slots=True, kw_only=True)
class _Request:
    """A request that waits for workers, or is being made by them."""

    wanted: Wanted
    made: asyncio.Future[MadeSamples]
    killers: list[Failure] = field(default_factory=list)
    """Samples that kill workers and have substitutes."""


_Key = tuple[int, int, int, bytes]


class SampleMaker:
    """Makes the samples of requests, in the order in which they come, and delivers each as soon as it is complete.

    Equal requests share samples if one comes while the other is being made, or shortly after: as long as no other
    request needs the slot. Requests for which there is no slot wait; the number of those is bounded.

    Memory: the slots, up to a budget that the samples kept for other jobs never exceed by more than the requests that
    are being made.
    Process: for one thread, which runs the event loop.
    """

    def __init__(
        self,
        make_pool: Callable[[Callable[[KilledSample], tuple[int, ...] | None]], WorkerPool],
        pipeline: Pipeline,
        *,
        num_buckets: int,
        slots_bytes: int,
        max_waiting: int,
        on_fatal: Callable[[MploadError], None],
    ) -> None:
        """Start the workers.

        Args:
            make_pool: makes a pool of workers, given what decides about samples that kill them.
            pipeline: the pipeline of the workers.
            num_buckets: number of buckets of the dataset; 0 if it has none.
            slots_bytes: memory for slots.
            max_waiting: maximum number of requests that wait for a slot.
            on_fatal: called once if the workers cannot go on.
        """
        self.pipeline = pipeline
        """The pipeline of the workers."""
        self._num_buckets = num_buckets
        self._slots_bytes = slots_bytes
        self._max_waiting = max_waiting
        self._on_fatal = on_fatal
        self._serial = 0
        self._requests: dict[_Key, _Request] = {}  # that wait or are being made
        self._waiting: deque[_Key] = deque()
        self._making: dict[int, _Key] = {}  # by serial number
        self._kept: OrderedDict[_Key, MadeSamples] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick: asyncio.TimerHandle | None = None
        self.counts = MakerCounts()
        self.failure: MploadError | None = None
        """Why the workers cannot go on, if so."""
        self.pool = make_pool(self._instead_of)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._waiting)

    @property
    def num_under_way(self) -> int:
        """Number of requests that wait or are being made; equal ones count as one."""
        return len(self._requests)

    @property
    def num_kept(self) -> int:
        """Number of answers kept for other jobs."""
        return len(self._kept)

    @property
    def is_healthy(self) -> bool:
        """Whether workers run."""
        return self.failure is None and not self.pool.is_closed and len(self.pool.pids) > 1

    def begin(self) -> None:
        """Begin to serve requests in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._answers_fd = self.pool.answers_fd
        self._loop.add_reader(self._answers_fd, self._collect)
        self._on_tick()

    def close(self) -> None:
        """End the workers. Requests that are still being made fail. May be called again."""
        if self._loop is not None:
            if self._tick is not None:
                self._tick.cancel()
            self._loop.remove_reader(self._answers_fd)
        self.failure = self.failure or MploadError("the server is stopping")
        self._fail_all(self.failure)
        self._kept.clear()
        self.pool.close()

    async def samples(self, wanted: Wanted) -> tuple[MadeSamples, bool]:
        """Return the samples of a request, and whether an equal one has made them.

        Raises:
            ProtocolError: there are no such samples.
            BusyError: too many requests wait.
            MploadError: the workers cannot go on.
        """
        self._check(wanted)
        if self.failure is not None:
            raise self.failure
        key = wanted.seed, wanted.epoch, wanted.bucket, wanted.sample_ids.tobytes()
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            self.counts.num_shared += kept.num_samples
            return kept, True
        request = self._requests.get(key)
        is_first = request is None
        if request is None:
            if len(self._waiting) >= self._max_waiting:
                raise BusyError(f"{len(self._waiting)} requests wait for workers already. Try again later")
            request = _Request(wanted=wanted, made=asyncio.get_running_loop().create_future())
            self._requests[key] = request
            self._waiting.append(key)
            self.submit_waiting()
        else:
            self.counts.num_shared += len(wanted.sample_ids)
        return await asyncio.shield(request.made), not is_first

    def _check(self, wanted: Wanted) -> None:
        try:
            Sequential().order(num_samples=0, seed=wanted.seed, epoch=wanted.epoch)
        except ArgumentError as error:
            raise ProtocolError(str(error)) from error
        if not 0 <= wanted.bucket < max(1, self._num_buckets):
            raise ProtocolError(f"bucket must be in [0, {max(1, self._num_buckets)}), got {wanted.bucket}")
        if not len(self.pipeline.index):
            raise ProtocolError("the index has no samples")

    def submit_waiting(self) -> None:
        """Submit waiting requests, as long as there are slots. Call it when answers were sent."""
        while self._waiting and self.failure is None and self._has_room():
            key = self._waiting.popleft()
            self._serial += 1
            self._making[self._serial] = key
            self.pool.submit(task_of(self._requests[key].wanted, serial=self._serial))

    def _has_room(self) -> bool:
        """Return whether a slot is free; if not, free one that is kept for other jobs."""
        ring = self.pool.ring
        self._keep_within_budget()
        while len(self._making) + ring.num_lent >= ring.num_slots - UNLENT_SLOTS or not ring.num_free:
            if not self._kept:
                return False
            self._kept.popitem(last=False)
        return not self._making or ring.used_bytes <= self._slots_bytes

    def _keep_within_budget(self) -> None:
        ring = self.pool.ring
        while ring.used_bytes > self._slots_bytes:
            for _ in range(-(-len(self._kept) // 4)):
                self._kept.popitem(last=False)
            ring.drop_free_memory()
            if not self._kept:
                return

    def _on_tick(self) -> None:
        assert self._loop is not None
        self._collect()
        if self.failure is None:
            self._tick = self._loop.call_later(_TICK_SECONDS, self._on_tick)

    def _collect(self) -> None:
        """Take what workers have completed."""
        try:
            for filled in self.pool.take_complete():
                self._finish(filled)
            self.submit_waiting()
        except MploadError as error:
            self._give_up(error)

    def _finish(self, filled: FilledBatch) -> None:
        serial = serial_of(filled.task.numbers)
        key = self._making.pop(serial)
        request = self._requests.pop(key)
        arrays = sample_arrays(filled.arrays)
        if self._num_buckets:
            self.pipeline.makers.use_bucket(request.wanted.bucket)
            arrays = dict(self.pipeline.makers.unpacked(arrays))
        failures = sorted([*request.killers, *filled.failures], key=lambda failure: failure.sample)
        made = MadeSamples(
            arrays=arrays, num_samples=filled.task.num_samples, tally=filled.tally, failures=tuple(failures)
        )
        self.counts.num_made += made.num_samples
        if made.is_final:
            self._kept[key] = made
        if not request.made.done():
            request.made.set_result(made)

    def _instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        request = self._requests[self._making[serial_of(killed.task)]]
        sample_id = int(request.wanted.sample_ids[killed.sample])
        task = substitute_task(self.pipeline, killed.task, sample_id)
        if task is not None:
            details = {"substituted": True, "bad": [(sample_id % len(self.pipeline.index), killed.cause)]}
            request.killers.append(Failure(sample=killed.sample, cause=killed.cause, details=details))
        return task

    def _give_up(self, error: MploadError) -> None:
        if self.failure is None:
            assert self._loop is not None
            self.failure = error
            self._loop.remove_reader(self._answers_fd)
            self._fail_all(error)
            self._on_fatal(error)

    def _fail_all(self, error: MploadError) -> None:
        for request in self._requests.values():
            if not request.made.done():
                request.made.set_exception(error)
        self._requests.clear()
        self._waiting.clear()
        self._making.clear()
