"""A diagnosis as one page: plots are inline SVG, nothing is fetched from anywhere."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from mpload.tools.doctor.examine import Diagnosis
from mpload.tools.doctor.facts import Cost, Findings, Temperature
from mpload.units import format_bytes, format_count

__all__ = ["render_report", "write_report"]

_WIDTH, _ROW, _LABELS = 760, 30, 130
_COLD, _WARM, _HAVE, _SHORT, _NEED = "#3b6ea8", "#d08a3c", "#4f8a5b", "#b5493f", "#222222"

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mpload doctor: $title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 800px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.verdict { border-left: 4px solid $colour; padding: .5rem 1rem; background: #f6f6f4; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr + tr td { border-top: 1px solid #e4e4e0; }
svg { width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: #222; }
</style>
</head>
<body>
<h1>mpload doctor: $title</h1>
<p class="verdict"><strong id="bottleneck">$bottleneck</strong><br>$reason</p>
$sections
</body>
</html>
""")


def write_report(diagnosis: Diagnosis, path: Path, *, title: str) -> None:
    """Write the page.

    Raises:
        OSError: it cannot be written.
    """
    path.write_text(render_report(diagnosis, title=title), encoding="utf-8", errors="backslashreplace")


def render_report(diagnosis: Diagnosis, *, title: str) -> str:
    """Return the page as HTML, complete in itself."""
    findings, verdict = diagnosis.findings, diagnosis.verdict
    sections = [
        _section("What would help", _remedies(diagnosis)),
        _section("Need and have, samples a second", _bars(diagnosis)),
        _section("Where a worker's time goes, for one sample", _costs(findings)),
        _section("Storage, samples a second by how many are asked for at once", _curves(findings)),
        _section("Reads by size, one at a time", _sizes(findings)),
        _section("Loaders that were tried", _trials(findings)),
        _section("Data and machine", _facts(findings)),
    ]
    return _PAGE.substitute(
        title=escape(title),
        colour=_HAVE if verdict.bottleneck.name == "CONSUMER" else _SHORT,
        bottleneck=escape(f"limited by {verdict.bottleneck}"),
        reason=escape(verdict.reason),
        sections="\n".join(section for section in sections if section),
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def _remedies(diagnosis: Diagnosis) -> str:
    rows = []
    for number, remedy in enumerate(diagnosis.remedies, start=1):
        gain = "starts at all" if math.isinf(remedy.gain) else f"{remedy.gain:.1f}x"
        rows.append((f"{number}. {remedy.text}", gain + (", tried" if remedy.is_measured else "")))
    return _table(("change", "gain"), rows) if rows else "<p>Nothing: it is fast enough.</p>"


def _bars(diagnosis: Diagnosis) -> str:
    """One bar a stage on a logarithmic axis, and a line where the need is."""
    known = [(stage.name, stage.have) for stage in diagnosis.verdict.stages if stage.have is not None]
    need = next((stage.need for stage in diagnosis.verdict.stages if stage.need is not None), None)
    if not known:
        return ""
    values = [have for _, have in known] + ([] if need is None else [need])
    scale = _LogScale(values, start=_LABELS, end=_WIDTH - 90)
    parts = []
    for row, (name, have) in enumerate(known):
        top = 8 + row * _ROW
        colour = _SHORT if need is not None and have < need else _HAVE
        width = scale.place(have) - _LABELS
        parts += [
            _text(0, top + 15, name),
            f'<rect x="{_LABELS}" y="{top}" width="{width:.1f}" height="20" fill="{colour}"/>',
            _text(_LABELS + width + 6, top + 15, f"{have:,.0f}"),
        ]
    height = 8 + len(known) * _ROW + 22
    if need is not None:
        place = scale.place(need)
        parts += [
            f'<path d="M{place:.1f} 0V{height - 20}" stroke="{_NEED}" stroke-dasharray="4 3"/>',
            _text(place, height - 5, f"needed: {need:,.0f}", anchor="middle" if place < _WIDTH - 120 else "end"),
        ]
    return _svg(parts, height=height, label="need and have of each stage")


def _costs(findings: Findings) -> str:
    costs: list[tuple[str, Cost]] = [
        ("read, from memory", findings.storage.read),
        ("decode", findings.decode),
        ("transform", findings.transform),
    ]
    if findings.resized_decode is not None:
        costs.append(("decode, were images no larger than needed", findings.resized_decode))
    rows = [(name, f"{cost.cpu_seconds * 1e6:,.0f} us", f"{cost.wait_seconds * 1e6:,.0f} us") for name, cost in costs]
    return _table(("stage", "of a core", "waiting"), rows)


def _curves(findings: Findings) -> str:
    rates = [rate for rate in findings.storage.rates if not rate.is_sequential]
    if not rates:
        return ""
    height = 220
    across = _LogScale([rate.concurrency for rate in rates], start=_LABELS, end=_WIDTH - 150)
    up = _LogScale([rate.samples_per_second for rate in rates], start=height - 40, end=20)
    parts = []
    for row, (temperature, colour) in enumerate(((Temperature.COLD, _COLD), (Temperature.WARM, _WARM))):
        points = [
            (across.place(rate.concurrency), up.place(rate.samples_per_second), rate.samples_per_second)
            for rate in rates
            if rate.temperature is temperature
        ]
        if not points:
            continue
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, value in points:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>', _text(x, y - 8, f"{value:,.0f}")]
        parts += [
            f'<rect x="0" y="{20 + 24 * row}" width="14" height="14" fill="{colour}"/>',
            _text(22, 32 + 24 * row, str(temperature)),
        ]
    parts += [
        _text(across.place(number), height - 10, f"{number} at once", anchor="middle")
        for number in sorted({rate.concurrency for rate in rates})
    ]
    return _svg(parts, height=height, label="storage, cold and warm")


def _sizes(findings: Findings) -> str:
    rows = [
        (
            f"up to {format_bytes(found.max_bytes)}",
            format_count(found.num_samples),
            f"{found.cold_seconds * 1e3:,.2f} ms",
            f"{found.warm_seconds * 1e3:,.2f} ms",
        )
        for found in findings.storage.size_classes
    ]
    return _table(("size", "samples", "cold", "warm"), rows) if rows else ""


def _trials(findings: Findings) -> str:
    rows = [
        (
            "transport alone" if trial.is_empty else "the job",
            str(trial.num_workers),
            str(trial.batch_size),
            trial.error or f"{trial.samples_per_second:,.0f}",
        )
        for trial in findings.trials
    ]
    return _table(("what", "workers", "batch size", "samples/s"), rows) if rows else ""


def _facts(findings: Findings) -> str:
    samples, environment = findings.samples, findings.environment
    free, limit = format_bytes(environment.memory_free_bytes), format_bytes(environment.memory_limit_bytes)
    facts = {
        "samples": f"{format_count(samples.num_samples)}, {format_count(samples.num_measured)} of them looked at",
        "mean size": f"{format_bytes(samples.mean_bytes)} stored, {format_bytes(samples.output_bytes)} in a batch",
        "in the page cache": "unknown" if samples.cached_share is None else f"{samples.cached_share:.0%}",
        "broken": f"{samples.num_failed} {samples.first_failure}".strip(),
        "file system": environment.file_system,
        "cores": f"{environment.usable_cores} of {environment.host_cores}",
        "memory": f"{free} free of {limit}",
        "shared memory, /dev/shm": "none" if environment.shm_bytes is None else format_bytes(environment.shm_bytes),
        "open files": f"{environment.used_descriptors} of {format_count(environment.max_descriptors)}",
        "start method": environment.start_method,
        "decoder": environment.decode_backend,
        "device": environment.device or "none",
    }
    if (demand := findings.job.demand(samples.mean_bytes)) is not None:
        bandwidth = format_bytes(demand.bytes_per_second or 0.0)
        facts["needed of the storage"] = f"{demand.samples_per_second:,.0f} reads/s, {bandwidth}/s"
        facts["needed of the loader"] = f"99 of 100 batches within {demand.step_seconds:g} s"
    return _table(("fact", "value"), [(name, value) for name, value in facts.items() if value], numbers=False)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="number">{escape(value)}</{tag}>' if numbers and place else f"<{tag}>{escape(value)}</{tag}>"
            for place, value in enumerate(values)
        )

    lines = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table>\n<tr>{cells('th', heads)}</tr>\n{lines}\n</table>"


class _LogScale:
    """Places values between `start` and `end`, each factor of ten as far from the next."""

    def __init__(self, values: Sequence[float], *, start: float, end: float) -> None:
        self._low, self._high = math.log(min(values) / 2), math.log(max(values))
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        return self._start + (self._end - self._start) * (math.log(value) - self._low) / (self._high - self._low)


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], *, height: int, label: str) -> str:
    inside = "\n".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">\n{inside}\n</svg>'
