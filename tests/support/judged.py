"""Facts about jobs for tests of the judgement."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from mpload.judgement.facts import (
    Alternative,
    Change,
    Cost,
    Environment,
    Facts,
    Job,
    ReadRate,
    Samples,
    StorageSpeed,
    Temperature,
    Trial,
)
from mpload.memory.contention import Contention
from mpload.units import GIB, KIB, MIB

__all__ = ["findings", "plain", "rates"]

small = st.floats(1e-6, 0.1)
costs = st.builds(Cost, cpu_seconds=small, wait_seconds=st.one_of(st.just(0.0), small))
rates = st.builds(
    ReadRate,
    temperature=st.sampled_from(Temperature),
    concurrency=st.sampled_from([1, 4, 16]),
    samples_per_second=st.floats(1, 1e6),
    is_sequential=st.booleans(),
)
alternatives = st.builds(
    Alternative,
    change=st.sampled_from(Change),
    decode=costs,
    mean_bytes=st.none() | st.floats(1, 1e5),
    detail=st.just("256"),
)
contentions = st.builds(
    Contention,
    neighbour_cores=st.floats(0, 64),
    throttled_share=st.floats(0, 1),
    memory_pressure=st.floats(0, 1),
    swapped_bytes_per_second=st.floats(0, 1e9),
)
trials = st.builds(
    Trial,
    num_workers=st.integers(1, 8),
    batch_size=st.sampled_from([1, 8, 64]),
    samples_per_second=st.floats(1, 1e6),
    is_empty=st.booleans(),
)


@st.composite
def findings(draw: st.DrawFn) -> Facts:
    cores = draw(st.integers(1, 64))
    return Facts(
        job=Job(
            batch_size=draw(st.sampled_from([1, 8, 64, 256])),
            num_workers=draw(st.integers(1, 80)),
            step_seconds=draw(st.one_of(st.none(), st.floats(1e-4, 10))),
            num_gpus=draw(st.integers(1, 8)),
            num_jobs=draw(st.integers(1, 10)),
        ),
        samples=Samples(
            num_samples=draw(st.integers(1, 10**9)),
            num_measured=10,
            mean_bytes=draw(st.floats(1, 1e7)),
            output_bytes=draw(st.floats(1, 1e6)),
            cached_share=draw(st.one_of(st.none(), st.floats(0, 1))),
            num_shards=draw(st.integers(0, 100)),
        ),
        storage=StorageSpeed(
            rates=tuple(draw(st.lists(rates, max_size=8))),
            read=draw(costs),
            reads_per_worker=draw(st.sampled_from([1, 16])),
            packed_samples_per_second=draw(st.one_of(st.none(), st.floats(1, 1e6))),
        ),
        environment=Environment(
            usable_cores=cores,
            host_cores=cores + draw(st.integers(0, 64)),
            memory_limit_bytes=64 * GIB,
            memory_free_bytes=draw(st.integers(64 * MIB, 64 * GIB)),
            max_descriptors=draw(st.sampled_from([16, 64, 1024])),
            used_descriptors=8,
            contention=draw(contentions),
        ),
        decode=draw(costs),
        transform=draw(costs),
        lookup=draw(costs | st.just(Cost())),
        alternatives=tuple(draw(st.lists(alternatives, max_size=3))),
        trials=tuple(draw(st.lists(trials, max_size=4))),
    )


def plain(*, num_workers: int = 4, step_seconds: float | None = 0.01, **changes: Any) -> Facts:
    """A job on a machine of 8 cores where everything is fast."""
    found = Facts(
        job=Job(batch_size=32, num_workers=num_workers, step_seconds=step_seconds),
        samples=Samples(num_samples=10**6, num_measured=99, mean_bytes=100 * KIB, output_bytes=150e3, cached_share=0.0),
        storage=StorageSpeed(
            rates=tuple(
                ReadRate(temperature=temperature, concurrency=at_once, samples_per_second=rate * at_once)
                for temperature, rate in ((Temperature.COLD, 2000), (Temperature.WARM, 20_000))
                for at_once in (1, 16)
            ),
            read=Cost(cpu_seconds=40e-6),
            reads_per_worker=16,
        ),
        environment=Environment(
            usable_cores=8,
            host_cores=8,
            memory_limit_bytes=256 * GIB,
            memory_free_bytes=250 * GIB,
            max_descriptors=1024,
            used_descriptors=10,
        ),
        decode=Cost(cpu_seconds=1e-3),
    )
    return replace(found, **changes)
