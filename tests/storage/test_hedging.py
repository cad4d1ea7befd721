"""Late requests are made twice: the same bytes, a bounded number, none while the server fails, no more memory."""

import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mpload import MPDataset, MPLoader, RawBytes, RemoteStorage, Shuffle, StorageError, Topology
from mpload.storage.fetches import Fetch
from mpload.storage.hedging import MAX_HEDGED_SHARE, MAX_OWED, Hedging
from mpload.storage.latencies import Latencies
from mpload.storage.ranges import ByteRange
from mpload.storage.read_ahead import ReadAhead
from mpload.storage.read_threads import ReadThreads
from mpload.storage.remote import RemoteObjects
from tests.support.batches import plain
from tests.support.children import check_in_a_child
from tests.support.late_storages import FILES, NUM_FILES, LateMemory, late_every, read_in_order
from tests.support.raw_server import head, raw_server
from tests.support.storages import FILE
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and the page cache of Linux")


@pytest.fixture(autouse=True)
def _only_hanging_reads_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a busy machine from making other reads late, so that the allowed ones are left for those that hang."""
    monkeypatch.setattr("mpload.storage.latencies._LEAST_LATE_NS", 300_000_000)


@contextmanager
def answered_after(storage: LateMemory, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, storage.answer_late.set)
    timer.start()
    yield
    timer.cancel()
    storage.answer_late.set()


@contextmanager
def answered_after_a_hedge(storage: LateMemory) -> Iterator[None]:
    def answer() -> None:
        wait_until(lambda: bool(storage.reads_again), 30)
        time.sleep(0.5)
        storage.answer_late.set()

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join()


def test_late_reads_are_made_again_and_bring_the_right_bytes_in_order() -> None:
    storage = late_every(100)
    ahead = ReadAhead(storage)
    with answered_after(storage, 30):
        start = time.monotonic()
        assert read_in_order(ahead) == [FILES[str(number)] for number in range(NUM_FILES)]
        assert time.monotonic() - start < 25  # no read that hangs was waited for
    assert "300" in {item.path for item in storage.reads_again}  # on a busy machine some others seem late
    assert ahead.take_hedges() == len(storage.reads_again)


def test_reads_that_hang_leave_threads_for_the_others() -> None:
    files = {str(number): str(number).encode() for number in range(1200)}
    hanging = [str(number) for number in range(1000, 1016)]
    storage = LateMemory(files, late=hanging.__contains__)
    storage.max_parallel_reads = 64
    ahead = ReadAhead(storage)
    with answered_after(storage, 30):
        start = time.monotonic()
        assert read_in_order(ahead, last=1200) == list(files.values())
        assert time.monotonic() - start < 25
    assert {item.path for item in storage.reads_again} >= set(hanging)


def test_bytes_are_right_if_the_first_answer_wins() -> None:
    storage = late_every(100)
    storage.is_hedge_good = False
    ahead = ReadAhead(storage)
    read_in_order(ahead, last=200)
    with answered_after_a_hedge(storage):
        assert read_in_order(ahead) == [FILES[str(number)] for number in range(NUM_FILES)]
    assert "300" in {item.path for item in storage.reads_again}


def test_no_more_than_the_allowed_share_of_reads_is_made_again() -> None:
    storage = late_every(10)
    ahead = ReadAhead(storage)
    read_in_order(ahead, last=200)
    with answered_after_a_hedge(storage):
        assert read_in_order(ahead) == [FILES[str(number)] for number in range(NUM_FILES)]
    assert 0 < len(storage.reads_again) <= ahead.take_hedges() <= MAX_HEDGED_SHARE * len(storage.reads) + MAX_OWED


def test_a_read_that_everything_waits_for_is_made_again_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.storage.hedging._RETRY_SECONDS", 0.1)
    storage = late_every(1)
    latencies, threads = Latencies(), ReadThreads(max_threads=2)
    hedging = Hedging(storage, threads, latencies, time.perf_counter_ns)
    for _ in range(64):
        latencies.add(1, None)
    fetches = [Fetch(ByteRange("300")) for _ in range(MAX_OWED)]
    for fetch in fetches:  # far fewer reads than one hedged request takes
        fetch.num_wanting, fetch.began_ns = 1, time.perf_counter_ns()
        fetch.begin()
        hedging.begun(fetch)
        hedging.check(1000)
    assert not hedging.num_hedges
    for fetch in fetches:
        hedging.wait(fetch, 1000)
        assert fetch.data == FILES["300"]
    assert hedging.num_hedges == MAX_OWED


def test_a_read_that_is_late_when_it_is_requested_is_made_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.storage.hedging._RETRY_SECONDS", 60)
    latencies = Latencies()
    hedging = Hedging(late_every(1), ReadThreads(max_threads=2), latencies, time.perf_counter_ns)
    for _ in range(64):
        latencies.add(1, None)
        hedging.begun(Fetch(ByteRange("200")))
    fetch = Fetch(ByteRange("300"))
    fetch.num_wanting, fetch.began_ns = 1, time.perf_counter_ns() - 10**9
    fetch.begin()
    start = time.monotonic()
    hedging.wait(fetch, 1000)
    assert fetch.data == FILES["300"]
    assert time.monotonic() - start < 30


def test_nothing_is_made_again_while_the_server_fails() -> None:
    storage = late_every(100)
    storage.is_calm = False
    ahead = ReadAhead(storage)
    read_in_order(ahead, last=200)
    with answered_after(storage, 1):
        assert read_in_order(ahead) == [FILES[str(number)] for number in range(NUM_FILES)]
    assert not storage.reads_again


def test_nothing_is_made_again_that_has_no_room() -> None:
    latencies, threads = Latencies(), ReadThreads(max_threads=0)
    hedging = Hedging(late_every(1), threads, latencies, time.perf_counter_ns)
    for _ in range(64):
        latencies.add(1, None)
    fetches = [Fetch(ByteRange("300")) for _ in range(100)]
    for fetch in fetches:
        fetch.num_wanting, fetch.held_bytes, fetch.began_ns = 1, 1000, 1  # long ago
        fetch.begin()
        hedging.begun(fetch)
    hedging.check(999)
    assert not hedging.running
    for fetch in fetches:
        hedging.begun(fetch)
    hedging.check(2999)
    assert hedging.num_hedges == 2
    assert sum(fetch.held_bytes for fetch in hedging.running) == 2000


class CountedMemory(LateMemory):
    """Counts the bytes that are being read, or were read and are not used yet."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(FILES, FILE[:1000]), late=lambda path: int(path) > 200 and int(path) % 40 == 39)
        self.lock = threading.Lock()
        self.answered: set[ByteRange] = set()
        self.num_bytes = self.most_bytes = 0

    def count(self, num_bytes: int) -> None:
        with self.lock:
            self.num_bytes += num_bytes
            self.most_bytes = max(self.most_bytes, self.num_bytes)

    def answer(self, item: ByteRange) -> None:
        if item in self.answered:  # it is dropped
            self.count(-1000)
        self.answered.add(item)

    def read_wanted(self, item: ByteRange, is_wanted: object) -> bytes:
        self.count(1000)
        data = super().read_wanted(item, lambda: True)
        self.answer(item)
        return data

    def read_again(self, item: ByteRange) -> bytes:
        self.count(1000)
        self.answer(item)
        return super().read_again(item)


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [1, 5000, 20_000])
def test_reads_and_those_made_again_never_take_more_than_the_budget(max_bytes: int) -> None:
    storage = CountedMemory()
    ahead = ReadAhead(storage, max_bytes=max_bytes)
    ahead._sizes._mean_bytes = 1000.0
    wanted = {number: [ByteRange(str(number))] for number in range(NUM_FILES)}
    ahead.plan(wanted)
    with answered_after(storage, 2):
        for number, ranges in wanted.items():
            assert ahead.read(number, ranges) == [FILE[:1000]]
            storage.count(-1000)
    assert storage.most_bytes <= max(max_bytes, 1000) + 1000  # a sample is counted until this test has it
    assert storage.reads_again or max_bytes == 1


