"""What a training job requires of its data, and which stage of a machine falls short. Nothing is measured here.

If a step takes `t` seconds and consumes `n` samples on each of `g` GPUs in each of `j` concurrent jobs, then
`n g j / t` samples are needed per second. The jobs share the storage; each has cores of its own. Unless samples are
stored side by side, each is a read of its own. The bandwidth is the rate times the size of a sample, and 99 of 100
batches must arrive within `t`.
"""

import math
from dataclasses import dataclass

from mpload.errors import ArgumentError
from mpload.tools.remedy import Remedy
from mpload.units import format_bytes, format_counted

__all__ = ["Demand", "Machine", "StageNeed", "remedies", "stages"]

_MIN_GAIN = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What training requires.

    Attributes:
        batch_size: The samples that one GPU consumes per step.
        step_seconds: The time of a step once its data is ready.
        num_gpus: The GPUs of one job.
        num_jobs: The jobs that read the same storage at the same time.
        sample_bytes: The mean stored size of a sample; None if bandwidth is of no interest.

    Raises:
        ArgumentError: A number is not positive.
    """

    batch_size: int
    step_seconds: float
    num_gpus: int = 1
    num_jobs: int = 1
    sample_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "step_seconds", "num_gpus", "num_jobs", "sample_bytes"):
            _check_positive(name, getattr(self, name))

    @property
    def samples_per_second(self) -> float:
        """The rate over all GPUs and jobs. It equals the reads per second if every sample is a file."""
        return self.batch_size * self.num_gpus * self.num_jobs / self.step_seconds

    @property
    def bytes_per_second(self) -> float | None:
        """The bandwidth from storage, over all GPUs and jobs."""
        return None if self.sample_bytes is None else self.samples_per_second * self.sample_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What storage and cores deliver. None means that a figure is not known.

    Attributes:
        reads_per_second: Random reads of the size of a sample.
        bytes_per_second: The bandwidth of sequential reads.
        num_cores: The cores available to the workers of one job.
        core_seconds: The time that one core takes per sample, for decode, transform and transport.

    Raises:
        ArgumentError: A number is not positive.
    """

    reads_per_second: float | None = None
    bytes_per_second: float | None = None
    num_cores: int | None = None
    core_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("reads_per_second", "bytes_per_second", "num_cores", "core_seconds"):
            _check_positive(name, getattr(self, name))
        if (self.num_cores is None) != (self.core_seconds is None):
            raise ArgumentError(
                f"num_cores and core_seconds belong together, got num_cores={self.num_cores} and "
                f"core_seconds={self.core_seconds}. Give both or neither"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeed:
    """The rate that a stage needs, and the rate that it delivers, both per second."""

    name: str
    unit: str
    need: float
    have: float | None
    """None if it is not known."""

    @property
    def share(self) -> float | None:
        """The share of the need that is met, at most 1. None if it is not known."""
        return None if self.have is None else min(1.0, self.have / self.need)


def stages(demand: Demand, machine: Machine) -> list[StageNeed]:
    """Return what every stage needs and delivers, in the order in which a sample passes through them."""
    rate = demand.samples_per_second
    result = [StageNeed(name="reads", unit="reads/s", need=rate, have=machine.reads_per_second)]
    if demand.bytes_per_second is not None:
        result.append(
            StageNeed(name="bandwidth", unit="B/s", need=demand.bytes_per_second, have=machine.bytes_per_second)
        )
    cores = None
    if machine.num_cores is not None and machine.core_seconds is not None:
        cores = machine.num_cores / machine.core_seconds
    result.append(StageNeed(name="cores", unit="samples/s", need=rate / demand.num_jobs, have=cores))
    return result


def remedies(demand: Demand, machine: Machine) -> list[Remedy]:
    """Return the remedies for the stage that limits the job, the cheapest first. Return none if no stage does.

    A gain is capped by the next slowest stage and by the need. A cache serves reads and bandwidth together.
    """
    shares = {stage.name: stage.share for stage in stages(demand, machine) if stage.share is not None}
    if not shares or min(shares.values()) >= 1:
        return []
    worst = min(shares, key=lambda name: shares[name])
    share = shares[worst]

    def gain(*relieved: str, factor: float = math.inf) -> float:
        return min(1.0, *(have * (factor if name in relieved else 1.0) for name, have in shares.items())) / share

    if worst == "cores":
        assert machine.core_seconds is not None
        rate = demand.samples_per_second / demand.num_jobs
        max_core_seconds = (machine.num_cores or 1) / rate
        return [
            Remedy(
                text=f"Make samples cheaper, at most {max_core_seconds * 1e6:,.0f} us of a core each: shrink images "
                "once with `mpload pack INDEX -o FOLDER --resize-short 256`, or decode on the GPU",
                gain=gain("cores"),
            ),
            Remedy(
                text=f"Use {format_counted(math.ceil(rate * machine.core_seconds), 'core')} and as many workers",
                gain=gain("cores"),
            ),
        ]
    percent = math.ceil(100 * (1 - share / shares.get("cores", 1.0)))
    cached = Remedy(
        text=f"Cache {percent}% of the samples on a local disk: "
        f"cache=PartialCache(FOLDER, fraction={percent / 100:.2f}). This helps from the second epoch on",
        gain=gain("reads", "bandwidth", factor=math.inf if percent == 100 else 1 / (1 - percent / 100)),
    )
    if worst == "bandwidth":
        max_bytes = (demand.sample_bytes or 0) * share
        other = Remedy(
            text=f"Store samples of at most {format_bytes(max_bytes)} on average: "
            "`mpload pack INDEX -o FOLDER --resize-short 256`",
            gain=gain("bandwidth"),
        )
    else:
        other = Remedy(
            text=f"Read at least {math.ceil(1 / share)} samples at once: pack them with `mpload pack INDEX -o FOLDER`, "
            "and pass shuffle=BlockShuffle(block_samples=256)",
            gain=gain("reads"),
        )
    return [remedy for remedy in (other, cached) if remedy.gain >= _MIN_GAIN] or [cached]


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ArgumentError(f"{name} must be positive, got {value!r}")
