"""`mpload top`: show what the loaders of a running job are doing, worker by worker."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from mpload.cli.reports import AsJson, print_json_line
from mpload.judgement.facts import Facts
from mpload.judgement.verdict import judge
from mpload.memory.usage import anonymous_pss_bytes
from mpload.telemetry.page import stats_of_page
from mpload.telemetry.stats import LoaderStats, Stage, Timings
from mpload.tools.running import CANDIDATES, facts_between, figures_of, find_job, is_stopped, read_job
from mpload.units import format_bytes, format_count, format_counted, format_seconds

__all__ = ["top"]

_STALE_SECONDS = 3.0
_MAX_SOURCES = 8
_SHARES = ("busy", Stage.READ, Stage.DECODE, Stage.TRANSFORM, "other")


def top(
    pid: Annotated[
        int, typer.Argument(metavar="PID", min=1, help=f"ID of the training process or of its launcher: {CANDIDATES}.")
    ],
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the loaders of a running job are doing.

    Shows the rate, the share of time spent waiting, and the stages and memory of each worker. Ends with the job, or on
    Ctrl-C. The job is not disturbed: its loaders publish their figures in shared memory.

    With --json, prints one line per interval.
    """
    before = find_job(pid)
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not (once or as_json) else None
    with live or nullcontext():
        while True:
            time.sleep(interval)
            current = read_job(pid)
            if current is None:
                return
            found = facts_between(before, current)
            with figures_of(pid):
                loaders = [_figures(current.pages[key], before.pages[key], *each) for key, each in found.items()]
                tables = _tables(loaders)
            if as_json:
                print_json_line({"unix_seconds": round(time.time(), 3), "loaders": loaders})
            elif live is not None:
                live.update(tables, refresh=True)
            else:
                console.print(tables)
            if once:
                return
            before = current


def _figures(now: Mapping[str, Any], before: Mapping[str, Any], span: LoaderStats, facts: Facts) -> dict[str, Any]:
    """Return what a loader did between two readings, as `--json` prints it."""
    total, earlier = (stats_of_page(page) for page in (now, before))
    verdict = judge(facts)
    seconds = max(now["monotonic_seconds"] - before["monotonic_seconds"], 1e-9)
    num_lookups = span.timings.num_cache_hits + span.timings.num_cache_misses
    timings_before = {worker.name: worker.timings for worker in earlier.workers}
    is_idle = not span.num_batches
    return {
        "is_stopped": is_stopped(now["pid"]),
        "pid": now["pid"],
        "num_samples": span.num_samples,
        "samples_per_second": None if is_idle else span.samples_per_second,
        "waiting_share": None if is_idle else span.wait_fraction,
        "limit": None if is_idle else verdict.stage,
        "bottleneck": None if is_idle else verdict.bottleneck,
        "batch_p50_seconds": None if is_idle else span.latencies.quantile_seconds(0.5),
        "batch_p99_seconds": None if is_idle else span.latencies.quantile_seconds(0.99),
        "last_batch_seconds_ago": time.monotonic() - now["monotonic_seconds"],
        "slots_bytes": total.memory.slots_bytes,
        "num_deaths": total.num_deaths,
        "num_copied_batches": total.num_copied_batches,
        "sources": {name: asdict(each) for name, each in span.sources.items() if name in earlier.sources},
        "num_sources": now.get("num_sources", 0),
        "servers": {
            url: {**each.metrics(), "bytes_per_second": each.received_bytes / seconds}
            for url, each in span.servers.items()
            if url in earlier.servers
        },
        "num_servers": now.get("num_servers", 0),
        "cache_hit_share": span.timings.num_cache_hits / num_lookups if num_lookups else None,
        "workers": [
            {
                "name": worker.name,
                "pid": worker.pid,
                **_shares(worker.timings.since(timings_before.get(worker.name, Timings())), seconds=seconds),
                "memory_bytes": anonymous_pss_bytes(worker.pid),
            }
            for worker in total.workers
        ],
    }


