"""The measurements of the doctor, as plain values. The verdict follows from them alone."""

import math
from dataclasses import dataclass, field
from enum import StrEnum, auto
from itertools import accumulate

import numpy as np

from mpload.errors import ArgumentError
from mpload.tools.demand import Demand

__all__ = [
    "Cost",
    "Environment",
    "Findings",
    "Job",
    "Progressive",
    "ReadRate",
    "Samples",
    "SizeClass",
    "StorageSpeed",
    "Temperature",
    "Trial",
]


class Temperature(StrEnum):
    """Where the bytes were before they were read."""

    COLD = auto()
    """In storage: they were evicted from the page cache first."""
    WARM = auto()
    """In the page cache."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRate:
    """The measured rate of the storage under one condition."""

    temperature: Temperature
    concurrency: int
    """The number of concurrent reads."""
    samples_per_second: float
    is_sequential: bool = False
    """Whether neighbours in the index were read in order, instead of random samples."""

    def __post_init__(self) -> None:
        _check(self, "concurrency", "samples_per_second", positive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Read times of samples of similar size, read one at a time."""

    max_bytes: int
    num_samples: int
    cold_seconds: float
    """Median."""
    warm_seconds: float
    """Median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The dataset, as seen in the measured samples."""

    num_samples: int
    """The number of samples in the index."""
    num_measured: int
    mean_bytes: float
    """The mean stored size of a sample."""
    output_bytes: float
    """The mean size of a decoded sample in a batch."""
    num_failed: int = 0
    first_failure: str = ""
    mean_short_side: float | None = None
    """The mean short side of the images, in pixels. None if the samples are not images."""
    cached_share: float | None = None
    """The share of the bytes in the page cache before the measurements. None if the system cannot tell."""
    num_shards: int = 0
    """The number of shards that hold the measured samples. 0 if each sample is a file of its own."""

    def __post_init__(self) -> None:
        _check(self, "num_samples", "num_measured", "mean_bytes", "output_bytes", positive=True)
        if self.cached_share is not None and not 0 <= self.cached_share <= 1:
            raise ArgumentError(f"cached_share must be in [0, 1], got {self.cached_share}")

    @property
    def total_bytes(self) -> float:
        """The stored size of the whole dataset."""
        return self.num_samples * self.mean_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressive:
    """The progressive JPEGs among the measured images."""

    share: float
    """The share of the images that are progressive JPEGs."""
    slowdown: float
    """Their mean decoding time, divided by that of the same images as baseline JPEGs."""

    def __post_init__(self) -> None:
        _check(self, "share", "slowdown", positive=True)
        if self.share > 1:
            raise ArgumentError(f"share must be in (0, 1], got {self.share}")

    def rewritten(self, decode: Cost) -> Cost:
        """Return the cost of decoding all images, now `decode`, if all of the progressive ones were baseline JPEGs.

        The other images are assumed to take as long as those.
        """
        factor = 1 + self.share * max(0.0, self.slowdown - 1)
        return Cost(cpu_seconds=decode.cpu_seconds / factor, wait_seconds=decode.wait_seconds / factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpeed:
    """The speed of the storage."""

    rates: tuple[ReadRate, ...]
    read: Cost
    """The cost of reading a sample from the page cache."""
    size_classes: tuple[SizeClass, ...] = ()
    reads_per_worker: int = 1
    """The number of samples that a worker reads in parallel."""
    packed_samples_per_second: float | None = None
    """The estimated rate of shards that are read sequentially. None if there is no estimate."""

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
    """The machine that the job runs on."""

    usable_cores: int
    """Cores allowed by the affinity and by the container's quota."""
    host_cores: int
    memory_limit_bytes: int
    memory_free_bytes: int
    """Free memory, including the page cache."""
    max_descriptors: int
    """The limit of open files of a process."""
    used_descriptors: int
    shm_bytes: int | None = None
    """The size of `/dev/shm`. The loader does not use it, but a stock DataLoader does."""
    start_method: str = ""
    file_system: str = ""
    decode_backend: str = ""
    device: str = ""
    """The name of the accelerator; empty if there is none."""
    device_bytes_per_second: float | None = None
    """The bandwidth of copies to the accelerator from pinned memory."""

    def __post_init__(self) -> None:
        _check(self, "usable_cores", "host_cores", "memory_limit_bytes", "max_descriptors", positive=True)


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
    is_empty: bool = False
    """Whether its samples had no cost, so that only the transport was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job to be examined.

    Attributes:
        batch_size: The samples per batch and GPU.
        num_workers: The workers of each GPU's loader.
        step_seconds: The time of a training step once its data is ready. None if it should be as fast as possible.
        num_gpus: The GPUs of the job. They share the cores of this machine.
        num_jobs: The jobs that read the same storage.

    Raises:
        ArgumentError: A number is not positive.
    """

    batch_size: int
    num_workers: int
    step_seconds: float | None = None
    num_gpus: int = 1
    num_jobs: int = 1

    def __post_init__(self) -> None:
        _check(self, "batch_size", "num_workers", "num_gpus", "num_jobs", positive=True)
        if self.step_seconds is not None:
            _check(self, "step_seconds", positive=True)

    @property
    def needed_rate(self) -> float:
        """The samples per second that one job consumes on this machine. Infinite if the time of a step is not known."""
        demand = self.demand()
        return math.inf if demand is None else demand.samples_per_second / self.num_jobs

    def demand(self, sample_bytes: float | None = None) -> Demand | None:
        """Return what all jobs together require of the storage. None if the time of a step is not known."""
        if self.step_seconds is None:
            return None
        return Demand(
            batch_size=self.batch_size,
            step_seconds=self.step_seconds,
            num_gpus=self.num_gpus,
            num_jobs=self.num_jobs,
            sample_bytes=sample_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All measurements. The verdict follows from them alone."""

    job: Job
    samples: Samples
    storage: StorageSpeed
    environment: Environment
    decode: Cost
    transform: Cost = field(default_factory=Cost)
    lookup: Cost = field(default_factory=Cost)
    """The cost to look up a sample's line in an index that does not fit into memory; nothing for all others."""
    resized_short: int | None = None
    """The short side that images need for the crop, in pixels. None if they are not much larger than that."""
    resized_decode: Cost | None = None
    """The cost of decoding images that were shrunk to `resized_short`."""
    resized_bytes: float | None = None
    """The mean size of these images."""
    progressive: Progressive | None = None
    """None if no image is a progressive JPEG, or if JPEGs cannot be rewritten here."""
    trials: tuple[Trial, ...] = ()
    kept_share: float = 0.0
    """The share of the samples in a `PartialCache`."""
    index_path: str = "INDEX"
    """The path of the index, for commands that remedies suggest."""

    def trial(self, num_workers: int, batch_size: int, *, is_empty: bool = False) -> Trial | None:
        """Return the trial with these settings that has the median rate. None if no such trial ran."""
        wanted = (num_workers, batch_size, is_empty)
        found = [
            trial
            for trial in self.trials
            if (trial.num_workers, trial.batch_size, trial.is_empty) == wanted and trial.samples_per_second
        ]
        found.sort(key=lambda trial: trial.samples_per_second)
        return found[len(found) // 2] if found else None


def _check(facts: object, *names: str, positive: bool = False) -> None:
    for name in names:
        value = getattr(facts, name)
        if not (0 < value < math.inf if positive else 0 <= value < math.inf):
            raise ArgumentError(f"{name} must {'be positive' if positive else 'not be negative'}, got {value!r}")
