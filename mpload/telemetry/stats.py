"""Statistics of a loader: counts, times, memory, and the stage that limits the rate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from mpload.judgement.facts import Alternative, Cost, Environment, Facts, Job, Running, Stage, StorageSpeed
from mpload.judgement.verdict import judge
from mpload.memory.contention import Contention
from mpload.memory.core_times import CoreShares
from mpload.memory.usage import anonymous_pss_bytes
from mpload.telemetry.latencies import Latencies
from mpload.telemetry.server_stats import ServerStats
from mpload.transport.messages import Tally
from mpload.units import format_bytes, format_count, format_seconds, html_table

__all__ = [
    "LoaderMemory",
    "LoaderStats",
    "SourceStats",
    "Stage",
    "Timings",
    "WorkerStats",
    "running_facts",
    "timings_of",
]

_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Nanoseconds that workers spent on samples, stage by stage, and the hits and misses of a cache."""

    num_samples: int = 0
    """Samples made, including those of batches not delivered yet."""
    read_ns: int = 0
    """Time spent reading bytes from storage."""
    decode_ns: int = 0
    """Time spent decoding. For a map-style dataset this is all of `__getitem__`."""
    transform_ns: int = 0
    """Time spent in the transform."""
    total_ns: int = 0
    """Total time, which also includes writing samples into slots."""
    num_cache_hits: int = 0
    """Samples read from the cache."""
    num_cache_misses: int = 0
    """Samples not found in the cache, including those that it never keeps."""
    num_hedges: int = 0
    """Requests to a server that were made a second time because the first one was late."""
    num_served: int = 0
    """Samples that servers have made, of those of `num_samples`. The others were made by the workers."""
    served_bytes: int = 0
    """Bytes received from those servers."""

    def since(self, earlier: "Timings") -> "Timings":
        """Return the difference from `earlier`."""
        return Timings(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        )

    @property
    def ns_by_stage(self) -> "dict[Stage, int]":
        """Nanoseconds by stage, for the stages of a worker."""
        parts = {Stage.READ: self.read_ns, Stage.DECODE: self.decode_ns, Stage.TRANSFORM: self.transform_ns}
        return {**parts, Stage.TRANSPORT: self.total_ns - sum(parts.values())}


