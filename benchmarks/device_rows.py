"""Tables of copies to a GPU and of training steps that wait for them, from the records of bench_device.py."""

from collections.abc import Iterator

from gpu_records import device_records, newest_device, paragraph
from records import Record

from mpload.units import format_count

__all__ = ["COPY_HEADER", "FEED_NAMES", "copy_rows", "hidden_sentence", "step_header", "step_rows"]

COPY_HEADER = [
    "batch size",
    "copy from pinned memory, GB/s",
    "from pageable memory",
    "by a DevicePrefetcher",
    "of pinned",
    "conversion in one pass, µs",
    "as a chain of torch operations",
    "only copying the result",
]

FEED_NAMES = {
    "prefetcher": "DevicePrefetcher",
    "prefetcher depth 3": "DevicePrefetcher, depth=3",
    "data_prefetcher": "copied one batch ahead",
    "plain": "copied when it is needed",
}
"""Ways to feed a step, as bench_device.py and as the pages call them."""


def copy_rows() -> list[list[str]]:
    """Return for each batch size the rates of copies and the times of conversions."""
    copies = {record["case"]["batch_samples"]: record["figures"] for record in device_records("copy")}
    converted = device_records("convert on the device")
    conversions = {record["case"]["batch_samples"]: record["figures"] for record in converted}
    rows = []
    for size in sorted({*copies, *conversions}):
        copied, conversion = copies.get(size, {}), conversions.get(size, {})
        row = [_shown(copied.get(f"{way}_gb_per_second"), ".1f") for way in ("pinned", "pageable", "prefetcher")]
        row.append(_shown(copied.get("prefetcher_to_pinned"), ".2f"))
        row += [_shown(conversion.get(f"{way}_us_per_batch"), ",.0f") for way in ("fused", "chain", "copy")]
        rows.append([format_count(size), *row])
    return rows


def step_header() -> list[str]:
    sizes = [format_count(size) for size in _sizes()]
    return ["network", "batches of", *sizes]


def step_rows() -> list[list[str]]:
    """Return for each network the time of a step, that of copy and conversion, and how much of it each feed hides."""
    rows = []
    for network in dict.fromkeys(record["case"]["network"] for record in device_records("steps")):
        steps = {size: figures for (name, size), figures in _steps().items() if name == network}
        works: dict[int, float] = {}
        shares = {}
        for case, figures in _hidden():
            if case["network"] == network:
                works[case["batch_samples"]] = figures["work_ms"]
                shares[case["feed"], case["batch_samples"]] = figures["hidden_fraction"]
        step_ms = {size: figures["resident_step_ms"] for size, figures in steps.items()}
        rows.append([network, "step alone, ms", *(_shown(step_ms.get(size), ".2f") for size in _sizes())])
        rows.append(["", "copy and conversion alone, ms", *(_shown(works.get(size), ".3f") for size in _sizes())])
        for feed, title in FEED_NAMES.items():
            cells = [_hiding(shares.get((feed, size)), _longer(steps.get(size), feed)) for size in _sizes()]
            rows.append(["", title, *cells])
    return rows


def hidden_sentence() -> str:
    """Return how much of copy and conversion a DevicePrefetcher hides in the largest batches, as a sentence."""
    found = [(case, figures) for case, figures in _hidden() if case["feed"] == "prefetcher"]
    largest = max((case["batch_samples"] for case, _ in found), default=0)
    shares = [
        f"{max(0.0, figures['hidden_fraction']):.0%} beside a step of {case['network']}"
        for case, figures in found
        if case["batch_samples"] == largest
    ]
    if not shares:
        return ""
    device = newest_device(device_records("hidden"))
    return paragraph(
        f"Measured on one {device} with batches of {largest}: of the time that copy and conversion take, "
        f"a `DevicePrefetcher` hides {' and '.join(shares)}."
    )


def _hidden() -> Iterator[tuple[Record, Record]]:
    return ((record["case"], record["figures"]) for record in device_records("hidden"))


def _steps() -> dict[tuple[str, int], Record]:
    """Return the figures of steps by network and batch size."""
    cases = ((record["case"], record["figures"]) for record in device_records("steps"))
    return {(case["network"], case["batch_samples"]): figures for case, figures in cases}


def _sizes() -> list[int]:
    return sorted({size for _, size in _steps()})


def _longer(step: Record | None, feed: str) -> float | None:
    """Return by which fraction a feed makes a step longer than it is alone."""
    fed_ms = (step or {}).get(f"{feed.replace(' ', '_')}_step_ms")
    return None if step is None or fed_ms is None else max(0.0, fed_ms / step["resident_step_ms"] - 1)


def _hiding(share: float | None, longer: float | None) -> str:
    hidden = "-" if share is None else f"{share:.0%}" if share > 0 else "none"
    return hidden if longer is None else f"{hidden} (+{longer:.1%})"


def _shown(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)
