"""`mpload doctor`: measure what limits a job, on its own data."""

import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mpload.cli.loading import IndexArgument, decoder_of, named_object, opened
from mpload.cli.outputs import check_output
from mpload.cli.reports import AsJson, print_json, prints_on_stderr
from mpload.memory.machine import num_usable_cores
from mpload.tools.doctor.facts import Job
from mpload.units import format_bytes, format_counted

__all__ = ["doctor"]


def doctor(
    path: IndexArgument,
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch and GPU.")] = 256,
    step_time: Annotated[
        float | None, typer.Option(help="Seconds per training step once data is ready.  [default: as fast as possible]")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the job on this machine.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs that read the same storage at the same time.")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes per GPU.  [default: one per core]")
    ] = None,
    decode: Annotated[
        str | None, typer.Option(metavar="MODULE:OBJECT", help="Your decoder.  [default: RandomResizedCrop(224)]")
    ] = None,
    transform: Annotated[
        str | None, typer.Option(metavar="MODULE:OBJECT", help="Your transform.  [default: none]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds to measure.")] = 30.0,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Also write the report as an HTML page.")] = None,
) -> None:
    """Find out what limits the speed of a job.

    Also suggests what would help. Measures storage, decoding, transform, transport, workers and memory. Reads a few
    hundred samples, drops their files from the page cache, and runs loaders for a few seconds each.
    """
    check_output(html)
    with prints_on_stderr(is_wanted=as_json), warnings.catch_warnings():
        index = opened(path)
        job = Job(
            batch_size=batch_size,
            num_workers=workers or max(1, num_usable_cores() // gpus),
            step_seconds=step_time,
            num_gpus=gpus,
            num_jobs=jobs,
        )
        decoder = decoder_of(decode)
        transformed = None if transform is None else named_object(transform, option="--transform")
        # imports torch, after the arguments were checked
        from mpload.tools.doctor.examine import examine  # noqa: PLC0415

        warnings.simplefilter("ignore")  # the trials may use more workers than cores on purpose
        diagnosis = examine(index, decode=decoder, transform=transformed, job=job, seconds=seconds, announce=_announce)
    if html is not None:
        from mpload.tools.doctor.report import write_report  # noqa: PLC0415

        write_report(diagnosis, html, title=path)
    if as_json:
        print_json(_facts(diagnosis))
    else:
        _print(diagnosis)
        if html is not None:
            print(f"\nreport   {html}")


def _print(diagnosis: Any) -> None:
    findings, verdict = diagnosis.findings, diagnosis.verdict
    samples, environment = findings.samples, findings.environment
    cached = "" if samples.cached_share is None else f", {samples.cached_share:.0%} in the page cache"
    size = format_bytes(samples.mean_bytes)
    _print_line("data", f"{format_counted(samples.num_samples, 'sample')} of {size} on average{cached}")
    if samples.num_failed:
        tried = format_counted(samples.num_failed + samples.num_measured, "sample")
        _print_line("broken", f"{samples.num_failed} of {tried}, the first: {samples.first_failure}")
    limit = format_bytes(environment.memory_limit_bytes)
    cores = f"{environment.usable_cores} of {format_counted(environment.host_cores, 'core')}"
    _print_line(
        "machine",
        f"{cores}, {format_bytes(environment.memory_free_bytes)} free of {limit}, {environment.file_system}, "
        f"up to {environment.max_descriptors:,} open files" + (f", {environment.device}" if environment.device else ""),
    )
    if (demand := findings.job.demand(samples.mean_bytes)) is not None:
        jobs = f" for {findings.job.num_jobs} jobs" if findings.job.num_jobs > 1 else ""
        bandwidth = format_bytes(demand.bytes_per_second)
        _print_line(
            "needs",
            f"{demand.samples_per_second:,.0f} samples/s{jobs}, hence as many reads/s and {bandwidth}/s from storage; "
            f"99 of 100 batches within {demand.step_seconds:g} s",
        )
    print()
    table = Table("stage, samples/s", "needs", "has", "met", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in verdict.stages:
        met = "" if stage.share is None else f"{stage.share:.0%}"
        table.add_row(stage.name, _rate(stage.need), _rate(stage.have, unknown="no limit found"), met)
    Console(soft_wrap=True, highlight=False).print(table)
    for trial in findings.trials:
        if not trial.is_empty:
            result = trial.error or f"{trial.samples_per_second:,.0f} samples/s"
            workers = format_counted(trial.num_workers, "worker")
            print(f"measured with {workers} and batches of {trial.batch_size}: {result}")
    print(f"\n{verdict.headline}. {verdict.reason}.")
    for number, remedy in enumerate(diagnosis.remedies, start=1):
        print(f"{number}. {remedy.text} ({_gain(remedy)})")
    if not diagnosis.remedies:
        print(verdict.advice_without_remedies)


def _facts(diagnosis: Any) -> dict[str, Any]:
    """Return the diagnosis for `--json`, with stages of the same form as in `mpload plan --json`."""
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
        return "lets the job start"
    return f"{remedy.gain:.1f}x as fast, {'measured' if remedy.is_measured else 'estimated'}"


def _rate(value: float | None, *, unknown: str = "") -> str:
    return unknown if value is None else f"{value:,.0f}"


def _print_line(heading: str, text: str) -> None:
    print(f"{heading:9}{text}")


def _announce(measurement: str) -> None:
    if sys.stderr.isatty():
        print(f"measuring {measurement}", file=sys.stderr)
