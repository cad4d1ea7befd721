"""Figures are legible: texts do not overlap, ticks are round, axes are linear, and names may be in any script."""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch.utils.data import DataLoader

from mpload.cli.figures import byte_ticks, round_ticks, spread
from mpload.cli.lettering import Lettering
from mpload.cli.monitor_plot import Role, draw_memory_over_time, find_roles, starter_of
from mpload.cli.pages import render_page
from mpload.memory.machine import SystemUsage
from mpload.memory.monitor import Growth, MemoryMonitor, Reading
from mpload.memory.usage import ProcessMemory
from mpload.tools.bench.memory import LOADER_NAMES, MemoryCase, MemoryResult, Moment, Outcome
from mpload.units import GIB, KIB, MIB, parse_bytes

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from memory_figure import draw_memory


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written during a test."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        save(figure, *arguments, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def assert_legible(figure: Figure) -> None:
    """Assert that all text lies inside the figure, and that no texts overlap."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    edges = figure.bbox
    boxes = {}
    for number, text in enumerate(figure.findobj(Text)):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text():
            renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
            box = Text.get_window_extent(text, renderer)  # without the leader line of an annotation
            assert edges.x0 <= box.x0 < box.x1 <= edges.x1, text.get_text()
            assert edges.y0 <= box.y0 < box.y1 <= edges.y1, text.get_text()
            boxes[number, text.get_text()] = box
    assert len(boxes) > 5
    for (one, box), (other, other_box) in combinations(boxes.items(), 2):
        assert not box.overlaps(other_box), (one, other)


def ticks_of(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


@given(st.floats(1e-2, 1e13))
def test_ticks_are_few_and_round(highest: float) -> None:
    ticks = round_ticks(highest)
    assert 2 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert ticks == sorted(set(ticks))
    assert ticks[-1] <= highest * (1 + 1e-6)
    step = ticks[1]
    assert f"{step:e}"[0] in "125"
    assert f"{step:e}"[1:].startswith(".000000")
    assert all(after - before == pytest.approx(step) for before, after in pairwise(ticks))


@given(st.floats(10, 2.0**45))
@example(2.3 * GIB)
def test_byte_ticks_are_labelled_with_their_values_in_binary_units(highest_bytes: float) -> None:
    ticks = byte_ticks(highest_bytes)
    for place, label in ticks.items():
        assert parse_bytes(label.replace(",", "").replace("bytes", "B")) == pytest.approx(place, abs=1)
    assert max(ticks) <= highest_bytes * (1 + 1e-6)


def test_an_axis_of_some_2_gib_has_ticks_every_half_gib() -> None:
    assert list(byte_ticks(2.3 * GIB).values()) == ["0", "0.5 GiB", "1 GiB", "1.5 GiB", "2 GiB"]


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.01, 0.3))
def test_labels_are_spread_in_their_order_and_only_as_far_as_needed(places: list[float], gap: float) -> None:
    found = spread(places, gap=gap)
    ordered = [found[number] for number in sorted(range(len(places)), key=lambda number: places[number])]
    assert all(after - before >= gap * (1 - 1e-9) for before, after in pairwise(ordered))
    assert all(place >= 0 for place in found)
    assert all(after - before >= gap for before, after in pairwise(sorted(places))) <= (found == places)


def memory_results(num_samples: Sequence[int], *, loaders: Sequence[str], with_curves: bool) -> Iterator[MemoryResult]:
    """Yield typical results: the memory of lists grows and is predicted in the end; that of the others is constant."""
    for count in num_samples:
        for loader in loaders:
            is_list = loader not in {"mpdataset", "mploader"}
            size = 250 * MIB + (count * (300 + 1200 * len(loader)) // 8 if is_list else 0)
            is_predicted = is_list and count >= 10**7
            yield MemoryResult(
                case=MemoryCase(loader=loader, num_samples=count, num_workers=8),
                outcome=Outcome.NOT_RUN if is_predicted else Outcome.DONE,
                peak_pss_bytes=0 if is_predicted else size,
                needed_bytes=size if is_predicted else None,
                curve=tuple(
                    Moment(seconds=second / 4, pss_bytes=size * second // 40, uss_bytes=0, largest_child_uss_bytes=0)
                    for second in range(1, 41)
                )
                if with_curves and not is_predicted
                else (),
            )


@pytest.mark.slow
@pytest.mark.parametrize("with_curves", [False, True], ids=["records", "a run"])
@pytest.mark.parametrize("num_samples", [[1000], [10**4, 10**5, 10**6, 10**7]], ids=["one", "many"])
@pytest.mark.parametrize("loaders", [["mpdataset"], list(LOADER_NAMES)], ids=["one loader", "all loaders"])
def test_the_memory_figure_is_linear_and_legible(
    drawn: list[Figure], loaders: list[str], num_samples: list[int], with_curves: bool, tmp_path: Path
) -> None:
    results = list(memory_results(num_samples, loaders=loaders, with_curves=with_curves))
    draw_memory(results, tmp_path / "memory.png")
    (figure,) = drawn
    assert_legible(figure)
    assert len(figure.axes) == 1 + with_curves
    assert {scale for axes in figure.axes for scale in (axes.get_xscale(), axes.get_yscale())} == {"linear"}
    for axes in figure.axes:
        assert re.fullmatch(r"0( [\d.,]+ [KMG]iB)+", " ".join(ticks_of(axes)))


def test_the_title_of_the_memory_figure_compares_lists_with_mpdataset(drawn: list[Figure], tmp_path: Path) -> None:
    draw_memory(
        list(memory_results([10**6, 10**7], loaders=list(LOADER_NAMES), with_curves=False)), tmp_path / "memory.png"
    )
    title = drawn[0].axes[0].get_title(loc="left")
    assert title.startswith("10 million samples take ")
    assert title.endswith(" GiB as a list, 0.2 GiB with MPDataset")


def process(pid: int, name: str, pss_bytes: int) -> ProcessMemory:
    return ProcessMemory(
        pid=pid, name=name, pss_bytes=pss_bytes, rss_bytes=2 * pss_bytes, uss_bytes=pss_bytes, swap_bytes=0
    )


def readings(*, seconds: float, limit_bytes: int | None) -> list[Reading]:
    """A launcher, two training processes with a zygote and four workers each, and many short commands."""
    found = []
    usage = limit_bytes and SystemUsage(
        limit_bytes=limit_bytes, anonymous_bytes=0, shmem_bytes=0, file_bytes=0, dev_shm_bytes=0, page_cache_bytes=0
    )
    for number in range(60):
        processes = [process(1, "torchrun", 90 * MIB), process(100 + number, "git", 3 * MIB)]
        for rank in (10, 20):
            processes += [process(rank, "python", number * 9 * MIB), process(rank + 1, "mpload-zygote", 60 * MIB)]
            processes += [process(rank + 2 + worker, f"mpload-worker-{worker}", 4 * MIB) for worker in range(4)]
        found.append(Reading(seconds=seconds * number / 59, processes=tuple(processes), usage=usage or None))
    return found


PARENTS = {rank + child: rank + (child > 1) for rank in (10, 20) for child in range(1, 6)} | {10: 1, 20: 1}


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "limit_bytes"), [(0.8, None), (59.0, 3 * GIB), (1e4, 900 * GIB), (1e6, 3 * GIB)])
def test_the_monitor_draws_a_labelled_band_for_each_role(
    drawn: list[Figure], seconds: float, limit_bytes: int | None, tmp_path: Path
) -> None:
    found = readings(seconds=seconds, limit_bytes=limit_bytes)
    growth = Growth(pid=10, name="python", bytes_per_second=9e6, low_bytes_per_second=8e6, high_bytes_per_second=1e7)
    roles = find_roles(found, root_pid=1, parents=PARENTS)
    draw_memory_over_time(found, [growth] if seconds > 60 else [], tmp_path / "memory.png", roles=roles)
    (figure,) = drawn
    assert_legible(figure)
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.texts]
    assert len(axes.collections) == 4
    for band in (r"2 training processes: 1\.0 GiB", "2 zygotes: 120", "8 workers: 32", "2 other processes: 93"):
        assert any(re.match(band, name) for name in names), (band, names)
    assert any(name.startswith("limit: 3.0 GiB") for name in names) == (limit_bytes == 3 * GIB)
    assert ("grows by" in axes.get_title(loc="left")) == (seconds > 60)


def test_a_process_that_starts_workers_is_training_and_a_single_process_is_the_main_one() -> None:
    roles = find_roles(readings(seconds=1.0, limit_bytes=None), root_pid=1, parents=PARENTS)
    assert {pid for pid, role in roles.items() if role is Role.TRAINING} == {10, 20}
    assert roles[1] is roles[100] is Role.OTHER
    alone = [Reading(seconds=0.0, processes=(process(7, "python", MIB), process(8, "sleep", KIB)))]
    assert find_roles(alone, root_pid=7, parents={8: 7}) == {7: Role.MAIN, 8: Role.OTHER}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_stock_dataloader_are_recognised(method: str) -> None:
    batches = iter(DataLoader([0, 1], num_workers=2, multiprocessing_context=method))  # type: ignore[arg-type]
    for _ in range(2):  # one of each worker, which gets its name when it starts
        next(batches)
    reading = MemoryMonitor().read()
    parents = {found.pid: starter_of(found.pid) for found in reading.processes}
    roles = find_roles([reading], root_pid=reading.processes[0].pid, parents=parents)
    assert roles[reading.processes[0].pid] is Role.TRAINING
    assert list(roles.values()).count(Role.WORKER) == 2
    del batches


def test_text_on_a_page_is_escaped() -> None:
    hostile = '<script>alert("1")</script>'
    tile = {"number": hostile, "name": hostile, "facts": (hostile,), "reason": hostile, "image": "", "width": 0}
    page = render_page("sheet.html.j2", title=hostile, tiles=[tile, {**tile, "image": '" onload="x', "width": 3}])
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 10
    assert 'src="&#34; onload=&#34;x"' in page


needs_font = pytest.mark.skipif(not hasattr(cv2, "FontFace"), reason="OpenCV 4 has only an ASCII font")


@needs_font
@pytest.mark.parametrize("name", ["cat", "猫 ネコ", "고양이", "кошка", "γάτα", "château"])
def test_names_that_the_font_can_render_are_drawn_differently(name: str) -> None:
    lettering = Lettering()
    assert lettering.has(name)
    pictures = []
    for text in (name, "?" * len(name), name.encode("ascii", "backslashreplace").decode() + "."):
        canvas = np.zeros((40, 400, 3), np.uint8)
        lettering.write(canvas, text, row=20, colour=(255, 255, 255))
        pictures.append(canvas.tobytes())
    assert len(set(pictures)) == 3


@pytest.mark.parametrize("name", ["قطة", "חתול", "🐱", "बिल्ली", "a\tb", "\udce9"])
def test_names_that_the_font_cannot_render_are_recognised(name: str) -> None:
    assert not Lettering().has(name)


def test_without_a_font_only_ascii_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cv2, "FontFace", raising=False)
    lettering = Lettering()
    assert (lettering.has("cat 1"), lettering.has("猫"), lettering.has("château")) == (True, False, False)
    canvas = np.zeros((40, 400, 3), np.uint8)
    escaped = canvas.copy()
    lettering.write(canvas, "猫.jpg", row=20, colour=(255, 255, 255))
    lettering.write(escaped, r"\u732b.jpg", row=20, colour=(255, 255, 255))
    assert (canvas == escaped).all()
    assert canvas.any()


def test_a_long_name_ends_in_dots_before_the_edge() -> None:
    canvas = np.zeros((40, 100, 3), np.uint8)
    Lettering().write(canvas, "a very long name of a class", row=20, colour=(255, 255, 255))
    assert canvas[:, 60:98].any()
    assert not canvas[:, 98:].any()
