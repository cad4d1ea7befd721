"""The table of loaders by their number of workers, from the records of bench_cores.py."""

from gpu_records import latest_if_any
from records import Record

__all__ = ["core_header", "core_rates", "core_rows"]

NAMES = {"loops": "as many processes without a loader", "copies": "copies of memory, GB/s"}
"""What the pages call the contestants that are no loaders."""


def core_header() -> list[str]:
    workers = sorted({num_workers for of_contestant in _found().values() for num_workers in of_contestant})
    titles = [f"{num_workers} worker{'s' if num_workers > 1 else ''}" for num_workers in workers[:1]]
    return ["images/s", *titles, *map(str, workers[1:]), "training process: CPU µs an image"]


def core_rows() -> list[list[str]]:
    """Return the rate of each contestant by its number of workers, and the part of linear growth that it is."""
    found = _found()
    workers = sorted({num_workers for of_contestant in found.values() for num_workers in of_contestant})
    rows = []
    for contestant, figures in sorted(
        found.items(), key=lambda each: list(NAMES).index(each[0]) if each[0] in NAMES else -1
    ):
        fewest = min(figures)
        cells = []
        for num_workers in workers:
            if num_workers not in figures:
                cells.append("-")
                continue
            rate = _rate(figures[num_workers])
            share = rate / (_rate(figures[fewest]) * num_workers / fewest)
            cells.append(f"{rate:,.0f}" if num_workers == fewest else f"{rate:,.0f} ({share:.2f})")
        own_us = figures[max(figures)].get("own_cpu_us_per_image")
        rows.append([NAMES.get(contestant, contestant), *cells, "-" if own_us is None else f"{own_us:,.1f}"])
    return rows


def core_rates() -> dict[int, dict[str, float]]:
    """Return the images per second of loaders by number of workers."""
    rates: dict[int, dict[str, float]] = {}
    for contestant, figures in _found().items():
        if contestant not in NAMES:
            for num_workers, of_case in figures.items():
                rates.setdefault(num_workers, {})[contestant] = _rate(of_case)
    return dict(sorted(rates.items()))


def _found() -> dict[str, dict[int, Record]]:
    """Return the figures by contestant and number of workers, of the machine and the epoch of the last record."""
    records = latest_if_any("cores", "contestant", "num_workers", "epoch_samples")
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        last = records[-1]
        if (record["machine"], record["case"].get("epoch_samples")) == (
            last["machine"],
            last["case"].get("epoch_samples"),
        ):
            found.setdefault(record["case"]["contestant"], {})[record["case"]["num_workers"]] = record["figures"]
    return found


def _rate(figures: Record) -> float:
    rate: float = figures["images_per_second"] if "images_per_second" in figures else figures["gb_per_second"]
    return rate
