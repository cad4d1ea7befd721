"""The table and the figure of the trainings that bench_accuracy.py recorded."""

from pathlib import Path
from typing import Any

from records import latest

from mpload.cli.figures import BLUE, SKY, VERMILION, LineName, add_titles, name_lines, new_figure
from mpload.units import format_count

__all__ = ["ACCURACY_HEADER", "accuracy_rows", "draw_accuracy"]

Training = tuple[dict[str, Any], dict[str, Any]]
"""The case and the figures of a record."""

ACCURACY_HEADER = [
    "trained on",
    "feed",
    "channels",
    "loss, first epoch",
    "last epoch",
    "accuracy, first epoch",
    "middle",
    "last epoch",
    "steps with the same loss as with MPLoader",
]


def trainings() -> list[Training]:
    return [(record["case"], record["figures"]) for record in latest("accuracy")]


def accuracy_rows() -> list[list[str]]:
    """Return the losses and accuracies of each feed, on each device."""
    rows = []
    for case, figures in trainings():
        losses, accuracies = figures["losses"], figures["accuracies"]
        same, num_steps = figures["num_steps_with_loss_of_first_feed"], figures["num_steps"]
        row = ["the CPU" if case["device"] == "cpu" else case["device"], case["feed"], str(case["channels"])]
        row += [f"{loss:.4f}" for loss in (losses[0], losses[-1])]
        row += [f"{accuracies[place]:.1%}" for place in (0, len(accuracies) // 2 - 1, -1)]
        rows.append([*row, f"{format_count(same)} of {format_count(num_steps)}"])
    return rows


def draw_accuracy(path: Path) -> None:
    """Draw loss and accuracy by epoch, of the widest network that was trained."""
    found = trainings()
    widest = max(case["channels"] for case, _ in found)
    device = [case["device"] for case, _ in found if case["channels"] == widest][-1]
    drawn = [each for each in found if each[0]["channels"] == widest and each[0]["device"] == device]
    with new_figure(path, width=9, height=7.2) as figure:
        above, below = figure.subplots(2)
        _draw_lines(above, drawn, "accuracies")
        above.set_ylim(0, 1)
        above.set_yticks([0.25 * step for step in range(5)], [f"{25 * step}%" for step in range(5)])
        add_titles(
            above, _finding(drawn), f"Fraction of {format_count(drawn[0][0]['num_val'])} other digits that are right"
        )
        _name_lines(above, drawn, "accuracies", ": {:.1%}")
        _draw_lines(below, drawn, "losses")
        below.set_yscale("log")
        lowest, highest = below.get_ylim()
        ticks = [tick for tick in (0.01, 0.03, 0.1, 0.3, 1, 3) if lowest <= tick <= highest]
        below.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        below.minorticks_off()
        below.set_xlabel("epoch")
        add_titles(below, _same_steps(drawn), f"Mean training loss of each epoch, {_about(drawn[0][0])}")
        _name_lines(below, drawn, "losses", ": {:.3f}")


_STYLES = ((BLUE, 2.0), (SKY, 7.0), (VERMILION, 2.0))
"""Colour and width of the line of each feed; the first lies on the second, which has the same values."""


def _draw_lines(axes: Any, drawn: list[Training], what: str) -> None:
    for (colour, width), (_, figures), above in zip(_STYLES, drawn, (3, 2, 4), strict=True):
        values = figures[what]
        axes.plot(range(1, len(values) + 1), values, color=colour, linewidth=width, zorder=above, clip_on=False)
    num_epochs = drawn[0][0]["num_epochs"]
    axes.set_xticks(range(1, num_epochs + 1))
    axes.set_xlim(1, num_epochs)


def _name_lines(axes: Any, drawn: list[Training], what: str, value: str) -> None:
    names = []
    for (colour, _), (case, figures) in zip(_STYLES, drawn, strict=True):
        last = figures[what][-1]
        text = case["feed"] + value.format(last)
        names.append(LineName(text=text, colour=colour, x=case["num_epochs"], y=last))
    name_lines(axes, names)


def _finding(drawn: list[Training]) -> str:
    ours, _, by_hand = (figures["accuracies"][-1] for _, figures in drawn)
    return f"Accuracy after the last epoch: {ours:.1%} with mpload, {by_hand:.1%} without"


def _same_steps(drawn: list[Training]) -> str:
    """Return in how many steps both loaders of the same dataset gave the same loss, as a sentence."""
    figures = drawn[1][1]
    same, num_steps = figures["num_steps_with_loss_of_first_feed"], figures["num_steps"]
    return f"Of the same dataset, the same loss in {format_count(same)} of {format_count(num_steps)} steps"


def _about(case: dict[str, Any]) -> str:
    return f"ResNet-18 with {case['channels']} channels in its first stage"