def test_a_lost_answer_releases_its_memory_when_it_comes() -> None:
    storage = late_every(100)
    ahead = ReadAhead(storage)
    with answered_after(storage, 30):
        read_in_order(ahead)
        assert ahead._hedging is not None
        assert [fetch.item.path for fetch in ahead._hedging.running] == ["300"]
        storage.answer_late.set()
        assert wait_until(lambda: ahead._hedging is not None and not ahead._hedging.running)
    assert (ahead._planned.held_bytes, ahead._planned.num_ahead, ahead._room_bytes) == (0, 0, ahead.max_bytes)


@pytest.mark.processes
def test_a_child_forked_during_a_late_read_starts_afresh() -> None:
    storage = late_every(100)
    ahead = ReadAhead(storage)
    with answered_after(storage, 30):
        read_in_order(ahead)

        def starts_afresh() -> bool:
            storage.is_late = lambda path: False
            return read_in_order(ahead) == list(FILES.values())

        check_in_a_child(starts_afresh)


@pytest.mark.processes
def test_a_process_ends_at_once_though_a_read_is_late() -> None:
    script = """
        from mpload.storage.read_ahead import ReadAhead
        from tests.support.late_storages import late_every, read_in_order
        storage = late_every(100)
        ahead = ReadAhead(storage)
        read_in_order(ahead)
        print(ahead.take_hedges(), flush=True)
    """
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=55, check=True)
    assert int(done.stdout) >= 1
    assert time.monotonic() - start < 50  # the late read would have taken 60 s


