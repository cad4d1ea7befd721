"""Decides which turns of sources that lie on both sides of a boundary are taken before it: see `mpload.plan.shares`."""

from collections import deque
from collections.abc import Sequence

__all__ = ["taken_before"]


def taken_before(parts: Sequence[int], rests: Sequence[int], total: int) -> set[int]:
    """Return the sources whose turn that crosses a boundary is taken before it.

    `rests[s] / total` is the share of the turn that lies before the boundary, and these sum to a number K. Put the
    turns end to end, each as long as its share, in order of their deadlines, and cut this line into K cells of length
    1; do the same in order of their first positions. Each cell must get one of the turns in it, and each turn that is
    chosen must be in one cell of both lines. Cell after cell, a shortest path is searched that frees a turn for it.
    """
    crossing = [source for source, rest in enumerate(rests) if rest]
    by_deadline = sorted(crossing, key=lambda source: (-((rests[source] - total) // parts[source]), source))
    by_release = sorted(crossing, key=lambda source: (-rests[source] // parts[source], source))
    num_cells = sum(rests) // total
    in_first, in_second = (_cells_of(ordered, rests, total) for ordered in (by_deadline, by_release))
    turns_of: list[list[int]] = [[] for _ in range(num_cells)]
    for source in by_deadline:
        for cell in in_first[source]:
            turns_of[cell].append(source)
    first_of: dict[int, int] = {}
    holder: dict[int, int] = {}  # of each cell of the second line
    for cell in range(num_cells):
        _match(cell, turns_of, in_second, first_of, holder)
    return set(first_of)


def _cells_of(ordered: Sequence[int], rests: Sequence[int], total: int) -> dict[int, range]:
    cells, start = {}, 0
    for source in ordered:
        end = start + rests[source]
        cells[source] = range(start // total, (end - 1) // total + 1)
        start = end
    return cells


def _match(
    cell: int,
    turns_of: Sequence[Sequence[int]],
    in_second: dict[int, range],
    first_of: dict[int, int],
    holder: dict[int, int],
) -> None:
    """Give a turn to a cell of the first line: breadth first, over nodes of three kinds.

    "first" is a cell of the first line that needs a turn, "turn" is a turn that is wanted by such a cell, and "placed"
    is a turn that needs another cell of the second line.
    """
    start = "first", cell
    came: dict[tuple[str, int], tuple[tuple[str, int], int] | None] = {start: None}  # with the cell of a step back
    queue = deque([start])
    while queue:
        kind, at = node = queue.popleft()
        steps: list[tuple[tuple[str, int], int]] = []
        if kind == "first":
            steps = [(("turn", turn), -1) for turn in turns_of[at] if first_of.get(turn) != at]
        elif kind == "turn":
            steps = [(("first", first_of[at]) if at in first_of else ("placed", at), -1)]
        else:
            for second in in_second[at]:
                if second not in holder:
                    _apply(node, second, came, first_of, holder)
                    return
                if holder[second] != at:
                    steps.append((("placed", holder[second]), second))
            if at in first_of:
                steps.append((("turn", at), -1))
        for following, second in steps:
            if following not in came:
                came[following] = node, second
                queue.append(following)
    raise AssertionError("no turn is free")


def _apply(
    node: tuple[str, int],
    second: int,
    came: dict[tuple[str, int], tuple[tuple[str, int], int] | None],
    first_of: dict[int, int],
    holder: dict[int, int],
) -> None:
    gained, lost = {}, []
    holder_of = {second: node[1]}
    while (step := came[node]) is not None:
        before, freed = step
        if before[0] == "first":
            gained[node[1]] = before[1]
        elif node[0] == "first":
            lost.append(before[1])
        elif freed >= 0:
            holder_of[freed] = before[1]
        node = before
    for turn in lost:
        del first_of[turn]
    first_of.update(gained)
    holder.update(holder_of)