def timings_of(total: Tally) -> Timings:
    """Return a tally with the counters under their names."""
    read_ns, decode_ns, transform_ns, num_hits, num_misses, num_hedges, num_served, served_bytes = total.counts
    return Timings(
        num_samples=total.num_samples,
        read_ns=read_ns,
        decode_ns=decode_ns,
        transform_ns=transform_ns,
        total_ns=total.busy_ns,
        num_cache_hits=num_hits,
        num_cache_misses=num_misses,
        num_hedges=num_hedges,
        num_served=num_served,
        served_bytes=served_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMemory:
    """Memory that the parts of a loader use at this moment."""

    slots_bytes: int = 0
    """Shared memory of all slots that have been written to."""
    zygote_bytes: int = 0
    """Memory of the zygote. Pages that it shares with workers are divided among the processes (PSS)."""
    workers_bytes: int = 0
    """Memory of all workers, without slots and mapped files, with shared pages divided in the same way."""

    @classmethod
    def of(cls, pids: Iterable[int], *, slots_bytes: int) -> "LoaderMemory":
        """Measure the memory of a loader's processes, which takes about 0.1 ms each.

        Args:
            pids: process ids of the zygote and then of the workers.
            slots_bytes: shared memory of the slots, which the caller has measured.
        """
        zygote, *workers = [anonymous_pss_bytes(pid) for pid in pids] or [0]
        return cls(slots_bytes=slots_bytes, zygote_bytes=zygote, workers_bytes=sum(workers))

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return self.slots_bytes + self.zygote_bytes + self.workers_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """Statistics of one worker, including any dead workers that it replaced."""

    name: str
    """Process name, as `ps` shows it."""
    pid: int
    """Process id of the current worker."""
    timings: Timings
    """Time by stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats:
    """The samples of one source of a mixture."""

    num_samples: int = 0
    """Samples in delivered batches: substitutes count, skipped samples do not."""
    num_failed: int = 0
    """Samples that failed, and were skipped or substituted."""

    def since(self, earlier: "SourceStats") -> "SourceStats":
        """Return the difference from `earlier`."""
        return SourceStats(
            num_samples=self.num_samples - earlier.num_samples, num_failed=self.num_failed - earlier.num_failed
        )

    def __str__(self) -> str:
        failed = f", {format_count(self.num_failed)} failed" if self.num_failed else ""
        return f"{format_count(self.num_samples)} samples{failed}"


@dataclass(slots=True, kw_only=True)
class LoaderStats:
    """Statistics of an `MPLoader` since it was made. `str()` gives a readable summary."""

    num_batches: int = 0
    """Batches delivered."""
    num_samples: int = 0
    """Samples in these batches."""
    num_workers: int = 0
    """Current number of workers."""
    wait_seconds: float = 0.0
    """Time that the consumer waited: for batches, for the start of workers, and for writers of statistics."""
    elapsed_seconds: float = 0.0
    """Time from the first request of each iteration until its last answer, summed over iterations."""
    latencies: Latencies = field(default_factory=Latencies)
    """Histogram of the times that the consumer waited for a batch."""
    timings: Timings = field(default_factory=Timings)
    """Time by stage, summed over all workers, including time for batches not delivered yet."""
    memory: LoaderMemory = field(default_factory=LoaderMemory)
    """Current memory use."""
    num_copied_batches: int = 0
    """Batches copied out of their slot because the consumer still held too many earlier ones."""
    num_deaths: int = 0
    """Processes that died and were replaced."""
    workers: tuple[WorkerStats, ...] = ()
    """The current workers."""
    sources: Mapping[str, SourceStats] = field(default_factory=dict)
    """The samples of each source of a mixture, by its path; empty for other datasets."""
    servers: Mapping[str, ServerStats] = field(default_factory=dict)
    """What each server of samples has done, by its URL; empty without `servers=`."""

    def since(self, earlier: "LoaderStats") -> "LoaderStats":
        """Return the counts and times since `earlier`. The number of workers and the memory are current."""
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
            sources={name: each.since(earlier.sources.get(name, SourceStats())) for name, each in self.sources.items()},
            servers={url: each.since(earlier.servers.get(url, ServerStats())) for url, each in self.servers.items()},
        )

    @property
    def samples_per_second(self) -> float:
        """Samples delivered per second."""
        return self.num_samples / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        """Fraction of the time that the consumer spent waiting."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def seconds_per_sample(self) -> dict[Stage, float]:
        """Mean time of a worker for one sample, by stage."""
        num_samples = max(1, self.timings.num_samples)
        return {stage: taken_ns * 1e-9 / num_samples for stage, taken_ns in self.timings.ns_by_stage.items()}

    @property
    def limit(self) -> Stage:
        """The stage that limits the rate, or the consumer if it waits for less than 5% of the time."""
        return Stage(judge(running_facts(self)).stage)

    def metrics(self) -> dict[str, float]:
        """Return all figures by name, for logging. Names carry the unit."""
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
            "hedges": self.timings.num_hedges,
            "served_samples": self.timings.num_served,
            "served_bytes": self.timings.served_bytes,
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
            **self._facts_of_servers(),
            **self._facts_of_sources(),
        }

    def _facts_of_servers(self) -> dict[str, str]:
        timings = self.timings
        if not timings.num_served and not self.servers:
            return {}
        share = timings.num_served / max(1, timings.num_samples)
        sent = f"{format_bytes(timings.served_bytes)}{self._speed(timings.served_bytes)}"
        by_url = {url: f"{each}{self._speed(each.received_bytes)}" for url, each in self.servers.items()}
        return {"made by servers": f"{share:.1%} of the samples, {sent}", **_shown(by_url, "more servers")}

    def _speed(self, num_bytes: int) -> str:
        return f", {format_bytes(int(num_bytes / self.elapsed_seconds))}/s" if self.elapsed_seconds else ""

    def _facts_of_sources(self) -> dict[str, str]:
        return _shown({name: str(each) for name, each in self.sources.items()}, "more sources")

    def __str__(self) -> str:
        (_, done), *rest = self._facts().items()
        return "\n".join([done, *(f"{name}: {value}" for name, value in rest)])

    def __repr__(self) -> str:
        return f"<LoaderStats: {self._facts()['done']}>"

    def _repr_html_(self) -> str:
        return html_table("LoaderStats", self._facts())


