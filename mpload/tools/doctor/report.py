"""A diagnosis as a self-contained HTML page, for small screens and dark mode too."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mpload.judgement.facts import Cost, Facts, Temperature
from mpload.judgement.stages import StageRate
from mpload.judgement.words import Bottleneck
from mpload.tools.doctor.examine import Diagnosis
from mpload.tools.pictures.pages import render_page
from mpload.units import format_bytes, format_count

__all__ = ["render_report", "write_report"]

_Rows: TypeAlias = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a bar, in percent of the longest bar of the chart. `kind` determines the colour."""

    kind: str
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    name: str
    figure: str
    parts: tuple[_Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    """Bars on one linear scale from 0 to `end`."""

    bars: tuple[_Bar, ...]
    end: str
    need_percent: float | None = None


def write_report(diagnosis: Diagnosis, path: Path, *, title: str) -> None:
    """Write the page to `path`.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(render_report(diagnosis, title=title), encoding="utf-8", errors="backslashreplace")


def render_report(diagnosis: Diagnosis, *, title: str) -> str:
    """Return the page as self-contained HTML."""
    findings, verdict = diagnosis.findings, diagnosis.verdict
    need = None if math.isinf(findings.job.needed_rate) else findings.job.needed_rate
    return render_page(
        "doctor.html.j2",
        title=f"mpload doctor: {title}",
        is_fast_enough=verdict.bottleneck is Bottleneck.CONSUMER,
        verdict=f"{verdict.headline}.",
        reason=f"{verdict.reason}.",
        advice_without_remedies=verdict.next_step,
        remedies=_remedies(diagnosis),
        needed=None if need is None else f"{_duration(1 / need)} ({need:,.0f} samples/s)",
        stages=_stages(verdict.stages, need),
        costs=_costs(findings),
        storage=_storage(findings),
        sizes=_sizes(findings),
        trials=_trials(findings),
        facts=_facts(findings),
    )


def _remedies(diagnosis: Diagnosis) -> _Rows:
    return [(f"{number}. {each.text}", each.gain_text) for number, each in enumerate(diagnosis.remedies, start=1)]


def _stages(stages: Sequence[StageRate], need: float | None) -> _Chart:
    """Return the time that each stage takes per sample. The slowest stage has the longest bar."""
    known = [stage.have for stage in stages if stage.have]
    if not known:
        return _Chart(bars=(), end="")
    longest = max(1 / min(known), 0.0 if need is None else 1 / need)
    bars = []
    for stage in stages:
        if stage.have:
            if need is None:
                kind = "short" if stage.have == min(known) else "first"
            else:
                kind = "short" if stage.have < need else "good"
            part = _Part(kind=kind, percent=100 / stage.have / longest)
            figure = f"{_duration(1 / stage.have)} ({stage.have:,.0f}/s)"
            bars.append(_Bar(name=stage.name, figure=figure, parts=(part,)))
        else:
            bars.append(_Bar(name=stage.name, figure="no limit found"))
    need_percent = None if need is None else 100 / need / longest
    return _Chart(bars=tuple(bars), end=_duration(longest), need_percent=need_percent)


def _costs(findings: Facts) -> _Chart:
    costs: list[tuple[str, Cost]] = [
        ("read from page cache", findings.storage.read),
        ("decode", findings.decode),
        ("transform", findings.transform),
    ]
    if findings.lookup.seconds:
        costs.append(("look up in the index", findings.lookup))
    costs += [(f"decode: {str(each.change).replace('_', ' ')}", each.decode) for each in findings.alternatives]
    longest = max(cost.seconds for _, cost in costs) or 1.0
    bars = [
        _Bar(
            name=name,
            figure=_duration(cost.seconds),
            parts=(
                _Part(kind="first", percent=100 * cost.cpu_seconds / longest),
                _Part(kind="second", percent=100 * cost.wait_seconds / longest),
            ),
        )
        for name, cost in costs
    ]
    return _Chart(bars=tuple(bars), end=_duration(longest))


def _storage(findings: Facts) -> _Chart:
    rates = [rate for rate in findings.storage.rates if not rate.is_sequential]
    fastest = max((rate.samples_per_second for rate in rates), default=1.0)
    kinds = {Temperature.COLD: "first", Temperature.WARM: "second"}
    bars = [
        _Bar(
            name=f"{rate.concurrency} at once, {rate.temperature}",
            figure=f"{rate.samples_per_second:,.0f}",
            parts=(_Part(kind=kinds[rate.temperature], percent=100 * rate.samples_per_second / fastest),),
        )
        for rate in sorted(rates, key=lambda rate: (rate.concurrency, rate.temperature))
    ]
    return _Chart(bars=tuple(bars), end=f"{fastest:,.0f}")


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.1f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:,.1f} ms"
    return f"{seconds * 1e6:,.0f} µs" if seconds >= 1e-6 or not seconds else "under 1 µs"


def _sizes(findings: Facts) -> _Rows:
    return [
        (
            f"up to {format_bytes(found.max_bytes)}",
            format_count(found.num_samples),
            f"{found.cold_seconds * 1e3:,.2f} ms",
            f"{found.warm_seconds * 1e3:,.2f} ms",
        )
        for found in findings.storage.size_classes
    ]


def _trials(findings: Facts) -> _Rows:
    return [
        (
            "transport only, empty samples" if trial.is_empty else "the job",
            str(trial.num_workers),
            str(trial.batch_size),
            trial.error or f"{trial.samples_per_second:,.0f}",
        )
        for trial in findings.trials
    ]


def _facts(findings: Facts) -> _Rows:
    samples, environment, job = findings.samples, findings.environment, findings.job
    free, limit = format_bytes(environment.memory_free_bytes or 0), format_bytes(environment.memory_limit_bytes or 0)
    stored = "" if samples.mean_bytes is None else f"{format_bytes(samples.mean_bytes)} in storage, "
    facts = {
        "samples": f"{format_count(samples.num_samples or 0)}, {format_count(samples.num_measured)} of them measured",
        "mean size": f"{stored}{format_bytes(samples.output_bytes or 0)} in a batch",
        "formats": ", ".join(f"{share:.0%} {name}" for name, share in samples.formats),
        "in the page cache": "unknown" if samples.cached_share is None else f"{samples.cached_share:.0%}",
        "broken samples": f"{samples.num_failed} {samples.first_failure}".strip(),
        "file system": environment.file_system,
        "cores": f"{environment.usable_cores:.3g} of {environment.host_cores}",
        "other processes": f"{environment.contention.neighbour_cores:.1f} cores",
        "memory": f"{free} free of {limit}",
        "open files": f"{environment.used_descriptors} of {format_count(environment.max_descriptors or 0)}",
        "decoder": environment.decode_backend,
        "accelerator": environment.device or "none",
    }
    if job.step_seconds is not None:
        rate = job.needed_rate * job.num_jobs
        bandwidth = "" if samples.mean_bytes is None else f", {format_bytes(rate * samples.mean_bytes)}/s"
        facts["storage must deliver"] = f"{rate:,.0f} reads/s{bandwidth}"
        facts["batches must arrive"] = f"99 of 100 within {job.step_seconds:g} s"
    return [(name, value) for name, value in facts.items() if value]
