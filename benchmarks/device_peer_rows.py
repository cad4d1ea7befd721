"""Tables and sentences about loaders that bring photographs onto a GPU, from the records of bench_device_peers.py."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_records import latest_if_any, newest_device, on_newest_device, paragraph
from records import Record

from mpload.units import format_bytes, format_seconds

__all__ = [
    "RACE_HEADER",
    "Racer",
    "machine_sentence",
    "race_rows",
    "racers",
    "readme_sentence",
    "short_header",
    "short_rows",
]

RACE_HEADER = [
    "images/s",
    "workers or threads",
    "alone",
    "CPU µs an image",
    "device memory",
    "first batch",
    "beside a training step",
    "CPU µs an image",
    "GPU idle",
]
NO_LOADER = "no loader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Racer:
    """A contestant with a number of workers, and its figures; they are empty for a measure without a record."""

    contestant: str
    num_workers: int
    title: str
    alone: Record = field(default_factory=dict)
    train: Record = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Images per second alone, or else beside a training step."""
        return float((self.alone or self.train).get("images_per_second", 0.0))

    @property
    def package(self) -> str:
        """The name up to the first comma: "DALI" of "DALI, mixed"."""
        return self.contestant.partition(",")[0]

    @property
    def is_ours(self) -> bool:
        return self.package == "mpload"

    @property
    def is_peer(self) -> bool:
        """Whether nothing of mpload takes part."""
        return not self.contestant.startswith("mpload") and self.contestant != NO_LOADER


def _records() -> list[Record]:
    """Return the latest records of the newest race: those of one GPU and one batch size."""
    keys = ("device", "contestant", "measure", "batch_samples", "num_workers", "hw_decoder_load")
    records = on_newest_device(latest_if_any("device_peers", *keys))
    size = records[-1]["case"]["batch_samples"] if records else None
    return [record for record in records if record["case"]["batch_samples"] == size]


def racers() -> list[Racer]:
    """Return all contestants, the fastest first."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for record in _records():
        case = record["case"]
        load = case.get("hw_decoder_load")
        title = case["contestant"] if load is None else f"{case['contestant']}, hw_decoder_load={load:g}"
        found.setdefault((case["contestant"], case["num_workers"], title), {})[case["measure"]] = record["figures"]
    made = [
        Racer(contestant=contestant, num_workers=num_workers, title=title, **measures)
        for (contestant, num_workers, title), measures in found.items()
    ]
    return sorted(made, key=lambda racer: (racer.contestant == NO_LOADER, -racer.rate))


def race_rows() -> list[list[str]]:
    """Return the figures of each contestant, alone and beside a training step."""
    rows = []
    for racer in racers():
        alone, train = racer.alone, racer.train
        memory, seconds = alone.get("loader_device_bytes"), alone.get("first_batch_seconds")
        rows.append(
            [
                f"{racer.title}: the same batch again and again" if racer.contestant == NO_LOADER else racer.title,
                "-" if racer.contestant == NO_LOADER else str(racer.num_workers),
                _shown(alone.get("images_per_second"), ",.0f"),
                _shown(alone.get("cpu_us_per_image"), ",.0f"),
                "-" if memory is None else format_bytes(max(0, memory)),
                "-" if seconds is None else format_seconds(seconds),
                _shown(train.get("images_per_second"), ",.0f"),
                _shown(train.get("cpu_us_per_image"), ",.0f"),
                _shown(train.get("idle_fraction"), ".1%"),
            ]
        )
    return rows


def short_header() -> list[str]:
    device = newest_device(_records()) or "a GPU"
    return [f"photographs onto {device}", "images/s", "CPU µs an image", "beside a ResNet-50 step", "GPU idle"]


def short_rows() -> list[list[str]]:
    """Return fewer figures of fewer contestants: all of mpload's ways, and the fastest way of each other package."""
    rows, shown = [], set()
    for racer in _with_most_workers():
        if racer.is_ours or racer.contestant == NO_LOADER or (racer.is_peer and racer.package not in shown):
            shown.add(racer.package)
            alone, train = racer.alone, racer.train
            cells = [(alone, "images_per_second", ",.0f"), (alone, "cpu_us_per_image", ",.0f")]
            cells += [(train, "images_per_second", ",.0f"), (train, "idle_fraction", ".1%")]
            rows.append([racer.contestant, *(_shown(figures.get(name), form) for figures, name, form in cells)])
    return rows


def readme_sentence() -> str:
    """Return the rates of all packages onto the GPU, the fastest first, and how long the GPU waits for mpload."""
    records, best = _records(), dict[str, Racer]()
    for racer in _with_most_workers():
        if racer.alone and (racer.is_ours or racer.is_peer):
            best.setdefault(racer.package, racer)
    if not best:
        return ""
    rates = [f"{racer.contestant} ({racer.rate:,.0f})" for racer in best.values()]
    machine = f"{newest_device(records)}, {records[-1]['machine']['cores']} cores"
    text = f"*On a GPU* ({machine}), normalised crops a second: {'; '.join(rates)}."
    alone = next((racer.train for racer in _with_most_workers() if racer.contestant == NO_LOADER), None)
    ours = next((racer.train for racer in _with_most_workers() if racer.contestant == "mpload"), None)
    if alone and ours:
        text += (
            f" Beside a training step of ResNet-50, mpload reaches"
            f" {ours['images_per_second'] / alone['images_per_second']:.1%} of the speed without a loader."
        )
    return paragraph(text)


def machine_sentence() -> str:
    """Return which machine and which versions ran the race, as a sentence."""
    records = _records()
    if not records:
        return ""
    last = records[-1]
    machine, versions = last["machine"], last["versions"]
    packages = {"torch": versions.get("torch")}
    libraries = {"DALI": "DALI", "SPDL": "SPDL", "mpload, decoded on the GPU": "torchvision"}
    for racer in racers():
        library = libraries.get(racer.contestant, libraries.get(racer.package))
        if library:
            packages.setdefault(library, (racer.alone or racer.train).get("version"))
    known = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    cpu = machine["cpu"].replace("(R)", "").strip()
    size = format_bytes(machine["memory_bytes"])
    return paragraph(
        f"The machine has one {last['case']['device']}, {machine['cores']} cores ({cpu}) and {size} of memory. "
        f"Versions: {known}."
    )


def _with_most_workers() -> Iterable[Racer]:
    found = racers()
    most = max((racer.num_workers for racer in found), default=0)
    return [racer for racer in found if racer.num_workers == most]


def _shown(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)
