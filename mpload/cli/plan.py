"""`mpload plan`: judge a job by assumed figures of storage and cores."""

from typing import Annotated

import typer

from mpload.cli.reports import AsJson, print_json
from mpload.cli.verdicts import print_remedies, print_stages, stages_of
from mpload.errors import ArgumentError
from mpload.judgement.facts import Cost, Environment, Facts, Job, ReadRate, Samples, StorageSpeed, Temperature
from mpload.judgement.remedies import remedies
from mpload.judgement.verdict import judge
from mpload.units import parse_bytes

__all__ = ["plan"]

_LEAST = 1e-9


def plan(
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch and GPU.")],
    step_time: Annotated[float, typer.Option(min=_LEAST, help="Seconds per training step once data is ready.")],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs per job.")] = 1,
    jobs: Annotated[
        int, typer.Option(min=1, help="Jobs that read the same storage at the same time, each on its own cores.")
    ] = 1,
    sample_size: Annotated[str | None, typer.Option(help="Mean size of a stored sample, such as 110KB.")] = None,
    iops: Annotated[
        float | None, typer.Option(min=_LEAST, help="Random reads per second that the storage delivers.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Bytes per second that the storage delivers, such as 500MB.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores available to the workers of one job.")] = None,
    core_us: Annotated[
        float | None, typer.Option(min=_LEAST, help="Microseconds that one core takes per sample.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what a job needs with what a machine offers.

    This is the doctor's arithmetic with your figures: no data is read. `mpload doctor` measures instead.
    """
    if (cores is None) != (core_us is None):
        raise ArgumentError(f"--cores and --core-us belong together, got {cores} and {core_us}. Give both or neither")
    if bandwidth is not None and sample_size is None:
        raise ArgumentError(f"--bandwidth {bandwidth} counts bytes, not samples. Give --sample-size too, such as 110KB")
    rate = None if iops is None else ReadRate(temperature=Temperature.COLD, concurrency=1, samples_per_second=iops)
    facts = Facts(
        job=Job(batch_size=batch_size, step_seconds=step_time, num_gpus=gpus, num_jobs=jobs),
        samples=Samples(mean_bytes=None if sample_size is None else parse_bytes(sample_size)),
        storage=StorageSpeed(
            rates=() if rate is None else (rate,),
            bytes_per_second=None if bandwidth is None else parse_bytes(bandwidth),
            reads_per_worker=2,  # reading and decoding overlap
        ),
        environment=Environment(usable_cores=cores),
        decode=Cost(cpu_seconds=(core_us or 0) / 1e6),
    )
    verdict = judge(facts)
    advice = remedies(facts, verdict)
    if as_json:
        changes = [{"text": remedy.text, "gain": remedy.gain} for remedy in advice]
        print_json({"stages": stages_of(verdict), "batch_within_seconds": step_time, "remedies": changes})
        return
    print_stages(verdict.stages, unknown="?")
    print(f"\n99 of 100 batches must arrive within {step_time:g} s")
    if any(stage.have is not None for stage in verdict.stages):
        print(f"{verdict.headline}. {verdict.reason}.")
    else:
        print(
            "To compare, give --iops, or --bandwidth with --sample-size, and --cores with --core-us; "
            "mpload doctor measures them"
        )
    print_remedies(tuple(advice))
