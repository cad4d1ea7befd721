"""Figures of one style: the title states the finding, labels stand at the ends of lines, ticks are round numbers.

The palette is that of Okabe and Ito, which colour-blind readers can distinguish. Needs matplotlib (`mpload[plot]`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from mpload.index.publishing import new_file
from mpload.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "MUTED",
    "ORANGE",
    "PINK",
    "SKY",
    "VERMILION",
    "LineName",
    "add_titles",
    "byte_ticks",
    "byte_unit",
    "name_lines",
    "new_figure",
    "round_ticks",
    "set_byte_axis",
    "set_time_axis",
    "spread",
]

BLUE, SKY, GREEN = "#0072b2", "#56b4e9", "#009e73"
ORANGE, VERMILION, PINK = "#e69f00", "#d55e00", "#cc79a7"
INK, MUTED, GREY, _FAINT = "#1f2328", "#59636e", "#aab2bb", "#e4e7ea"

_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",  # included in matplotlib
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # process names may contain dollar signs
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 28,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "xtick.color": GREY,
    "xtick.labelcolor": MUTED,
    "ytick.color": GREY,
    "ytick.labelcolor": MUTED,
    "ytick.left": False,
    "lines.linewidth": 2,
    "lines.markersize": 5,
}
_DPI = 150
_LINE_SPACING = 1.35
_NEAR = 0.9  # points beyond this share of the width are near their labels


@dataclass(frozen=True, slots=True, kw_only=True)
class LineName:
    """The label of a line or band, and the point that it belongs to, in data coordinates."""

    text: str
    colour: str
    x: float
    y: float


@contextmanager
def new_figure(path: Path, *, width: float, height: float) -> Iterator["Figure"]:
    """Yield an empty figure of `width` x `height` inches, and write it to `path` as a PNG when the block ends."""
    from matplotlib import rc_context  # noqa: PLC0415  an optional package
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=_DPI)
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12)  # type: ignore[union-attr, call-arg]
        yield figure
        with new_file(path) as file:
            figure.savefig(file, format="png")


def add_titles(axes: "Axes", finding: str, subtitle: str) -> None:
    """Write the finding in bold above the axes, and below it a subtitle that says what is drawn."""
    axes.set_title(finding)
    axes.annotate(subtitle, (0, 1), xytext=(0, 10), xycoords="axes fraction", textcoords="offset points", color=MUTED)


def name_lines(axes: "Axes", names: Sequence[LineName]) -> None:
    """Write labels to the right of the axes, as close to the height of their points as space allows, with leader lines.

    The titles and the limits of the axes must be set before.
    """
    figure = cast("Figure", axes.figure)
    figure.draw_without_rendering()  # determines the height of the axes
    font_pixels = _STYLE["font.size"] * figure.dpi / 72
    box = axes.get_window_extent()
    points = [axes.transAxes.inverted().transform(axes.transData.transform((name.x, name.y))) for name in names]
    places = spread([up for _, up in points], gap=_LINE_SPACING * font_pixels / box.height)
    for name, (across, _), place in zip(names, points, places, strict=True):
        dots = "-" if across > _NEAR else ":"  # a long solid line would look like data
        axes.annotate(
            name.text,
            (name.x, name.y),
            xytext=(1.04, place),
            textcoords="axes fraction",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": name.colour,
                "linewidth": 1.2,
                "linestyle": dots,
                "relpos": (0, 0.5),
                "shrinkA": 3,
                "shrinkB": 0,
            },
        )


def spread(places: Sequence[float], *, gap: float) -> list[float]:
    """Return positions that are at least `gap` apart, at 0 or above, in the same order, and close to the old ones.

    Positions that are too close to each other are spread around their mean.
    """
    groups: list[list[int]] = []
    for number in sorted(range(len(places)), key=lambda number: places[number]):
        groups.append([number])
        while len(groups) > 1 and _lowest(groups[-2], places, gap) + gap * len(groups[-2]) > _lowest(
            groups[-1], places, gap
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    found = [0.0] * len(places)
    for group in groups:
        for row, number in enumerate(group):
            found[number] = _lowest(group, places, gap) + gap * row
    return found


def _lowest(group: Sequence[int], places: Sequence[float], gap: float) -> float:
    """Return the lowest position of a group whose members are `gap` apart, centred on the mean of their places."""
    return max(0.0, sum(places[number] for number in group) / len(group) - gap * (len(group) - 1) / 2)


def round_ticks(highest: float, *, num_ticks: int = 6) -> list[float]:
    """Return 0 and evenly spaced round numbers up to `highest`, at most `num_ticks` in all."""
    steps = (factor * 10.0**power for power in range(-3, 16) for factor in (1, 2, 5))
    step = next(step for step in steps if highest / step < num_ticks)
    return [round(number * step, 3) for number in range(int(highest / step) + 1)]


def byte_ticks(highest_bytes: float) -> dict[float, str]:
    """Return ticks and their labels, in round numbers of the binary unit that suits `highest_bytes`."""
    unit, name = byte_unit(highest_bytes)
    return {tick * unit: f"{tick:,g} {name}" if tick else "0" for tick in round_ticks(highest_bytes / unit)}


def byte_unit(highest_bytes: float) -> tuple[int, str]:
    """Return the binary unit that suits `highest_bytes`, in bytes, and its name."""
    units = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
    return next(((unit, name) for unit, name in units if highest_bytes >= unit), (1, "bytes"))


def set_byte_axis(axes: "Axes", highest_bytes: float) -> None:
    """Let the y axis run from 0 to slightly above `highest_bytes`, with round ticks."""
    ticks = byte_ticks(highest_bytes)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(0, 1.04 * max(highest_bytes, 1))


def set_time_axis(axes: "Axes", seconds: float) -> None:
    """Let the x axis, in seconds, run from 0 to `seconds`, with ticks at round seconds, minutes or hours."""
    unit, name = (3600, "hours") if seconds >= 3 * 3600 else (60, "minutes") if seconds >= 3 * 60 else (1, "seconds")
    ticks = round_ticks(max(seconds, 1e-3) / unit, num_ticks=9)
    axes.set_xticks([tick * unit for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set(xlim=(0, max(seconds, 1e-3)), xlabel=name)