def _shares(timings: Timings, *, seconds: float) -> dict[str, float]:
    """Return the share of time that a worker was busy, in total and in each stage.

    The time of a chunk counts when it is finished, also if it began before the interval.
    """
    seconds = max(seconds, timings.total_ns * 1e-9)
    stages = {str(stage): taken_ns for stage, taken_ns in timings.ns_by_stage.items()}
    stages["other"] = max(0, stages.pop(Stage.TRANSPORT))
    return {f"{name}_share": each * 1e-9 / seconds for name, each in {"busy": timings.total_ns, **stages}.items()}


def _tables(loaders: list[dict[str, Any]]) -> Group:
    tables = (table for each in loaders for table in (_workers(each), _sources(each), _servers(each)))
    return Group(*(table for table in tables if table is not None))


def _servers(loader: Mapping[str, Any]) -> Table | None:
    """Return a row for each server of samples, or for those that have sent most."""
    if not loader["servers"]:
        return None
    num_more = loader["num_servers"] - len(loader["servers"])
    caption = f"and {format_counted(num_more, 'server')} more" if num_more else None
    names = ("server", "requests", "samples", "bytes/s", "latency p50", "failed")
    table = Table(*names, caption=caption, caption_justify="left", caption_style="")
    for column in table.columns[1:]:
        column.justify = "right"
    for url, each in loader["servers"].items():
        table.add_row(
            escape(url),
            format_count(each["requests"]),
            format_count(each["samples"]),
            format_bytes(int(each["bytes_per_second"])),
            format_seconds(each["latency_p50_seconds"]) if each["requests"] else "",
            format_count(each["failures"]),
        )
    return table


def _sources(loader: Mapping[str, Any]) -> Table | None:
    """Return a row for each source of a mixture, or for those with most samples in the interval."""
    if not loader["sources"]:
        return None
    largest = sorted(loader["sources"].items(), key=lambda source: source[1]["num_samples"], reverse=True)
    num_samples, num_more = loader["num_samples"], loader["num_sources"] - len(largest[:_MAX_SOURCES])
    caption = f"and {format_counted(num_more, 'source')} more" if num_more else None
    table = Table("source", "samples", "share", "failed", caption=caption, caption_justify="left", caption_style="")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, each in largest[:_MAX_SOURCES]:
        share = f"{each['num_samples'] / num_samples:.1%}" if num_samples else ""
        table.add_row(escape(name), format_count(each["num_samples"]), share, format_count(each["num_failed"]))
    return table


def _workers(loader: Mapping[str, Any]) -> Table:
    rate, age = loader["samples_per_second"], loader["last_batch_seconds_ago"]
    parts = [f"process {loader['pid']}: "]
    if loader["is_stopped"]:
        parts[0] += f"stopped by a signal; `kill -CONT {loader['pid']}` continues it"
    elif rate is None:
        parts[0] += "no batch in this interval"
    else:
        p50, p99 = (format_seconds(loader[f"batch_{name}_seconds"]) for name in ("p50", "p99"))
        parts[0] += f"{format_count(round(rate))} samples/s, waiting {loader['waiting_share']:.0%}"
        parts += [
            _limit(loader),
            f"batch p50 {p50}, p99 {p99}",
        ]
    parts += [
        f"slots {format_bytes(loader['slots_bytes'])}",
        f"{format_counted(loader['num_deaths'], 'worker death')}",
        f"{format_counted(loader['num_copied_batches'], 'batch')} copied",
    ]
    if loader["cache_hit_share"] is not None:
        parts.append(f"cache hits {loader['cache_hit_share']:.0%}")
    if age > _STALE_SECONDS:
        parts.append(f"no batch delivered for {format_seconds(age)}")
    table = Table(title="; ".join(parts), title_justify="left", title_style="")
    for name in ("worker", "pid", *_SHARES, "memory"):
        table.add_column(name, justify="left" if name == "worker" else "right")
    for worker in loader["workers"]:
        shares = (f"{worker[f'{name}_share']:.0%}" for name in _SHARES)
        table.add_row(escape(worker["name"]), str(worker["pid"]), *shares, format_bytes(worker["memory_bytes"]))
    return table


def _limit(loader: Mapping[str, Any]) -> str:
    limit, bottleneck = loader["limit"], loader["bottleneck"]
    if limit == Stage.CONSUMER:
        return "not limited by data"
    return f"limited by {limit}" if str(bottleneck) == str(limit) else f"limited by {limit} ({bottleneck})"
