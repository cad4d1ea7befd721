"""Lists every case in which the records show another loader ahead of mpload."""

from collections.abc import Iterable, Iterator
from statistics import median

from device_ahead import device_ahead
from records import latest
from standings import standings

from mpload.tools.bench.memory import Outcome
from mpload.units import format_bytes, format_count, format_seconds

__all__ = ["ahead"]

OUTPUTS = {"uint8": "uint8 crops", "float32": "float32 crops", "bytes": "bytes"}
Better = tuple[str, list[str]]
"""A case, and the loaders that are ahead in it, each with its figure."""


def ahead() -> str:
    """Return a Markdown list with an item for each case in which another loader is ahead."""
    cases: Iterable[Better] = [
        *_speed(),
        *_first_batch(),
        *_batch_sizes(),
        *_memory(),
        *_start(),
        *_small_samples(),
        *_map_style(),
        *_limited(),
        *_busy(),
        *device_ahead(),
    ]
    lines = [f"- {case}: {'; '.join(names)}.\n" for case, names in cases if names]
    return "".join(lines) or "- None.\n"


def _is_peer(contestant: str) -> bool:
    return contestant.partition(",")[0] != "mpload"


def _speed() -> Iterator[Better]:
    for output, title in OUTPUTS.items():
        yield (
            f"images/s, {title}",
            [
                f"{contestant} ({found[output].ratio:.2f} times mpload)"
                for contestant, found in standings("peers").items()
                if output in found and found[output].is_loader and found[output].ratios and _is_peer(contestant)
                if found[output].ratio > 1
            ],
        )


def _first_batch() -> Iterator[Better]:
    found = {name: of.get("uint8") for name, of in standings("peers").items() if _is_peer(name) or name == "mpload"}
    seconds = {
        name: standing.figures["first_batch_seconds"]
        for name, standing in found.items()
        if standing and standing.rates and standing.is_loader
    }
    ours = seconds["mpload"]
    names = [f"{name} ({format_seconds(taken)})" for name, taken in seconds.items() if taken < ours]
    yield f"time from launch to the first batch (mpload {format_seconds(ours)})", names


def _batch_sizes() -> Iterator[Better]:
    rates: dict[int, dict[str, float]] = {}
    for record in latest("batch_sizes", "contestant", "batch_size"):
        if "failed" not in record["figures"]:
            of_size = rates.setdefault(record["case"]["batch_size"], {})
            of_size[record["case"]["contestant"]] = record["figures"]["images_per_second"]
    for size, of_size in sorted(rates.items()):
        ours = of_size["mpload"]
        names = [f"{name} ({rate:,.0f})" for name, rate in of_size.items() if rate > ours]
        yield f"images/s in batches of {size} (mpload {ours:,.0f})", names


def _memory() -> Iterator[Better]:
    peaks: dict[tuple[int, int], dict[str, int]] = {}
    for record in latest("peer_memory"):
        case, figures = record["case"], record["figures"]
        if "num_batches" not in case and figures["outcome"] == Outcome.DONE and not figures["failed"]:
            peaks.setdefault((case["num_workers"], case["num_samples"]), {})[case["contestant"]] = figures[
                "peak_pss_bytes"
            ]
    most, longest = (max(values) for values in zip(*peaks, strict=True))
    for (num_workers, num_samples), of_case in sorted(peaks.items()):
        if num_workers != most and num_samples != longest:  # not in the table
            continue
        ours = of_case["mpload"]
        names = [f"{name} ({format_bytes(peak)})" for name, peak in of_case.items() if peak < ours]
        yield f"memory, {format_count(num_samples)} files, {num_workers} workers (mpload {format_bytes(ours)})", names


def _start() -> Iterator[Better]:
    seconds: dict[tuple[float, int], dict[str, float]] = {}
    for record in latest("start"):
        case = record["case"]
        of_case = seconds.setdefault((case["resumed_share"], case["num_samples"]), {})
        of_case[case["loader"]] = record["figures"]["first_batch_seconds"]
    for (share, num_samples), of_case in sorted(seconds.items()):
        ours = of_case["mpload"]
        names = [f"{name} ({format_seconds(taken)})" for name, taken in of_case.items() if taken < ours]
        where = f", resumed at {share:.0%}" if share else ""
        yield f"first batch of {format_count(num_samples)} samples{where} (mpload {format_seconds(ours)})", names


def _small_samples() -> Iterator[Better]:
    for name, title in {"small": "lines of 100 bytes", "arrays": "arrays of 32 x 32 x 3"}.items():
        rates = {
            record["case"]["contestant"]: median(record["figures"]["samples_per_second"])
            for record in latest(name, "contestant")
            if "failed" not in record["figures"] and record["case"].get("is_loader", True)
        }
        ours = max((rate for contestant, rate in rates.items() if not _is_peer(contestant)), default=0.0)
        names = [f"{each} ({rate:,.0f})" for each, rate in rates.items() if _is_peer(each) and rate > ours]
        yield f"samples/s, {title} (mpload {ours:,.0f})", names


def _map_style() -> Iterator[Better]:
    found: dict[str, dict[str, float]] = {}
    for record in latest("map_style"):
        case, rates = record["case"], record["figures"]["samples_per_second"]
        found.setdefault(f"{case['samples']} of a map-style dataset", {})[case["contestant"]] = median(rates)
    for title, rates in found.items():
        ours = rates["mpload"]
        names = [f"{name} ({rate:,.0f})" for name, rate in rates.items() if rate > ours]
        yield f"{title}, samples/s (mpload {ours:,.0f})", names


def _limited() -> Iterator[Better]:
    rates: dict[str, float] = {}
    for record in latest("limited_memory"):
        name, rate = record["case"]["contestant"], record["figures"]["samples_per_second"]
        rates[name] = max(rate, rates.get(name, 0.0))
    ours = max(rate for name, rate in rates.items() if not _is_peer(name))
    names = [f"{name} ({rate:,.0f})" for name, rate in rates.items() if _is_peer(name) and rate > ours]
    yield f"samples/s from a throttled disk, with data that do not fit into memory (mpload {ours:,.0f})", names


def _busy() -> Iterator[Better]:
    shares: dict[str, dict[str, float]] = {}
    for record in latest("dlio", "workload", "contestant"):
        if "failed" not in record["figures"]:
            of_workload = shares.setdefault(record["case"]["workload"], {})
            of_workload[record["case"]["contestant"]] = median(record["figures"]["utilisation_percent"])
    for workload, of_workload in shares.items():
        ours = of_workload["mpload"]
        names = [f"{name} ({share:.1f} %)" for name, share in of_workload.items() if share > ours]
        yield f"accelerator utilisation in DLIO's {workload} (mpload {ours:.1f} %)", names
