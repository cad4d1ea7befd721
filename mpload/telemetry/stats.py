"""What a loader has done, how long it took, and which stage limits it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum, auto

from mpload.memory.usage import anonymous_pss_bytes
from mpload.transport.messages import Tally
from mpload.units import format_bytes, format_count, format_seconds, html_table

__all__ = [
    "Latencies",
    "LoaderMemory",
    "LoaderStats",
    "Stage",
    "Timings",
    "WorkerStats",
    "limiting_stage",
    "timings_of",
]

_BUCKETS_PER_DECADE = 16
_SHORTEST_SECONDS = 1e-6
_NUM_BUCKETS = 10 * _BUCKETS_PER_DECADE
_NO_WAIT = 0.05
_BUSY = 0.5


class Stage(StrEnum):
    """Where a batch's time goes."""

    READ = auto()
    """Workers getting bytes from storage."""
    DECODE = auto()
    """Workers decoding; all of `__getitem__` of a map-style dataset."""
    TRANSFORM = auto()
    """Workers in the transform."""
    TRANSPORT = auto()
    """Writing samples into slots, handing out chunks, making tensors of slots."""
    CONSUMER = auto()
    """The loop that takes the batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What making samples took: nanoseconds of workers, stage by stage, and what a cache did."""

    num_samples: int = 0
    """Samples that were made, those of batches that are made ahead included."""
    read_ns: int = 0
    """Getting bytes from storage."""
    decode_ns: int = 0
    """Decoding; all of `__getitem__` of a map-style dataset."""
    transform_ns: int = 0
    """In the transform."""
    total_ns: int = 0
    """All of that, and writing samples into slots."""
    num_cache_hits: int = 0
    """Samples that came from the cache."""
    num_cache_misses: int = 0
    """Samples that were asked for and not in the cache, those that it never keeps included."""

    def since(self, earlier: "Timings") -> "Timings":
        """Return what was added after `earlier`."""
        return Timings(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        )

    @property
    def ns_by_stage(self) -> "dict[Stage, int]":
        """Nanoseconds of the stages that workers go through."""
        parts = {Stage.READ: self.read_ns, Stage.DECODE: self.decode_ns, Stage.TRANSFORM: self.transform_ns}
        return {**parts, Stage.TRANSPORT: self.total_ns - sum(parts.values())}


def timings_of(tallies: Iterable[Tally]) -> Timings:
    """Return the sum of what was counted, by its names."""
    total = Tally()
    for tally in tallies:
        total.add(tally)
    read_ns, decode_ns, transform_ns, num_hits, num_misses, *_ = total.counts
    return Timings(
        num_samples=total.num_samples,
        read_ns=read_ns,
        decode_ns=decode_ns,
        transform_ns=transform_ns,
        total_ns=total.busy_ns,
        num_cache_hits=num_hits,
        num_cache_misses=num_misses,
    )


def limiting_stage(timings: Timings, *, num_workers: int, wait_seconds: float, elapsed_seconds: float) -> Stage:
    """Return the stage that sets the rate.

    The consumer, where it waited less than 5 % of the time. Transport, where workers were busy less than half of the
    time although the consumer waited. Else the stage that took most of the workers' time.

    Args:
        timings: of all workers together.
        num_workers: how many they are; 0: batches are made in the consumer's own process, which is always busy.
        wait_seconds: time that the consumer waited for batches.
        elapsed_seconds: time in which all that happened.
    """
    if wait_seconds < _NO_WAIT * elapsed_seconds or not elapsed_seconds:
        return Stage.CONSUMER
    if timings.total_ns * 1e-9 < _BUSY * num_workers * elapsed_seconds:
        return Stage.TRANSPORT
    taken = timings.ns_by_stage
    return max(taken, key=lambda stage: taken[stage])