def _shown(facts: dict[str, str], more: str) -> dict[str, str]:
    """Return the first of many facts, and how many more there are."""
    shown = dict(list(facts.items())[:_MAX_SHOWN])
    num_more = len(facts) - len(shown)
    return {**shown, more: format_count(num_more)} if num_more else shown


def running_facts(
    span: LoaderStats,
    *,
    shares: Iterable[CoreShares] = (),
    num_cores: float | None = None,
    is_auto: bool = False,
    contention: Contention | None = None,
    refaulted_bytes: float = 0.0,
    alternatives: tuple[Alternative, ...] = (),
) -> Facts:
    """Return what the statistics of a span tell about a running loader, to be judged.

    Args:
        span: the statistics of the span.
        shares: how each worker spent the span, as the kernel counts it. Without them, all time seems computing.
        num_cores: number of cores available to the workers.
        is_auto: whether the loader chooses the number of workers.
        contention: what else took the resources of the machine.
        refaulted_bytes: bytes that had to be read again because the page cache had dropped them.
        alternatives: cheaper ways to decode the samples.
    """
    shares = list(shares)
    elapsed, busy = span.elapsed_seconds, span.timings.total_ns * 1e-9
    running = sum(each.seconds * each.running for each in shares)
    delayed = sum(each.seconds * each.delayed for each in shares)
    # Threads of one worker can be delayed at the same time: the share is that of the time in which they could run.
    delayed_share = delayed / max(busy, running + delayed) if delayed else 0.0
    computing = min(1.0, running / busy) if running and busy else 1.0
    waiting = max(0.0, 1 - computing - delayed_share) if running and busy else 0.0
    costs = {
        stage: Cost(cpu_seconds=max(0.0, computing * seconds), wait_seconds=max(0.0, waiting * seconds))
        for stage, seconds in span.seconds_per_sample.items()
    }
    own_seconds = max(0.0, elapsed - span.wait_seconds) / max(1, span.num_batches)
    contention = replace(contention or Contention(), delayed_share=delayed_share)
    return Facts(
        job=Job(
            batch_size=max(1.0, span.num_samples / max(1, span.num_batches)),
            num_workers=max(1, span.num_workers),
            step_seconds=own_seconds or None,
            is_auto=is_auto,
        ),
        storage=StorageSpeed(read=costs[Stage.READ]),
        decode=costs[Stage.DECODE],
        transform=costs[Stage.TRANSFORM],
        transport=costs[Stage.TRANSPORT],
        environment=Environment(usable_cores=num_cores, contention=contention),
        alternatives=alternatives,
        running=Running(
            seconds=elapsed,
            samples_per_second=span.samples_per_second,
            waiting_share=span.wait_fraction,
            busy_share=min(1.0, busy / (span.num_workers * elapsed)) if span.num_workers and elapsed else 1.0,
            refaulted_bytes_per_second=refaulted_bytes / elapsed if elapsed else 0.0,
            served_share=min(1.0, span.timings.num_served / max(1, span.timings.num_samples)),
            served_bytes_per_second=span.timings.served_bytes / elapsed if elapsed else 0.0,
        ),
        index_path=None,
    )
