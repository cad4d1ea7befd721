"""A text that changes twice within one tick of the file system's clock: what is derived from it is still up to date."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from mpload import MPDataset, Topology, Weighted, open_index
from mpload.index import settling
from mpload.index.settling import settled_stamp

HEAD = "#mpload 1\n#columns name:str label:int\n"
TICK_NS = 300_000_000


def write(text: Path, labels: str) -> None:
    text.write_text(HEAD + "".join(f"sample\t{label}\n" for label in labels))


@pytest.fixture
def has_coarse_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of the file system stand still for 0.3 s at a time, and begin the test when it has just moved."""
    monkeypatch.setattr(settling, "_clock_ns", lambda *_: coarse_time_ns())
    before = coarse_time_ns()
    while coarse_time_ns() == before:
        time.sleep(0.001)


def coarse_time_ns() -> int:
    return time.time_ns() // TICK_NS * TICK_NS


def set_coarse_time(path: Path) -> None:
    now_ns = coarse_time_ns()
    os.utime(path, ns=(now_ns, now_ns))


@pytest.mark.usefixtures("has_coarse_clock")
@pytest.mark.parametrize("is_copied", [False, True])
def test_labels_that_change_within_a_tick_are_noticed(tmp_path: Path, *, is_copied: bool) -> None:
    text = tmp_path / "i.txt"
    for labels in ("0011", "1100"):
        write(text, labels)
        set_coarse_time(text)
        index = open_index(text, local_copy=tmp_path / "copies" if is_copied else None)
        assert "".join(map(str, index.labels[:])) == labels


@pytest.mark.usefixtures("has_coarse_clock")
def test_weights_in_a_file_that_change_within_a_tick_are_noticed(tmp_path: Path) -> None:
    write(tmp_path / "i.txt", "01")
    weights = tmp_path / "w.npy"
    for number in range(2):
        np.save(weights, np.eye(2)[number])
        set_coarse_time(weights)
        dataset = MPDataset(tmp_path / "i.txt", shuffle=Weighted(weights), topology=Topology())
        assert {label for _, label in dataset} == {number}


def test_what_is_written_later_is_newer_than_a_settled_text(tmp_path: Path) -> None:
    for number in range(10):
        text, later = tmp_path / f"{number}.txt", tmp_path / f"{number}"
        write(text, "01")
        settled_stamp(text)
        later.touch()
        assert later.stat().st_mtime_ns > text.stat().st_mtime_ns


def test_a_text_of_long_ago_or_of_the_far_future_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    write(tmp_path / "i.txt", "01")
    for seconds in (-7200, -1, 3600):
        then_ns = time.time_ns() + seconds * 10**9
        os.utime(tmp_path / "i.txt", ns=(then_ns, then_ns))
        assert settled_stamp(tmp_path / "i.txt").mtime_ns == then_ns


@pytest.mark.parametrize(("mtime_ns", "tick_seconds"), [(10**18, 2), (10**18 + 1, 0.02)])
def test_where_no_file_can_be_made_the_clock_of_the_machine_is_read_with_a_margin(
    tmp_path: Path, mtime_ns: int, tick_seconds: float
) -> None:
    before = time.time_ns()
    found = settling._clock_ns(tmp_path / "no folder" / "i.txt", mtime_ns)
    assert before <= found + tick_seconds * 1e9 <= time.time_ns()
