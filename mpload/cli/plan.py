"""`mpload plan`: calculate what a job needs of storage and cores."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mpload.cli.reports import AsJson, print_json
from mpload.tools.demand import Demand, Machine, StageNeed, remedies, stages
from mpload.units import format_bytes, parse_bytes

__all__ = ["plan"]


def plan(
    *,
    batch_size: Annotated[int, typer.Option(help="Samples per batch and GPU.")],
    step_time: Annotated[float, typer.Option(help="Seconds per training step once data is ready.")],
    gpus: Annotated[int, typer.Option(help="GPUs per job.")] = 1,
    jobs: Annotated[
        int, typer.Option(help="Jobs that read the same storage at the same time, each on its own cores.")
    ] = 1,
    sample_size: Annotated[str | None, typer.Option(help="Mean size of a stored sample, such as 110KB.")] = None,
    iops: Annotated[float | None, typer.Option(help="Random reads per second that the storage delivers.")] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Bytes per second that the storage delivers, such as 500MB.")
    ] = None,
    cores: Annotated[int | None, typer.Option(help="Cores available to the workers of one job.")] = None,
    core_us: Annotated[float | None, typer.Option(help="Microseconds that one core takes per sample.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what a job needs with what a machine offers.

    This is arithmetic only: no data is read. `mpload doctor` measures instead.
    """
    demand = Demand(
        batch_size=batch_size,
        step_seconds=step_time,
        num_gpus=gpus,
        num_jobs=jobs,
        sample_bytes=None if sample_size is None else parse_bytes(sample_size),
    )
    machine = Machine(
        reads_per_second=iops,
        bytes_per_second=None if bandwidth is None else parse_bytes(bandwidth),
        num_cores=cores,
        core_seconds=None if core_us is None else core_us / 1e6,
    )
    needs, advice = stages(demand, machine), remedies(demand, machine)
    if as_json:
        rates = [asdict(stage) | {"share": stage.share} for stage in needs]
        changes = [{"text": remedy.text, "gain": remedy.gain} for remedy in advice]
        print_json({"stages": rates, "batch_within_seconds": demand.step_seconds, "remedies": changes})
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    for heading in ("needs", "has", "met"):
        table.add_column(heading, justify="right")
    for stage in needs:
        met = "?" if stage.share is None else f"{stage.share:.0%}"
        table.add_row(
            stage.name, _rate(stage, stage.need), "?" if stage.have is None else _rate(stage, stage.have), met
        )
    Console(soft_wrap=True, highlight=False).print(table)
    print(f"\n99 of 100 batches must arrive within {demand.step_seconds:g} s")
    for number, remedy in enumerate(advice, start=1):
        print(f"{number}. {remedy.text} ({remedy.gain:.1f}x as fast)")


def _rate(stage: StageNeed, value: float) -> str:
    return f"{format_bytes(value)}/s" if stage.unit == "B/s" else f"{value:,.0f} {stage.unit}"
