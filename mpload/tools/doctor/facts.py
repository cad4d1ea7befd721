"""What the doctor has found out: plain values, from which the verdict follows."""

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
    "ReadRate",
    "Samples",
    "SizeClass",
    "StorageSpeed",
    "Temperature",
    "Trial",
]


class Temperature(StrEnum):
    """Where the bytes were when they were read."""

    COLD = auto()
    """On the disk: they were driven out of the page cache first."""
    WARM = auto()
    """In the page cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a stage takes for one sample, on average.

    Attributes:
        cpu_seconds: of a core.
        wait_seconds: of waiting for something else than a core.

    Raises:
        ArgumentError: a number is negative.
    """

    cpu_seconds: float = 0.0
    wait_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "cpu_seconds", "wait_seconds")

    @property
    def seconds(self) -> float:
        """Of a worker: both together."""
        return self.cpu_seconds + self.wait_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRate:
    """How many samples a second the storage gave."""

    temperature: Temperature
    concurrency: int
    """How many were asked for at once."""
    samples_per_second: float
    is_sequential: bool = False
    """Neighbours in the index, one after the other, and not samples from anywhere."""

    def __post_init__(self) -> None:
        _check(self, "concurrency", "samples_per_second", positive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Samples of about one size, read one at a time."""

    max_bytes: int
    num_samples: int
    cold_seconds: float
    """Median."""
    warm_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The data set, by the samples that were looked at."""

    num_samples: int
    """In the index."""
    num_measured: int
    mean_bytes: float
    """As stored."""
    output_bytes: float
    """Of a sample in a batch."""
    num_failed: int = 0
    first_failure: str = ""
    mean_short_side: float | None = None
    """Of the images, in pixels; None where they are none."""
    cached_share: float | None = None
    """Part of the bytes that lay in the page cache before anything was measured; None: the system does not tell."""
    num_shards: int = 0
    """Shards that the samples looked at lie in; 0 where they are files of their own."""

    def __post_init__(self) -> None:
        _check(self, "num_samples", "num_measured", "mean_bytes", "output_bytes", positive=True)
        if self.cached_share is not None and not 0 <= self.cached_share <= 1:
            raise ArgumentError(f"cached_share must be in [0, 1], got {self.cached_share}")

    @property
    def total_bytes(self) -> float:
        """Of the whole data set, as stored."""
        return self.num_samples * self.mean_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpeed:
    """What the storage gives."""

    rates: tuple[ReadRate, ...]
    read: Cost
    """Of reading a sample from the page cache."""
    size_classes: tuple[SizeClass, ...] = ()
    reads_per_worker: int = 1
    """How many samples a worker may have on order at once."""
    packed_samples_per_second: float | None = None
    """What shards read in sequence would give; None where nothing tells."""

    def rate(self, temperature: Temperature, concurrency: float, *, is_sequential: bool = False) -> float | None:
        """Return samples a second for so many at once; None where nothing is known.

        Between measurements by proportion, beyond them as the last, and never less than for fewer at once: who gains
        nothing by more readers need not have them.
        """
        found = sorted(
            (rate.concurrency, rate.samples_per_second)
            for rate in self.rates
            if rate.temperature is temperature and rate.is_sequential == is_sequential
        )
        if not found:
            return None
        best = accumulate((rate for _, rate in found), max)
        known = {at_once: rate for (at_once, _), rate in zip(found, best, strict=True)}
        return float(np.interp(concurrency, list(known), list(known.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where the job is to run."""

    usable_cores: int
    """By affinity and by the container's quota."""
    host_cores: int
    memory_limit_bytes: int
    memory_free_bytes: int
    """Page cache counts as free."""
    max_descriptors: int
    """Files that a process may have open."""
    used_descriptors: int
    shm_bytes: int | None = None
    """Size of `/dev/shm`; the loader does not need it, a stock DataLoader does."""
    start_method: str = ""
    file_system: str = ""
    decode_backend: str = ""
    device: str = ""
    """The accelerator, by name; empty where there is none."""
    device_bytes_per_second: float | None = None
    """Of copies to it, from pinned memory."""

    def __post_init__(self) -> None:
        _check(self, "usable_cores", "host_cores", "memory_limit_bytes", "max_descriptors", positive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A loader that was let run for a few seconds."""

    num_workers: int
    batch_size: int
    samples_per_second: float
    """0 where it did not get that far."""
    error: str = ""
    """Why not."""
    is_short_of_files: bool = False
    """Whether that was the limit of open files."""
    decode_seconds: float = 0.0
    """Of a worker, for one sample, whoever else kept the cores busy; 0: unknown."""
    transform_seconds: float = 0.0
    is_empty: bool = False
    """Whether its samples cost nothing: what is left is the transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is wanted.

    Attributes:
        batch_size: samples of a batch, on each GPU.
        num_workers: of each GPU's loader.
        step_seconds: of a training step; None: as fast as can be.
        num_gpus: of the job; they share this machine's cores.
        num_jobs: that read the same storage.

    Raises:
        ArgumentError: a number is not positive.
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
        """Samples a second that one job consumes on this machine; infinite where no step was told."""
        demand = self.demand()
        return math.inf if demand is None else demand.samples_per_second / self.num_jobs

    def demand(self, sample_bytes: float | None = None) -> Demand | None:
        """Return what all jobs together ask of the storage, for samples of this size; None where no step was told."""
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
    """All that the verdict follows from."""

    job: Job
    samples: Samples
    storage: StorageSpeed
    environment: Environment
    decode: Cost
    transform: Cost = field(default_factory=Cost)
    resized_decode: Cost | None = None
    """What decoding takes once images are no larger than the crop needs; None where they are not much larger."""
    resized_bytes: float | None = None
    """Mean size of such images."""
    trials: tuple[Trial, ...] = ()
    kept_share: float = 0.0
    """Part of the samples that a `PartialCache` keeps."""

    def trial(self, num_workers: int, batch_size: int, *, is_empty: bool = False) -> Trial | None:
        """Return the trial with these numbers, of several the median one; None where there was none that ran."""
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
