"""Prints what limits a job: the same table and list for assumed, measured and observed facts."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from mpload.judgement.facts import Facts
from mpload.judgement.remedy import Remedy
from mpload.judgement.stages import StageRate
from mpload.judgement.verdict import Verdict
from mpload.units import format_bytes

__all__ = ["needs_of", "print_remedies", "print_stages", "print_verdict", "stages_of"]


def print_stages(stages: tuple[StageRate, ...], *, unknown: str) -> None:
    """Print what each stage needs and has; `unknown` stands for a rate that is not known."""
    table = Table("stage", "needs", "has", "met", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in stages:
        met = "?" if stage.share is None else f"{stage.share:.0%}"
        needs = "" if stage.need is None else _rate(stage, stage.need)
        has = unknown if stage.have is None else _rate(stage, stage.have)
        table.add_row(stage.name, needs, has, met if stage.have is not None and stage.need is not None else "")
    Console(soft_wrap=True, highlight=False).print(table)


def print_verdict(verdict: Verdict, advice: tuple[Remedy, ...]) -> None:
    """Print what limits the job, why, and what would help."""
    print(f"\n{verdict.headline}. {verdict.reason}.")
    for note in verdict.notes:
        print(f"{note}.")
    print_remedies(advice)
    if not advice and verdict.next_step:
        print(verdict.next_step)


def print_remedies(advice: tuple[Remedy, ...]) -> None:
    """Print the remedies, numbered, each with its gain."""
    for number, remedy in enumerate(advice, start=1):
        print(f"{number}. {remedy.text} ({remedy.gain_text})")


def stages_of(verdict: Verdict) -> list[dict[str, Any]]:
    """Return the stages for `--json`."""
    return [asdict(stage) | {"share": stage.share} for stage in verdict.stages]


def needs_of(facts: Facts) -> dict[str, float | None] | None:
    """Return what all jobs need of the storage, for `--json`. None if the time of a step is not known."""
    if facts.job.step_seconds is None:
        return None
    rate, sample_bytes = facts.job.needed_rate * facts.job.num_jobs, facts.samples.mean_bytes
    return {
        "reads_per_second": rate,
        "bytes_per_second": None if sample_bytes is None else rate * sample_bytes,
        "batch_within_seconds": facts.job.step_seconds,
    }


def _rate(stage: StageRate, value: float) -> str:
    return f"{format_bytes(value)}/s" if stage.unit == "B/s" else f"{value:,.0f} {stage.unit}"
