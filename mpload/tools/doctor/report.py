"""A diagnosis as a self-contained HTML page, for small screens and dark mode too."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpload.index.publishing import new_file
from mpload.judgement.facts import Facts, Temperature
from mpload.judgement.stages import StageRate
from mpload.judgement.words import Bottleneck, duration
from mpload.tools.doctor.examine import Diagnosis
from mpload.tools.pictures.pages import render_page
from mpload.units import format_bytes, format_count

__all__ = ["render_report", "write_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    """Bars on one linear scale from 0 to `longest`.

    Each bar has a name, a figure, and parts: their length, and their kind, which determines the colour.
    """

    bars: Sequence[tuple[str, str, Sequence[tuple[str, float]]]]
    longest: float = 1.0
    end: str = ""
    need: float | None = None


def write_report(diagnosis: Diagnosis, path: Path, *, title: str) -> None:
    """Write the page to `path`.

    Raises:
        ArgumentError, StorageError: The file cannot be written.
    """
    with new_file(path) as file:
        file.write(render_report(diagnosis, title=title).encode("utf-8", "backslashreplace"))


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
        remedies=[
            (f"{number}. {each.text}", each.gain_text) for number, each in enumerate(diagnosis.remedies, start=1)
        ],
        needed=None if need is None else f"{duration(1 / need)} ({need:,.0f} samples/s)",
        stages=_stages(verdict.stages, need),
        costs=_costs(findings),
        storage=_storage(findings),
        trials=[
            (
                "transport only, empty samples" if trial.is_empty else "the job",
                trial.num_workers,
                trial.batch_size,
                trial.error or f"{trial.samples_per_second:,.0f}",
            )
            for trial in findings.trials
        ],
        facts=_facts(findings),
    )


def _stages(stages: Sequence[StageRate], need: float | None) -> _Chart:
    """Return the time that each stage takes per sample. The slowest stage has the longest bar."""
    known = [stage.have for stage in stages if stage.have]
    if not known:
        return _Chart(bars=())
    enough = "first" if need is None else "good"
    bars: list[Any] = []
    for stage in stages:
        if stage.have:
            is_short = stage.have == min(known) if need is None else stage.have < need
            figure = f"{duration(1 / stage.have)} ({stage.have:,.0f}/s)"
            bars.append((stage.name, figure, [("short" if is_short else enough, 1 / stage.have)]))
        else:
            bars.append((stage.name, "no limit found", []))
    need_seconds = None if need is None else 1 / need
    longest = max(1 / min(known), need_seconds or 0.0)
    return _Chart(bars=bars, longest=longest, end=duration(longest), need=need_seconds)


def _costs(findings: Facts) -> _Chart:
    costs = {
        "read from page cache": findings.storage.read,
        "decode": findings.decode,
        "transform": findings.transform,
        "look up in the index": findings.lookup if findings.lookup.seconds else None,
        **{f"decode: {str(each.change).replace('_', ' ')}": each.decode for each in findings.alternatives},
    }
    bars = [
        (name, duration(cost.seconds), [("first", cost.cpu_seconds), ("second", cost.wait_seconds)])
        for name, cost in costs.items()
        if cost is not None
    ]
    longest = max(cost.seconds for cost in costs.values() if cost is not None) or 1.0
    return _Chart(bars=bars, longest=longest, end=duration(longest))


def _storage(findings: Facts) -> _Chart:
    rates = [rate for rate in findings.storage.rates if not rate.is_sequential]
    fastest = max((rate.samples_per_second for rate in rates), default=1.0)
    kinds = {Temperature.COLD: "first", Temperature.WARM: "second"}
    bars = [
        (
            f"{rate.concurrency} at once, {rate.temperature}",
            f"{rate.samples_per_second:,.0f}",
            [(kinds[rate.temperature], rate.samples_per_second)],
        )
        for rate in sorted(rates, key=lambda rate: (rate.concurrency, rate.temperature))
    ]
    return _Chart(bars=bars, longest=fastest, end=f"{fastest:,.0f}")


def _facts(findings: Facts) -> Sequence[tuple[str, str]]:
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
