"""What is known about a job and its machine: measured, assumed, or taken from a running loader."""

import math
from dataclasses import dataclass, field
from enum import StrEnum, auto
from itertools import accumulate

import numpy as np

from mpload.errors import ArgumentError
from mpload.memory.contention import Contention

__all__ = [
    "Alternative",
    "Change",
    "Cost",
    "Environment",
    "Facts",
    "Job",
    "ReadRate",
    "Running",
    "Samples",
    "Stage",
    "StorageSpeed",
    "Temperature",
    "Trial",
]


_MOST = 0.5


class Stage(StrEnum):
    """The stages through which a batch passes."""

    READ = auto()
    """Workers read bytes from storage."""
    DECODE = auto()
    """Workers decode. For a map-style dataset this is all of `__getitem__`."""
    TRANSFORM = auto()
    """Workers run the transform."""
    TRANSPORT = auto()
    """Writing samples into slots, handing out chunks, making tensors from slots."""
    CONSUMER = auto()
    """The loop that consumes the batches."""


class Temperature(StrEnum):
    """Where the bytes were before they were read."""

    COLD = auto()
    """In storage: they were evicted from the page cache first."""
    WARM = auto()
    """In the page cache."""


class Change(StrEnum):
    """A way to read or decode the same samples with less effort."""

    BASELINE = auto()
    """Progressive JPEGs are rewritten as baseline ones, without loss."""
    RESIZED = auto()
    """Images are stored no larger than the crop needs."""
    CACHED_RESIZED = auto()
    """A cache keeps the images no larger than the crop needs."""
    NATIVE = auto()
    """mpload's own decoder makes the same form of sample."""
    ROW_INDEX = auto()
    """A row index says where the rows of each JPEG begin."""
    CACHED = auto()
    """A cache keeps the stored bytes on a fast disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The mean cost of a stage per sample.

    Attributes:
        cpu_seconds: The CPU time.
        wait_seconds: The time spent waiting for anything but a core.

    Raises:
        ArgumentError: A number is negative.
    """

    cpu_seconds: float = 0.0
    wait_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "cpu_seconds", "wait_seconds")

    @property
    def seconds(self) -> float:
        """The wall-clock time of a worker: both together."""
        return self.cpu_seconds + self.wait_seconds

    def times(self, factor: float) -> "Cost":
        """Return this cost, multiplied."""
        return Cost(cpu_seconds=factor * self.cpu_seconds, wait_seconds=factor * self.wait_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRate:
    """The rate of the storage under one condition."""

    temperature: Temperature
    concurrency: int
    """The number of concurrent reads."""
    samples_per_second: float
    is_sequential: bool = False
    """Whether neighbours in the index were read in order, instead of random samples."""

    def __post_init__(self) -> None:
        _check(self, "concurrency", "samples_per_second", is_positive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The dataset, as seen in the measured samples. None if something is not known."""

    num_samples: int | None = None
    """The number of samples in the dataset."""
    num_measured: int = 0
    mean_bytes: float | None = None
    """The mean stored size of a sample."""
    output_bytes: float | None = None
    """The mean size of a sample in a batch."""
    output_shape: tuple[int, ...] | None = None
    """The shape of a sample in a batch. None if it varies."""
    output_dtype: str = "uint8"
    num_failed: int = 0
    first_failure: str = ""
    max_failed_share: float = 0.0
    """The share of broken samples with which the job goes on."""
    mean_short_side: float | None = None
    """The mean short side of the images, in pixels. None if the samples are not images."""
    formats: tuple[tuple[str, float], ...] = ()
    """The formats of the images, each with its share: JPEG, progressive JPEG, PNG, ..."""
    cached_share: float | None = None
    """The share of the bytes in the page cache before the measurements. None if the system cannot tell."""
    num_shards: int = 0
    """The number of shards that hold the measured samples. 0 if each sample is a file of its own."""
    samples_per_shard: float = 0.0
    """How many neighbours in the index lie in one shard."""
    decoded_shape: tuple[int, ...] | None = None
    """The shape of a decoded sample, before the transform. None if it varies."""

    def __post_init__(self) -> None:
        _check(self, "num_samples", "mean_bytes", "output_bytes", is_positive=True)
        if self.cached_share is not None and not 0 <= self.cached_share <= 1:
            raise ArgumentError(f"cached_share must be in [0, 1], got {self.cached_share}")

    @property
    def total_bytes(self) -> float | None:
        """The stored size of the whole dataset."""
        return None if self.num_samples is None or self.mean_bytes is None else self.num_samples * self.mean_bytes

    @property
    def failed_share(self) -> float:
        """The share of the measured samples that are broken."""
        return self.num_failed / max(1, self.num_failed + self.num_measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What decoding would cost after a change, on the same samples."""

    change: Change
    decode: Cost
    mean_bytes: float | None = None
    """The mean stored size of a sample after the change. None if it stays the same."""
    read: Cost | None = None
    """The cost of reading a sample from the page cache after the change. None if it stays the same."""
    detail: str = ""
    """What a remedy needs to name: the short side in pixels, or the Python expression of a decoder."""
    is_bound: bool = False
    """Whether `decode` is only a lower bound, which nobody has measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpeed:
    """The speed of the storage."""

    rates: tuple[ReadRate, ...] = ()
    bytes_per_second: float | None = None
    """The bandwidth of sequential reads. None if it sets no limit of its own."""
    read: Cost = field(default_factory=Cost)
    """The cost of reading a sample from the page cache."""
    reads_per_worker: int = 1
    """The number of samples that a worker reads in parallel."""
    packed_samples_per_second: float | None = None
    """The estimated rate of shards that are read sequentially. None if there is no estimate."""
    open_seconds: float = 0.0
    """The time to open a shard that was not open. 0 if it was not measured."""

    def __post_init__(self) -> None:
        _check(self, "bytes_per_second", is_positive=True)

    def rate(self, temperature: Temperature, concurrency: float, *, is_sequential: bool = False) -> float | None:
        """Return the samples per second with this number of concurrent reads. None if nothing was measured.

        Interpolates linearly between measurements, and is constant beyond them. The rate never falls as `concurrency`
        grows: if more concurrent reads are slower, fewer can be used.
        """
        found = sorted(
            (rate.concurrency, rate.samples_per_second)
            for rate in self.rates
            if rate.temperature is temperature and rate.is_sequential == is_sequential
        )
        if not found:
            return None
        best = accumulate((rate for _, rate in found), max)
        known = {number: rate for (number, _), rate in zip(found, best, strict=True)}
        return float(np.interp(concurrency, list(known), list(known.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine that the job runs on. None if something is not known."""

    usable_cores: float | None = None
    """Cores allowed by the affinity and by the container's quota."""
    host_cores: int | None = None
    memory_limit_bytes: int | None = None
    memory_free_bytes: int | None = None
    """Free memory, including the page cache."""
    max_descriptors: int | None = None
    """The limit of open files of a process."""
    used_descriptors: int = 0
    file_system: str = ""
    decode_backend: str = ""
    device: str = ""
    """The name of the accelerator; empty if there is none."""
    device_bytes_per_second: float | None = None
    """The bandwidth of copies to the accelerator from pinned memory."""
    contention: Contention = field(default_factory=Contention)

    def __post_init__(self) -> None:
        _check(self, "usable_cores", "host_cores", "memory_limit_bytes", "max_descriptors", is_positive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of running a loader for a few seconds."""

    num_workers: int
    batch_size: int
    samples_per_second: float
    """0 if the loader could not start."""
    error: str = ""
    """Why the loader could not start."""
    is_short_of_files: bool = False
    """Whether the limit of open files was the cause."""
    decode_seconds: float = 0.0
    """A worker's wall-clock time per sample, including time in which other processes had the core. 0 if unknown."""
    transform_seconds: float = 0.0
    busy_share: float | None = None
    """The share of their time in which workers made samples. None if unknown."""
    cpu_seconds: float = 0.0
    """The CPU time of workers and training process per sample. 0 if unknown."""
    grown_bytes_per_sample: float = 0.0
    """How much the workers' memory grew for each sample, all the time."""
    is_empty: bool = False
    """Whether its samples had no cost, so that only the transport was measured."""
    change: Change | None = None
    """The change that was tried; None: the samples were read and decoded as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job to be judged.

    Attributes:
        batch_size: The samples per batch and GPU.
        num_workers: The workers of each GPU's loader. None: enough of them.
        step_seconds: The time of a training step once its data is ready. None if it is not known.
        num_gpus: The GPUs of the job. They share the cores of this machine.
        num_jobs: The jobs that read the same storage, each on cores of its own.
        memory_budget_bytes: The memory budget of each loader. None: half of the free memory.
        reads_blocks: Whether neighbours in the index are read together.
        is_auto: Whether the loader chooses the number of workers.

    Raises:
        ArgumentError: A number is not positive.
    """

    batch_size: float
    num_workers: int | None = None
    step_seconds: float | None = None
    num_gpus: int = 1
    num_jobs: int = 1
    memory_budget_bytes: int | None = None
    reads_blocks: bool = False
    is_auto: bool = False

    def __post_init__(self) -> None:
        _check(self, "batch_size", "num_workers", "step_seconds", "num_gpus", "num_jobs", is_positive=True)

    @property
    def needed_rate(self) -> float:
        """The samples per second that one job consumes. Infinite if the time of a step is not known."""
        return math.inf if self.step_seconds is None else self.batch_size * self.num_gpus / self.step_seconds

    @property
    def total_workers(self) -> float:
        """The workers of all its loaders. Infinite if there are enough."""
        return math.inf if self.num_workers is None else self.num_workers * self.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What a running loader was seen to do, over a span of time."""

    seconds: float
    samples_per_second: float
    waiting_share: float
    """The share of time in which the training loop waited for batches."""
    busy_share: float
    """The share of their time in which workers made samples."""
    refaulted_bytes_per_second: float = 0.0
    """What had to be read again because the page cache had dropped it."""
    served_share: float = 0.0
    """The share of the samples that servers made."""
    served_bytes_per_second: float = 0.0
    """What those servers sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known. The verdict follows from this alone."""

    job: Job
    samples: Samples = field(default_factory=Samples)
    storage: StorageSpeed = field(default_factory=StorageSpeed)
    environment: Environment = field(default_factory=Environment)
    decode: Cost = field(default_factory=Cost)
    decode_alone: Cost | None = None
    """The cost of decoding if there were no transform: workers then decode a chunk with one call. None: the same."""
    transform: Cost = field(default_factory=Cost)
    transport: Cost = field(default_factory=Cost)
    """The cost to move a sample to the training process, as far as trials with empty samples do not show it."""
    lookup: Cost = field(default_factory=Cost)
    """The cost to look up a sample's line in an index that does not fit into memory; nothing for all others."""
    alternatives: tuple[Alternative, ...] = ()
    trials: tuple[Trial, ...] = ()
    kept_share: float = 0.0
    """The share of the samples in a `PartialCache`."""
    running: Running | None = None
    index_path: str | None = None
    """The path of the index, for commands that remedies suggest. None if the dataset has no index."""

    @property
    def is_served(self) -> bool:
        """Whether servers make most of the samples, so that reading is waiting for them."""
        return self.running is not None and self.running.served_share > _MOST

    def trials_of(self, *, is_empty: bool = False, change: Change | None = None) -> list[Trial]:
        """Return the trials of the job."""
        return [
            trial
            for trial in self.trials
            if trial.num_workers == self.job.num_workers and trial.batch_size == self.job.batch_size
            if trial.is_empty == is_empty and trial.change == change
        ]

    def rates_of_trials(self, *, is_empty: bool = False, change: Change | None = None) -> list[float]:
        """Return the samples per second of the trials of the job that could run."""
        tried = self.trials_of(is_empty=is_empty, change=change)
        return [trial.samples_per_second for trial in tried if trial.samples_per_second]

    def trial(self, *, is_empty: bool = False, change: Change | None = None) -> Trial | None:
        """Return the trial of the job with the median rate. None if no such trial could run."""
        found = [trial for trial in self.trials_of(is_empty=is_empty, change=change) if trial.samples_per_second]
        found.sort(key=lambda trial: trial.samples_per_second)
        return found[len(found) // 2] if found else None


def _check(facts: object, *names: str, is_positive: bool = False) -> None:
    for name in names:
        value = getattr(facts, name)
        if value is not None and not (0 < value < math.inf if is_positive else 0 <= value < math.inf):
            raise ArgumentError(f"{name} must {'be positive' if is_positive else 'not be negative'}, got {value!r}")
