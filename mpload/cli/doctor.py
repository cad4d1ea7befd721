"""`mpload doctor`: what limits a job, measured on its own data."""

import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mpload.cli.loading import decoder_of, named_object, opened
from mpload.cli.outputs import check_output
from mpload.cli.reports import AsJson, print_json, prints_on_stderr
from mpload.memory.machine import num_usable_cores
from mpload.tools.doctor.facts import Job
from mpload.units import format_bytes, format_count

__all__ = ["doctor"]


def doctor(
    path: Annotated[Path, typer.Argument(metavar="INDEX", help="An index, or a plain list of `path label` lines.")],
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch and GPU.")] = 256,
    step_time: Annotated[
        float | None, typer.Option(help="Seconds per training step once data is ready. Default: as fast as possible.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the job on this machine.")] = 1,
    experiments: Annotated[int, typer.Option(min=1, help="Jobs that read the same storage at once.")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes of each GPU's loader; default: a core each.")
    ] = None,
    decode: Annotated[
        str | None, typer.Option(metavar="MODULE:OBJECT", help="Default: RandomResizedCrop(224).")
    ] = None,
    transform: Annotated[str | None, typer.Option(metavar="MODULE:OBJECT", help="Default: none.")] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure.")] = 30.0,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write the report as an HTML page.")] = None,
) -> None:
    """Find out what limits a job: storage, decode, transform, transport, workers, memory.

    Reads a few hundred samples, drops them from the page cache, and runs loaders for a few seconds each.
    """
    check_output(html)
    with prints_on_stderr(wanted=as_json), warnings.catch_warnings():
        index = opened(path)
        job = Job(
            batch_size=batch_size,
            num_workers=workers or max(1, num_usable_cores() // gpus),
            step_seconds=step_time,
            num_gpus=gpus,
            num_jobs=experiments,
        )
        decoder = decoder_of(decode)
        transformed = None if transform is None else named_object(transform, option="--transform")
        # torch is loaded here, when the arguments are known to be right
        from mpload.tools.doctor.examine import examine  # noqa: PLC0415

        warnings.simplefilter("ignore")  # that more workers than cores are tried is the doctor's idea
        diagnosis = examine(index, decode=decoder, transform=transformed, job=job, seconds=seconds, tell=_tell)
    if html is not None:
        from mpload.tools.doctor.report import write_report  # noqa: PLC0415

        write_report(diagnosis, html, title=str(path))
    if as_json:
        print_json(_facts(diagnosis))
    else:
        _print(diagnosis)
        if html is not None:
            print(f"\nreport   {html}")


def _print(diagnosis: Any) -> None:
    findings, verdict = diagnosis.findings, diagnosis.verdict
    samples, environment = findings.samples, findings.environment
    cached = "" if samples.cached_share is None else f", {samples.cached_share:.0%} of it in the page cache"
    _say("data", f"{format_count(samples.num_samples)} samples of {format_bytes(samples.mean_bytes)}{cached}")
    if samples.num_failed:
        tried = samples.num_failed + samples.num_measured
        _say("broken", f"{samples.num_failed} of {tried} samples: {samples.first_failure}")
    limit = format_bytes(environment.memory_limit_bytes)
    _say(
        "machine",
        f"{environment.usable_cores} of {environment.host_cores} cores, {format_bytes(environment.memory_free_bytes)} "
        f"free of {limit}, {environment.file_system}, {environment.max_descriptors:,} open files"
        + (f", {environment.device}" if environment.device else ""),
    )
    if (demand := findings.job.demand(samples.mean_bytes)) is not None:
        every = f" in all {findings.job.num_jobs} jobs" if findings.job.num_jobs > 1 else ""
        bandwidth = format_bytes(demand.bytes_per_second)
        _say(
            "needs",
            f"{demand.samples_per_second:,.0f} samples/s{every}: as many reads/s and {bandwidth}/s of the storage; "
            f"99 of 100 batches within {demand.step_seconds:g} s",
        )
    print()
    table = Table("stage, samples/s", "needs", "has", "met", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in verdict.stages:
        met = "" if stage.share is None else f"{stage.share:.0%}"
        table.add_row(stage.name, _rate(stage.need), _rate(stage.have, unknown="no limit seen"), met)
    Console(soft_wrap=True, highlight=False).print(table)
    for trial in findings.trials:
        if not trial.is_empty:
            told = trial.error or f"{trial.samples_per_second:,.0f} samples/s"
            print(f"tried {trial.num_workers} workers, batches of {trial.batch_size}: {told}")
    print(f"\nlimited by {verdict.bottleneck}: {verdict.reason}")
    for number, remedy in enumerate(diagnosis.remedies, start=1):
        print(f"{number}. {remedy.text}: {_gain(remedy)}")


def _facts(diagnosis: Any) -> dict[str, Any]:
    """Return the diagnosis with what follows from it, stages as `mpload plan` has them."""
    facts = asdict(diagnosis)
    facts["verdict"]["stages"] = [
        {"name": stage.name, "unit": "samples/s", "need": stage.need, "have": stage.have, "share": stage.share}
        for stage in diagnosis.verdict.stages
    ]
    return {"needs": _needs(diagnosis.findings), **facts}


def _needs(findings: Any) -> dict[str, float | None] | None:
    if (demand := findings.job.demand(findings.samples.mean_bytes)) is None:
        return None
    return {
        "reads_per_second": demand.samples_per_second,
        "bytes_per_second": demand.bytes_per_second,
        "batch_within_seconds": demand.step_seconds,
    }


def _gain(remedy: Any) -> str:
    if remedy.gain == float("inf"):
        return "it starts at all"
    return f"{remedy.gain:.1f}x" + (", tried" if remedy.is_measured else "")


def _rate(value: float | None, *, unknown: str = "") -> str:
    return unknown if value is None else f"{value:,.0f}"


def _say(what: str, told: str) -> None:
    print(f"{what:9}{told}")


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        print(f"measuring {what}", file=sys.stderr)