def test_objects_behind_a_network_are_read_ahead_from_the_first_one_on() -> None:
    storage = LateMemory(FILES, late=lambda _: False, seconds=0)
    ahead = ReadAhead(storage)
    assert ahead.is_active
    read_in_order(ahead, last=100)
    assert ahead.is_active
    assert storage.threads == {"mpload-ahead"}


def test_as_many_reads_are_in_progress_as_samples_are_used_during_one() -> None:
    storage = LateMemory({str(number): b"x" for number in range(3000)}, late=lambda _: False, seconds=0.02)
    storage.max_parallel_reads = 64
    ahead = ReadAhead(storage)
    for first in range(0, 300, 50):
        wanted = {number: [ByteRange(str(number))] for number in range(first, first + 200)}
        ahead.plan(wanted)
        for number in range(first, first + 50):
            ahead.read(number, wanted[number])
            time.sleep(0.002)
    assert ahead.depth > 0.02 / 0.002 / 3  # on a busy machine both times grow


# --- real servers


class Stalls:
    """A web server that answers a few requests only after a minute, or never well."""

    def __init__(self, *, first: int, every: int, status: str = "200 OK") -> None:
        self.first, self.every, self.status = first, every, status
        self.num_requests: Counter[str] = Counter()
        self.stalled: list[str] = []
        self.end = threading.Event()

    def answer(self, connection: socket.socket, path: str) -> bool:
        self.num_requests[path] += 1
        total = self.num_requests.total()
        if self.num_requests[path] == 1 and total >= self.first and total % self.every == 0:
            self.stalled.append(path)
            self.end.wait(60)
        body = content(path)
        connection.sendall(head(self.status, length=len(body)) + body)
        return True


def content(path: str) -> bytes:
    return path.encode() * 20


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_with_stalls_brings_the_same_batches_with_few_more_requests(num_workers: int, tmp_path: Path) -> None:
    num_objects = 1200
    stalls = Stalls(first=600, every=150)
    order = Shuffle().order(num_samples=num_objects, seed=0, epoch=0)
    with raw_server(stalls.answer) as url:
        lines = "".join(f"{number}.bin\t{number}\n" for number in range(num_objects))
        (tmp_path / "all.txt").write_text(f"#mpload 1\n#root {url}\n#columns file:path label:int\n{lines}")
        dataset = MPDataset(
            tmp_path / "all.txt", decode=RawBytes(), batch_size=16, shuffle=True, tail="ragged", topology=Topology()
        )
        start = time.monotonic()
        if num_workers:
            with MPLoader(dataset, num_workers=num_workers) as loader:
                made, num_hedges = plain(loader), loader.stats().timings.num_hedges
        else:
            made, num_hedges = plain(dataset), sum(number - 1 for number in stalls.num_requests.values())
        seconds = time.monotonic() - start
        stalls.end.set()
    labels = [label for _, labels in made for label in labels]
    assert labels == order.sample_ids(np.arange(num_objects)).tolist()
    assert [data for files, _ in made for data in files] == [content(f"/{label}.bin") for label in labels]
    assert stalls.stalled
    assert seconds < 50  # no request that stalls was waited for
    assert 1 <= num_hedges <= MAX_HEDGED_SHARE * stalls.num_requests.total()


@pytest.mark.processes
def test_a_server_that_has_failed_is_not_asked_twice() -> None:
    stalls = Stalls(first=10**9, every=1)
    with raw_server(stalls.answer) as url:
        objects = RemoteObjects(url, limits=RemoteStorage(request_timeout_seconds=1, retry_seconds=2))
        item = ByteRange("a.bin")
        assert not objects.may_read_again(item)  # it has not been asked yet
        objects.read([item])
        assert objects.may_read_again(item)
        assert objects.read_again(item) == content("/a.bin")
        stalls.status = "503 Service Unavailable"
        before = stalls.num_requests.total()
        with pytest.raises(StorageError, match="503"):
            objects.read_again(item)
        assert stalls.num_requests.total() == before + 1
        assert not objects.may_read_again(item)
        stalls.status = "200 OK"
        objects.read([item])
        assert not objects.may_read_again(item)  # it failed a moment ago


@pytest.mark.processes
def test_a_read_that_is_no_longer_wanted_is_not_repeated() -> None:
    stalls = Stalls(first=10**9, every=1, status="503 Service Unavailable")
    with raw_server(stalls.answer) as url:
        objects = RemoteObjects(url, limits=RemoteStorage(request_timeout_seconds=10, retry_seconds=50))
        with pytest.raises(StorageError, match="503"):
            objects.read_wanted(ByteRange("a.bin"), lambda: False)
    assert stalls.num_requests.total() == 1