@dataclass(slots=True)
class Latencies:
    """How long the consumer waited for each batch, as counts of durations that are alike within 16 %.

    Memory: constant, 160 counts: 1 microsecond to 3 hours.
    """

    counts: list[int] = field(default_factory=lambda: [0] * _NUM_BUCKETS)
    """16 for each factor of ten, from 1 microsecond on."""

    def add(self, seconds: float) -> None:
        """Count one more duration, of `seconds`."""
        place = math.ceil(_BUCKETS_PER_DECADE * math.log10(max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS))
        self.counts[min(place, _NUM_BUCKETS - 1)] += 1

    def quantile_seconds(self, share: float) -> float:
        """Return the duration that `share` of all do not exceed, at most 16 % too long; 0 where there are none."""
        wanted, seen = share * sum(self.counts), 0
        for place, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return float(_SHORTEST_SECONDS * 10 ** (place / _BUCKETS_PER_DECADE))
        return 0.0

    def copy(self) -> "Latencies":
        """Return the same counts, which stay as they are."""
        return Latencies(list(self.counts))

    def since(self, earlier: "Latencies") -> "Latencies":
        """Return what was counted after `earlier`, a copy."""
        return Latencies([now - before for now, before in zip(self.counts, earlier.counts, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMemory:
    """What a loader's parts take at this moment."""

    slots_bytes: int = 0
    """Shared memory of the slots that have been written to."""
    zygote_bytes: int = 0
    """Of the zygote; memory that workers share with it, as long as it stays unchanged, counts by shares."""
    workers_bytes: int = 0
    """Of the workers, slots and files not counted."""

    @classmethod
    def of(cls, pids: Iterable[int], *, slots_bytes: int) -> "LoaderMemory":
        """Measure the processes `pids` of a loader, the zygote first: about 0.1 ms each; `slots_bytes` are known."""
        zygote, *workers = [anonymous_pss_bytes(pid) for pid in pids] or [0]
        return cls(slots_bytes=slots_bytes, zygote_bytes=zygote, workers_bytes=sum(workers))

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return self.slots_bytes + self.zygote_bytes + self.workers_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """What one worker, and any that it took the place of, has done."""

    name: str
    """As `ps` shows it."""
    pid: int
    """Of the process that does it now."""
    timings: Timings
    """Its time, stage by stage."""


@dataclass(slots=True, kw_only=True)
class LoaderStats:
    """What an `MPLoader` has done since it was made. `str()` of it is for people."""

    num_batches: int = 0
    """Batches handed out."""
    num_samples: int = 0
    """Samples in them."""
    num_workers: int = 0
    """Workers that it has now."""
    wait_seconds: float = 0.0
    """Time that the consumer waited for batches."""
    elapsed_seconds: float = 0.0
    """Time from the start of each iteration to the last batch that it handed out."""
    latencies: Latencies = field(default_factory=Latencies)
    """Waiting times, batch by batch."""
    timings: Timings = field(default_factory=Timings)
    """Time of all workers, stage by stage, that of batches which are made ahead included."""
    memory: LoaderMemory = field(default_factory=LoaderMemory)
    """What it takes now."""
    num_copied_batches: int = 0
    """Batches that were copied because the consumer held on to the slots of earlier ones."""
    num_deaths: int = 0
    """Worker processes that died and were replaced."""
    workers: tuple[WorkerStats, ...] = ()
    """The workers that it has now."""

    def since(self, earlier: "LoaderStats") -> "LoaderStats":
        """Return what happened after `earlier`; workers and memory are those of now."""
        return replace(
            self,
            num_batches=self.num_batches - earlier.num_batches,
            num_samples=self.num_samples - earlier.num_samples,
            wait_seconds=self.wait_seconds - earlier.wait_seconds,
            elapsed_seconds=self.elapsed_seconds - earlier.elapsed_seconds,
            latencies=self.latencies.since(earlier.latencies),
            timings=self.timings.since(earlier.timings),
            num_copied_batches=self.num_copied_batches - earlier.num_copied_batches,
            num_deaths=self.num_deaths - earlier.num_deaths,
        )

    @property
    def samples_per_second(self) -> float:
        """Samples handed out per second."""
        return self.num_samples / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the consumer waited."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def seconds_per_sample(self) -> dict[Stage, float]:
        """A worker's time for one sample, stage by stage."""
        num_samples = max(1, self.timings.num_samples)
        return {stage: taken_ns * 1e-9 / num_samples for stage, taken_ns in self.timings.ns_by_stage.items()}

    @property
    def limit(self) -> Stage:
        """The stage that sets the rate; see `limiting_stage`."""
        return limiting_stage(
            self.timings,
            num_workers=self.num_workers,
            wait_seconds=self.wait_seconds,
            elapsed_seconds=self.elapsed_seconds,
        )

    def metrics(self) -> dict[str, float]:
        """Return the figures by name, units in the names, for whoever keeps them."""
        memory = self.memory
        stages = {f"{stage}_seconds_per_sample": seconds for stage, seconds in self.seconds_per_sample.items()}
        return {
            "batches": self.num_batches,
            "samples": self.num_samples,
            "workers": self.num_workers,
            "samples_per_second": self.samples_per_second,
            "wait_fraction": self.wait_fraction,
            "latency_p50_seconds": self.latencies.quantile_seconds(0.5),
            "latency_p99_seconds": self.latencies.quantile_seconds(0.99),
            **stages,
            "slots_bytes": memory.slots_bytes,
            "zygote_bytes": memory.zygote_bytes,
            "workers_bytes": memory.workers_bytes,
            "cache_hits": self.timings.num_cache_hits,
            "cache_misses": self.timings.num_cache_misses,
            "copied_batches": self.num_copied_batches,
            "deaths": self.num_deaths,
        }

    def _facts(self) -> dict[str, str]:
        p50, p99 = (format_seconds(self.latencies.quantile_seconds(share)) for share in (0.5, 0.99))
        stages = ", ".join(f"{stage} {taken * 1e6:.0f}" for stage, taken in self.seconds_per_sample.items())
        memory = self.memory
        return {
            "done": (
                f"{format_count(self.num_samples)} samples in {format_count(self.num_batches)} batches, "
                f"{self.samples_per_second:,.0f} samples/s by {self.num_workers} workers, limited by {self.limit}"
            ),
            "waiting for batches": f"{self.wait_fraction:.0%} of the time, p50 {p50}, p99 {p99}",
            "microseconds of a worker per sample": stages,
            "memory": (
                f"{format_bytes(memory.total_bytes)} (slots {format_bytes(memory.slots_bytes)}, "
                f"zygote {format_bytes(memory.zygote_bytes)}, workers {format_bytes(memory.workers_bytes)}); "
                f"{self.num_copied_batches} batches copied, {self.num_deaths} deaths"
            ),
        }

    def __str__(self) -> str:
        (_, done), *rest = self._facts().items()
        return "\n".join([done, *(f"{name}: {value}" for name, value in rest)])

    def __repr__(self) -> str:
        return f"<LoaderStats: {self._facts()['done']}>"

    def _repr_html_(self) -> str:
        return html_table("LoaderStats", self._facts())
