"""`mpload doctor`: find what limits a job, on its own data or while it runs."""

import sys
import time
import warnings
from dataclasses import asdict, replace
from statistics import median
from typing import Annotated, Any

import typer

from mpload.cli.endings import ends_cleanly
from mpload.cli.loading import decoder_of, named_dataset, named_object, names_object, opened
from mpload.cli.reports import AsJson, print_json, prints_on_stderr
from mpload.cli.verdicts import needs_of, print_stages, print_verdict, stages_of
from mpload.errors import ArgumentError, MploadError
from mpload.judgement.facts import Facts, Job
from mpload.memory.machine import num_usable_cores
from mpload.tools.running import LoaderKey, facts_between, figures_of, find_job, is_stopped
from mpload.transport.kernel import set_up_heaps
from mpload.units import format_bytes, format_counted, parse_bytes

__all__ = ["doctor"]

_BATCH_SIZE = 256
_TRIES = 3
_SECONDS, _WATCHED_SECONDS = 30.0, 10.0


def doctor(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="INDEX|MODULE:DATASET",
            help="The path or URL of an index, or your own dataset: an MPDataset or a map-style one.",
        ),
    ] = None,
    *,
    pid: Annotated[int | None, typer.Option(min=1, help="Look at a running job instead, by its process ID.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples per batch and GPU.  [default: of the dataset, or 256]")
    ] = None,
    step_time: Annotated[
        float | None, typer.Option(min=1e-9, help="Seconds per training step once data is ready.  [default: not known]")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the job on this machine.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs that read the same storage at the same time.")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes per GPU.  [default: one per core]")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Memory for each loader, such as 4GiB.  [default: half of the free memory]")
    ] = None,
    decode: Annotated[
        str | None, typer.Option(metavar="MODULE:OBJECT", help="Your decoder.  [default: RandomResizedCrop(224)]")
    ] = None,
    transform: Annotated[
        str | None, typer.Option(metavar="MODULE:OBJECT", help="Your transform.  [default: none]")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.5, help="Seconds to measure.  [default: 30, or 10 with --pid]")
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Apply the first three remedies to a sample, and measure the gains."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find out what limits the speed of a job.

    Also suggests what would help. Measures storage, decoding, transform, transport, workers and memory. Reads a few
    hundred samples, drops their files from the page cache, and runs loaders for a few seconds each.

    With --pid, watches a running job instead, without disturbing it.
    """
    if (path is None) == (pid is None):
        raise ArgumentError("give either a dataset or --pid: mpload doctor train.txt, or mpload doctor --pid 1234")
    if pid is not None:
        own: dict[str, Any] = {
            "--batch-size": batch_size,
            "--step-time": step_time,
            "--workers": workers,
            "--decode": decode,
        }
        own |= {"--memory-budget": memory_budget, "--transform": transform, "--tune": tune or None}
        if given := [name for name, value in own.items() if value is not None]:
            raise ArgumentError(f"--pid looks at a job as it runs. Leave out {', '.join(given)}")
        _watch(pid, seconds=seconds or _WATCHED_SECONDS, as_json=as_json)
        return
    assert path is not None
    with ends_cleanly(), prints_on_stderr(is_wanted=as_json), warnings.catch_warnings():
        subject = _subject(path, decode=decode, transform=transform)
        size = subject.batch_size or batch_size or _BATCH_SIZE
        if batch_size not in {None, size}:
            raise ArgumentError(f"--batch-size {batch_size}: {path} has batch_size={size}. Leave the option out")
        job = Job(
            batch_size=size,
            num_workers=workers or max(1, num_usable_cores() // gpus),
            step_seconds=step_time,
            num_gpus=gpus,
            num_jobs=jobs,
            memory_budget_bytes=None if memory_budget is None else parse_bytes(memory_budget),
        )
        from mpload.tools.doctor.examine import examine  # noqa: PLC0415  imports torch

        set_up_heaps()  # samples are measured in this process, and must cost what they cost in workers
        warnings.simplefilter("ignore")  # the trials may use more workers than cores on purpose
        tries = _TRIES if tune else 0
        diagnosis = examine(subject, job=job, seconds=seconds or _SECONDS, num_tries=tries, announce=_announce)
    if as_json:
        print_json(_report(diagnosis))
        return
    _print_facts(diagnosis.findings)
    print_stages(diagnosis.verdict.stages, unknown="no limit found")
    _print_trials(diagnosis.findings)
    print_verdict(diagnosis.verdict, diagnosis.remedies)


def _subject(path: str, *, decode: str | None, transform: str | None) -> Any:
    """Return what is to be examined. Imports torch, after the arguments were checked."""
    if names_object(path):
        if decode is not None or transform is not None:
            raise ArgumentError(f"{path} has a decoder and a transform of its own. Leave out --decode and --transform")
        dataset = named_dataset(path)
    else:
        index, decoder = opened(path), decoder_of(decode)
        adapted = None if transform is None else named_object(transform, option="--transform")
        from mpload import MPDataset, Topology  # noqa: PLC0415

        dataset = MPDataset(index, decode=decoder, transform=adapted, shuffle=True, topology=Topology())
    from mpload.tools.doctor.subject import subject_of  # noqa: PLC0415

    return subject_of(dataset)


def _watch(pid: int, *, seconds: float, as_json: bool) -> None:
    from mpload.tools.doctor.examine import diagnose  # noqa: PLC0415  imports torch

    before = find_job(pid)
    time.sleep(seconds)
    found = facts_between(before, find_job(pid))
    if not found:
        raise ArgumentError(f"the loaders of process {pid} began or ended while they were watched. Try again")
    if not any(span.num_batches for span, _ in found.values()):
        if stopped := [owner for owner, _ in found if is_stopped(owner)]:
            raise MploadError(f"process {stopped[0]} was stopped by a signal. Continue it: kill -CONT {stopped[0]}")
        raise MploadError(
            f"process {pid} took no batch in {seconds:g} s, so there is nothing to judge. Watch it for longer with "
            f"--seconds, or see where it stands: py-spy dump --pid {pid}"
        )
    with figures_of(pid):
        reports = {key: diagnose(facts) for key, (span, facts) in found.items() if span.num_batches}
        _print_running(reports, as_json=as_json)


def _print_running(reports: dict[LoaderKey, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"loaders": [{"pid": key[0], **_report(each)} for key, each in reports.items()]})
        return
    for (owner, number), diagnosis in reports.items():
        facts = diagnosis.findings
        assert facts.running is not None
        workers = format_counted(facts.job.num_workers or 0, "worker")
        print(f"process {owner}, loader {number + 1}: {workers}, {facts.running.samples_per_second:,.0f} samples/s")
        print_stages(diagnosis.verdict.stages, unknown="no limit found")
        print_verdict(diagnosis.verdict, diagnosis.remedies)


def _print_facts(facts: Facts) -> None:
    samples, environment = facts.samples, facts.environment
    cached = "" if samples.cached_share is None else f", {samples.cached_share:.0%} in the page cache"
    size = "" if samples.mean_bytes is None else f" of {format_bytes(samples.mean_bytes)} on average"
    formats = ", ".join(name if share == 1 else f"{share:.0%} {name}" for name, share in samples.formats)
    _print_line(
        "data", f"{format_counted(samples.num_samples or 0, 'sample')}{size}{cached}{formats and ', ' + formats}"
    )
    if samples.num_failed:
        tried = format_counted(samples.num_failed + samples.num_measured, "sample")
        _print_line("broken", f"{samples.num_failed} of {tried}, the first: {samples.first_failure}")
    free, limit = (format_bytes(each or 0) for each in (environment.memory_free_bytes, environment.memory_limit_bytes))
    cores = f"{environment.usable_cores:.3g} of {format_counted(environment.host_cores or 1, 'core')}"
    parts = [cores, f"{free} free of {limit}", environment.file_system]
    parts += [f"up to {environment.max_descriptors:,} open files", environment.device]
    if environment.contention.neighbour_cores >= 0.1:
        parts.append(f"other processes use {environment.contention.neighbour_cores:.1f} cores")
    _print_line("machine", ", ".join(filter(None, parts)))
    if (needs := needs_of(facts)) is not None:
        jobs = f" for {facts.job.num_jobs} jobs" if facts.job.num_jobs > 1 else ""
        bandwidth = needs["bytes_per_second"]
        reads = "" if bandwidth is None else f", hence as many reads/s and {format_bytes(bandwidth)}/s from storage"
        rate = f"{needs['reads_per_second']:,.0f} samples/s{jobs}{reads}"
        _print_line("needs", f"{rate}; 99 of 100 batches within {needs['batch_within_seconds']:g} s")
    print()


def _print_trials(facts: Facts) -> None:
    """Print the rate of each number of workers and batch size that were tried: the median, if they were tried again."""
    jobs = dict.fromkeys(
        (trial.num_workers, trial.batch_size) for trial in facts.trials if not trial.is_empty and trial.change is None
    )
    for num_workers, batch_size in jobs:
        job = replace(facts.job, num_workers=num_workers, batch_size=batch_size)
        tried = replace(facts, job=job)
        rates = tried.rates_of_trials()
        if not rates and job != facts.job:  # its remedy says why it was not tried
            continue
        result = f"{median(rates):,.0f} samples/s" if rates else tried.trials_of()[0].error
        print(f"measured with {format_counted(num_workers, 'worker')} and batches of {batch_size}: {result}")


def _report(diagnosis: Any) -> dict[str, Any]:
    """Return the diagnosis for `--json`, with stages of the same form as in `mpload plan --json`."""
    report = asdict(diagnosis)
    report["verdict"] |= {"stages": stages_of(diagnosis.verdict), "headline": diagnosis.verdict.headline}
    return {"needs": needs_of(diagnosis.findings), **report}


def _print_line(heading: str, text: str) -> None:
    print(f"{heading:9}{text}")


def _announce(measurement: str) -> None:
    if sys.stderr.isatty():
        print(f"measuring {measurement}", file=sys.stderr)
