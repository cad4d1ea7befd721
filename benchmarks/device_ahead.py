"""Cases in which the records of a machine with a GPU show another loader ahead of mpload."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cores_rows import core_rates
from device_peer_rows import Racer, racers
from device_rows import FEED_NAMES
from gpu_records import device_records

from mpload.units import format_bytes, format_seconds

__all__ = ["device_ahead", "device_ahead_by_peer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A column of the race onto the GPU."""

    title: str
    measure: str
    name: str
    show: Callable[[float], str]
    is_more_better: bool = False


FIGURES = (
    Figure(title="images/s", measure="alone", name="images_per_second", show="{:,.0f}".format, is_more_better=True),
    Figure(title="CPU time of an image", measure="alone", name="cpu_us_per_image", show="{:,.0f} µs".format),
    Figure(
        title="device memory", measure="alone", name="loader_device_bytes", show=lambda size: format_bytes(int(size))
    ),
    Figure(title="time to the first batch", measure="alone", name="first_batch_seconds", show=format_seconds),
    Figure(
        title="images/s beside a training step",
        measure="train",
        name="images_per_second",
        show="{:,.0f}".format,
        is_more_better=True,
    ),
    Figure(
        title="CPU time of an image beside a training step",
        measure="train",
        name="cpu_us_per_image",
        show="{:,.0f} µs".format,
    ),
    Figure(title="idle time of the GPU", measure="train", name="idle_fraction", show="{:.1%}".format),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """A peer is ahead of mpload in a case."""

    case: str
    ours: str
    peer: str
    theirs: str


def device_ahead() -> Iterator[tuple[str, list[str]]]:
    """Yield each case with the peers that are ahead in it, as ahead.py lists them."""
    cases: dict[tuple[str, str], list[str]] = {}
    best = fastest()
    way = "" if best is None or best.title == "mpload" else f"{best.title.removeprefix('mpload, ')}: "
    for lead in _leads():
        cases.setdefault((lead.case, lead.ours), []).append(f"{lead.peer} ({lead.theirs})")
    for (case, ours), names in cases.items():
        yield f"photographs onto the GPU, {case} (mpload {way}{ours})", names
    for num_workers, rates in core_rates().items():
        rate = rates.get("mpload", float("inf"))
        faster = [f"{name} ({each:,.0f})" for name, each in rates.items() if each > rate]
        yield f"images/s with {num_workers} workers (mpload {rate:,.0f})", faster
    yield from _steps()


def device_ahead_by_peer() -> str:
    """Return a Markdown list with an item for each peer that is ahead of mpload's fastest way onto the GPU."""
    best = fastest()
    if best is None:
        return ""
    peers: dict[str, list[str]] = {}
    for lead in _leads():
        peers.setdefault(lead.peer, []).append(f"{lead.case} ({lead.theirs} against {lead.ours})")
    lines = [f"- {peer}: {', '.join(cases)}.\n" for peer, cases in peers.items()] or ["- None.\n"]
    return f'mpload\'s fastest way here is "{best.title}". Ahead of it are:\n\n{"".join(lines)}'


def fastest() -> Racer | None:
    """Return mpload's fastest way onto the GPU: peers are held against this one in all columns."""
    return next((racer for racer in racers() if racer.is_ours and racer.alone), None)


def _leads() -> Iterator[Lead]:
    best = fastest()
    for figure in FIGURES if best else ():
        ours = getattr(best, figure.measure).get(figure.name)
        for racer in racers() if ours is not None else ():
            theirs = getattr(racer, figure.measure).get(figure.name)
            if not racer.is_peer or theirs is None or figure.show(theirs) == figure.show(ours):
                continue
            if (theirs > ours) is figure.is_more_better:
                yield Lead(case=figure.title, ours=figure.show(ours), peer=racer.title, theirs=figure.show(theirs))


def _steps() -> Iterator[tuple[str, list[str]]]:
    """Yield the ways without mpload to feed a step that make it longer by less than a DevicePrefetcher does."""
    found: dict[str, list[str]] = {}
    for record in device_records("steps"):
        case, figures = record["case"], record["figures"]
        ours = figures["prefetcher_step_ms"]
        for feed in ("data_prefetcher", "plain"):
            taken = figures[f"{feed}_step_ms"]
            if round(taken, 2) < round(ours, 2):
                name = f"{FEED_NAMES[feed]}, {case['batch_samples']} images ({taken:.2f} ms against {ours:.2f})"
                found.setdefault(case["network"], []).append(name)
    for network, names in found.items():
        yield f"training step of {network} that is fed from host memory", names
