"""What a training job asks of its data, and which stage of a machine falls short of it: arithmetic, nothing measured.

A step of `t` seconds that consumes `n` samples on each of `g` GPUs, in `j` jobs at once, needs `n g j / t` samples a
second. Each is a read of its own unless samples lie side by side; their bytes are the bandwidth; and 99 of 100
batches must come within `t`.
"""

import math
from dataclasses import dataclass

from mpload.errors import ArgumentError
from mpload.tools.remedy import Remedy
from mpload.units import format_bytes

__all__ = ["Demand", "Machine", "StageNeed", "remedies", "stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What training needs.

    Attributes:
        batch_size: samples that one GPU consumes in a step.
        step_seconds: how long a step takes when data is there.
        num_gpus: GPUs of a job.
        num_jobs: jobs that read the same storage at once.
        sample_bytes: mean size of a sample as it is stored; None where that does not matter.

    Raises:
        ArgumentError: a number is not positive.
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
        """Over all GPUs and jobs: also the reads per second, where every sample is a file."""
        return self.batch_size * self.num_gpus * self.num_jobs / self.step_seconds

    @property
    def bytes_per_second(self) -> float | None:
        """From storage, over all GPUs and jobs."""
        return None if self.sample_bytes is None else self.samples_per_second * self.sample_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What storage and cores give; None for what is not known.

    Attributes:
        reads_per_second: random reads of a sample's size.
        bytes_per_second: of sequential reads.
        num_cores: cores that may make samples.
        core_seconds: of one core for one sample: decode, transform and transport.

    Raises:
        ArgumentError: a number is not positive.
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
                "what cores give is their number and the time of a sample on one: "
                f"got num_cores={self.num_cores}, core_seconds={self.core_seconds}. Give both or neither"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeed:
    """Need beside have, of one stage; rates per second."""

    name: str
    unit: str
    need: float
    have: float | None
    """None where it is not known."""

    @property
    def share(self) -> float | None:
        """Part of the need that is met, 1 where all is."""
        return None if self.have is None else min(1.0, self.have / self.need)


def stages(demand: Demand, machine: Machine) -> list[StageNeed]:
    """Return need and have of every stage that one can say something of, in the order in which a sample meets them."""
    rate = demand.samples_per_second
    result = [StageNeed(name="reads", unit="reads/s", need=rate, have=machine.reads_per_second)]
    if demand.bytes_per_second is not None:
        result.append(
            StageNeed(name="bandwidth", unit="B/s", need=demand.bytes_per_second, have=machine.bytes_per_second)
        )
    cores = None
    if machine.num_cores is not None and machine.core_seconds is not None:
        cores = machine.num_cores / machine.core_seconds
    result.append(StageNeed(name="cores", unit="samples/s", need=rate, have=cores))
    return result


def remedies(demand: Demand, machine: Machine) -> list[Remedy]:
    """Return what mends the stage that limits the job, the cheapest first; nothing where none does.

    A gain ends where the next stage limits, or where the need is met.
    """
    found = stages(demand, machine)
    shares = {stage.name: stage.share for stage in found if stage.share is not None}
    if not shares or min(shares.values()) >= 1:
        return []
    worst = min(shares, key=lambda name: shares[name])
    share = shares[worst]
    others = min((value for name, value in shares.items() if name != worst), default=1.0)
    gain = others / share
    if worst == "cores":
        assert machine.core_seconds is not None
        num_cores = math.ceil(demand.samples_per_second * machine.core_seconds)
        allowed = 1 / demand.samples_per_second * (machine.num_cores or 1)
        return [
            Remedy(
                text=f"make a sample cheaper, {allowed * 1e6:,.0f} us of a core at most: resize once with "
                "`mpload pack --resize-short 256`, or decode on the GPU",
                gain=gain,
            ),
            Remedy(text=f"{num_cores:,} cores for as many workers", gain=gain),
        ]
    fraction = 1 - share
    cached = Remedy(
        text=f"cache {fraction:.0%} of the samples on a local disk: PartialCache(fraction={fraction:.2f}), "
        "from the second epoch on",
        gain=gain,
    )
    if worst == "bandwidth":
        smaller = (demand.sample_bytes or 0) * share
        return [
            Remedy(
                text=f"smaller samples, {format_bytes(smaller)} on average: `mpload pack --resize-short`", gain=gain
            ),
            cached,
        ]
    together = math.ceil(1 / share)
    return [
        Remedy(
            text=f"read at least {together} samples at once: shards (`mpload pack`) and shuffle=BlockShuffle(...)",
            gain=gain,
        ),
        cached,
    ]


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ArgumentError(f"{name} must be positive, got {value!r}")
