"""Reads ahead that fail: what is raised and when, and that slow failures are waited for at the same time."""

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from mpload import (
    ErrorPolicy,
    MPDataset,
    MPLoader,
    OutageError,
    RemoteStorage,
    ResizeCenterCrop,
    StorageError,
    Topology,
)
from mpload.errors import MploadWarning
from mpload.samples.policy import substitute_for, substitutes_in_turn
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.read_ahead import ReadAhead
from tests.support.fault_runs import make_files, write_index
from tests.support.late_storages import FILES, LateMemory
from tests.support.transport_works import wait_until
from tests.support.web_faults import web_server


class FailingMemory(LateMemory):
    """A storage behind a network, in which the reads of some files fail after a while."""

    def __init__(
        self, fails: Callable[[str], bool], *, seconds: float, error: type[StorageError] = StorageError
    ) -> None:
        super().__init__(FILES, late=lambda _: False, seconds=0.001)
        self.fails, self.fail_seconds, self.error = fails, seconds, error
        self.asked: list[str] = []

    def read_wanted(self, item: ByteRange, is_wanted: Callable[[], bool]) -> bytes:
        self.asked.append(item.path)
        if not self.fails(item.path):
            return super().read_wanted(item, is_wanted)
        time.sleep(self.fail_seconds)
        raise self.error(f"{item.path}: broken")


def planned(storage: FailingMemory, last: int = 20) -> ReadAhead:
    """Return a reader that has read two samples, so that it knows how long reads take, and planned others."""
    ahead = ReadAhead(storage)
    ahead.plan({number: [ByteRange(str(number))] for number in range(last)})
    for number in range(2):
        assert ahead.read(number, [ByteRange(str(number))]) == [FILES[str(number)]]
    return ahead


def test_the_error_of_a_read_ahead_is_raised_without_another_request() -> None:
    storage = FailingMemory("5".__eq__, seconds=0)
    ahead = planned(storage)
    for number in range(2, 10):
        if number != 5:
            assert ahead.read(number, [ByteRange(str(number))]) == [FILES[str(number)]]
            continue
        assert wait_until(lambda: "5" in storage.asked)
        with pytest.raises(StorageError, match="5: broken"):
            ahead.read(5, [ByteRange("5")])
    assert storage.asked.count("5") == 1
    assert ByteRange("5") not in storage.reads


def test_a_sample_that_met_an_outage_is_read_again() -> None:
    storage = FailingMemory("5".__eq__, seconds=0, error=OutageError)
    ahead = planned(storage)
    assert wait_until(lambda: "5" in storage.asked)
    assert ahead.read(5, [ByteRange("5")]) == [FILES["5"]]


def test_a_read_for_several_samples_that_fails_blames_none_of_them() -> None:
    storage = FailingMemory("300".__eq__, seconds=0)
    ahead = planned(storage)
    spans = {number: [Span("300", number, 5)] for number in range(20, 24)}
    ahead.plan(spans)
    assert wait_until(lambda: "300" in storage.asked)
    for number, ranges in spans.items():
        assert ahead.read(number, ranges) == [FILES["300"][number : number + 5]]


def test_samples_that_fail_as_slowly_are_known_and_others_can_be_read_in_their_place_at_once() -> None:
    storage = FailingMemory(lambda path: int(path) >= 3, seconds=0.6)
    ahead = planned(storage, last=8)
    assert ahead.failing() is None
    with pytest.raises(StorageError):
        ahead.read(3, [ByteRange("3")])
    failing = ahead.failing()
    assert failing is not None
    assert set(failing) <= {4, 5, 6, 7}
    assert len(failing) >= 3
    start = time.monotonic()
    extra = {number: [ByteRange(str(number))] for number in range(100, 130)}
    ahead.plan_extra(extra, dict.fromkeys(extra, 4))
    for number, ranges in extra.items():
        with pytest.raises(StorageError):
            ahead.read(number, ranges)
    assert time.monotonic() - start < 30 * 0.6 / 2  # one after another, they take 18 s


def test_what_is_read_in_place_of_samples_leaves_others_their_depth() -> None:
    storage = FailingMemory("3".__eq__, seconds=0.6)
    ahead = planned(storage, last=300)
    with pytest.raises(StorageError):
        ahead.read(3, [ByteRange("3")])
    extra = {number: [ByteRange(str(number))] for number in range(300, 300 + ahead.depth)}
    ahead.plan_extra(extra, dict.fromkeys(extra, 3))
    for number in (2, *range(4, 12)):
        ahead.read(number, [ByteRange(str(number))])
    assert all(ahead.has_begun(number) for number in range(12, 12 + ahead.depth))


def test_what_is_read_in_place_of_a_sample_is_dropped_with_it() -> None:
    storage = FailingMemory(lambda _: False, seconds=0)
    ahead = planned(storage, last=8)
    extra = {number: [ByteRange(str(number))] for number in (100, 101, 7)}
    ahead.plan_extra(extra, {100: 3, 101: 4, 7: 3})
    ahead.plan({number: [ByteRange(str(number))] for number in range(4, 12)})
    assert wait_until(lambda: "101" in storage.asked)
    assert ahead.read(101, extra[101]) == [FILES["101"]]
    ahead.plan({})
    assert wait_until(lambda: ahead._hedging is not None and not ahead._hedging.running)
    assert (ahead._planned.held_bytes, ahead._planned.num_ahead, ahead._pieces, ahead._extra) == (0, 0, {}, {})


def test_substitutes_are_read_in_the_order_in_which_they_will_be_tried() -> None:
    found = substitutes_in_turn([5, 9], lambda _: range(10**9), seed=1, epoch=2)
    of_5, of_9 = (substitute_for(number, range(10**9), seed=1, epoch=2) for number in (5, 9))
    assert list(found.items()) == [
        pair for first, second in zip(of_5, of_9, strict=True) for pair in ((first, 5), (second, 9))
    ]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="MPLoader needs Linux")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_stalled_samples_of_a_batch_and_their_substitutes_are_waited_for_together(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_files(tmp_path / "files", num_files=300, side=16)
    bad = "|".join(f"{number:02d}.jpg" for number in range(1, 300, 2))
    with web_server(tmp_path / "files", "slow stall", seconds=1000.0, bad=bad) as server:
        write_index(tmp_path / "index.txt", server.url, tmp_path / "files")
        dataset = MPDataset(
            tmp_path / "index.txt",
            decode=ResizeCenterCrop(16),
            batch_size=16,
            on_error=ErrorPolicy(action="substitute", max_error_fraction=1.0),
            storage=RemoteStorage(request_timeout_seconds=1.0, retry_seconds=4.0),
            topology=Topology(),
        )
        with MPLoader(dataset, num_workers=num_workers) as loader, warnings.catch_warnings():
            warnings.simplefilter("ignore", MploadWarning)
            start = time.monotonic()
            _, labels = next(iter(loader))
            seconds = time.monotonic() - start
    assert labels[::2].tolist() == list(range(0, 16, 2))
    assert not any(label % 2 for label in labels.tolist())
    # The first one is waited for before anything is known, then the others, then all their substitutes: 12 s.
    # One after another, 8 samples and as many substitutes of them take 64 s.
    assert seconds < 5 * 4.0
