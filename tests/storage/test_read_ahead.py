"""Reading ahead: the same bytes, threads only if reads are slow, a limit in bytes, and errors only for their sample."""

import itertools
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.errors import ArgumentError, StorageError
from mpload.storage.ranges import ByteRange
from mpload.storage.read_ahead import ReadAhead
from mpload.storage.read_threads import ReadThreads
from tests.support.children import check_in_a_child
from tests.support.storages import FILE, SLOW_SECONDS, SlowMemory, span
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and the page cache of Linux")


def awake(storage: Any, **options: Any) -> ReadAhead:
    """Return a ReadAhead that has found out that its storage is slow."""
    ahead = ReadAhead(storage, **options)
    for _ in range(20):
        ahead.read(-1, [span(0, 1)])
    assert ahead.is_active
    return ahead


# --- the same bytes

RANGES = st.lists(
    st.one_of(
        st.builds(span, st.integers(0, 90_000), st.integers(0, 10_000)),
        st.just(ByteRange("file")),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60)
@given(
    ranges=st.lists(RANGES, min_size=1, max_size=20),
    plans=st.lists(st.lists(st.integers(0, 19), max_size=12, unique=True), max_size=4),
    max_bytes=st.sampled_from([1, 5_000, 1 << 20]),
    skips=st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_bytes_that_are_read_ahead_are_the_right_ones(
    ranges: list[list[ByteRange]], plans: list[list[int]], max_bytes: int, skips: list[bool]
) -> None:
    storage = SlowMemory({"shard": FILE, "file": FILE[:777]}, seconds=0)
    hours_a_read = itertools.count(step=10**13).__next__
    ahead = awake(storage, max_bytes=max_bytes, monotonic_ns=hours_a_read, count_waits=itertools.count().__next__)
    for plan in plans:
        wanted = {sample_id: ranges[sample_id % len(ranges)] for sample_id in plan}
        ahead.plan(wanted)
        for number, sample_id in enumerate(plan):
            if not skips[number % len(skips)]:  # a planned sample may never be requested
                assert ahead.read(sample_id, wanted[sample_id]) == [storage._one(item) for item in wanted[sample_id]]
    ahead.plan({})
    assert (ahead._planned.held_bytes, ahead._planned.num_ahead, len(ahead._pieces)) == (0, 0, 0)


def test_neighbouring_spans_share_a_read_and_distant_ones_do_not() -> None:
    storage = SlowMemory({"shard": FILE})
    ahead = awake(storage)
    storage.reads.clear()
    near, far = {n: [span(n * 1500, 1000)] for n in range(6)}, {9: [span(80_000, 10)]}
    ahead.plan(near | far)
    for sample_id, ranges in (near | far).items():
        assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]
    assert storage.reads == [span(0, 8500), span(80_000, 10)]


def test_samples_that_turn_out_to_come_first_are_read_before_all_others() -> None:
    storage = SlowMemory({"shard": FILE}, seconds=0.01)
    ahead = awake(storage)
    distant = {number: [span(number * 30_000, 10)] for number in range(3)} | {3: [span(99_000, 10)]}
    many = {10 + number: [span(number * 100 + 17_000, 1), span(50_000 - number * 100, 1)] for number in range(40)}
    ahead.plan(many)
    storage.reads.clear()
    ahead.plan(distant | many)
    assert not any(ahead._pieces[number][0].fetch in ahead._queue for number in distant)
    ahead.read(0, distant[0])
    assert len(ahead._queue) > 0


def test_samples_that_come_first_are_read_at_once_even_if_others_fill_the_memory() -> None:
    storage = SlowMemory({"shard": FILE}, seconds=0.02)
    ahead = awake(storage, max_bytes=10_000)
    ahead._depths.depth = 64
    later = {number: [span(number * 1000, 1000 + number)] for number in range(0, 60, 2)}
    ahead.plan(later)
    assert 8_000 < ahead._planned.held_bytes <= 10_000
    first = {100 + number: [span(90_000 - 20_000 * number, 1000)] for number in range(4)}
    ahead.plan(first | later)
    assert all(ahead.has_begun(sample_id) for sample_id in first)
    assert ahead._planned.held_bytes <= 10_000
    for sample_id, ranges in (first | later).items():  # in order, and none is left out
        assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]
    assert ahead._planned.held_bytes == 0
    assert len(storage.reads) <= 20 + len(first) + len(later) + len(first) + 1


def test_threads_make_reads_that_come_first_before_those_that_wait_for_a_thread() -> None:
    threads, done, may_go = ReadThreads(max_threads=1), list[str](), threading.Event()
    threads.start(1)
    threads.put(may_go.wait)
    for name in ("later", "latest"):
        threads.put(partial(done.append, name))
    for place, name in enumerate(("first", "second")):
        threads.put(partial(done.append, name), place=place)
    may_go.set()
    assert wait_until(lambda: len(done) == 4)
    assert done == ["first", "second", "later", "latest"]
    threads.end()


# --- threads only if they pay


def test_fast_reads_start_no_thread() -> None:
    storage = SlowMemory({"shard": FILE}, seconds=0)
    ahead = ReadAhead(storage)
    for number in range(2000):
        ahead.read(number, [span(number, 10)])
    assert not ahead.is_active
    assert storage.threads == {threading.current_thread().name}


def test_a_few_slow_reads_among_many_start_no_thread() -> None:
    storage = SlowMemory({"shard": FILE}, seconds=0)
    ahead = ReadAhead(storage)
    for number in range(400):
        storage.seconds = SLOW_SECONDS if number % 100 in {50, 51} else 0
        ahead.read(number, [span(number, 10)])
    assert not ahead.is_active


def test_threads_read_while_reads_are_slow_and_stop_when_they_are_fast_again() -> None:
    storage = SlowMemory({"shard": FILE} | {str(number): FILE[:10] for number in range(100)})
    ahead = awake(storage)

    def read_many() -> None:
        wanted = {number: [ByteRange(str(number))] for number in range(100)}
        ahead.plan(wanted)
        for sample_id, ranges in wanted.items():
            ahead.read(sample_id, ranges)

    read_many()
    assert any(name.startswith("mpload-ahead") for name in storage.threads)
    assert len(storage.threads) <= 1 + storage.max_parallel_reads
    storage.seconds = 0

    def is_inactive() -> bool:
        if ahead.is_active:
            read_many()
        return not ahead.is_active

    assert wait_until(is_inactive)
    storage.threads.clear()
    read_many()
    assert storage.threads == {threading.current_thread().name}


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "mpload-ahead"}


def test_threads_end_when_their_read_ahead_is_garbage_collected() -> None:
    before = reading_threads()
    ahead = awake(SlowMemory({str(number): FILE for number in range(20)} | {"shard": FILE}))
    ahead.plan({number: [ByteRange(str(number))] for number in range(20)})
    started = reading_threads() - before
    assert started
    del ahead
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_a_storage_for_a_single_thread_is_read_by_one_thread() -> None:
    class OneByOne(SlowMemory):
        max_parallel_reads = 1

    storage = OneByOne({"shard": FILE})
    ahead = ReadAhead(storage)
    for number in range(30):
        ahead.read(number, [span(0, 1)])
    assert not ahead.is_active


def test_depth_grows_until_hardly_any_sample_waits() -> None:
    storage = SlowMemory({"shard": FILE} | {str(number): FILE[:10] for number in range(300)}, seconds=0.005)
    ahead = awake(storage)
    wanted = {number: [ByteRange(str(number))] for number in range(300)}
    ahead.plan(wanted)
    late = []
    for sample_id, ranges in wanted.items():
        before = ahead.num_waits
        ahead.read(sample_id, ranges)
        late.append(ahead.num_waits > before)
        time.sleep(0.002)  # the work that is done on a sample
    assert sum(late[-200:]) < 20 < len(storage.reads)
    assert ahead.depth > 2


def is_reading(ahead: ReadAhead) -> bool:
    """Return whether reads have begun and not ended."""
    fetches = (piece.fetch for pieces in ahead._pieces.values() for piece in pieces)
    return any(fetch.is_begun and fetch.unfinished.locked() for fetch in fetches)


@pytest.mark.parametrize("max_bytes", [1, 4000, 20_000])
def test_no_more_bytes_are_read_ahead_than_allowed(max_bytes: int) -> None:
    storage = SlowMemory({"shard": FILE})
    ahead = awake(storage, max_bytes=max_bytes)
    ahead._depths.depth = 100
    ahead._next_probe_ns = 1 << 62
    storage.reads.clear()
    wanted = {number: [span(number * 20_000 % 90_001, 1000)] for number in range(40)}
    ahead.plan(wanted)
    for number, (sample_id, ranges) in enumerate(wanted.items()):
        assert wait_until(lambda: not is_reading(ahead))
        assert sum(item.length_bytes or 0 for item in storage.reads) - 1000 * number <= max(max_bytes, 1000)
        ahead.read(sample_id, ranges)


def test_reads_succeed_even_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    storage = SlowMemory({"shard": FILE})
    ahead = awake(storage)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    wanted = {number: [span(number * 20_000 % 90_001, 100)] for number in range(10)}
    ahead.plan(wanted)
    for sample_id, ranges in wanted.items():
        assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]
    assert not ahead.is_active


def test_a_limit_of_zero_bytes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="positive"):
        ReadAhead(SlowMemory({}), max_bytes=0)


# --- errors and forks


def test_an_error_affects_only_its_own_sample() -> None:
    storage = SlowMemory({"shard": FILE})
    ahead = awake(storage)
    wanted = {
        number: [span(99_000 + number * 300, 300)] for number in range(6)
    }  # from 3 on they end past the end of the shard
    ahead.plan(wanted)
    for sample_id, ranges in wanted.items():
        if sample_id < 3:
            assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]
        else:
            with pytest.raises(StorageError, match="too short"):
                ahead.read(sample_id, ranges)


@pytest.mark.processes
def test_a_child_forked_while_threads_read_starts_afresh() -> None:
    storage = SlowMemory({"shard": FILE}, seconds=0.05)
    ahead = awake(storage)
    wanted = {number: [span(number * 20_000 % 90_001, 100)] for number in range(10)}
    ahead.plan(wanted)
    fetches = [piece.fetch for pieces in ahead._pieces.values() for piece in pieces]
    assert wait_until(lambda: any(fetch.taken.locked() for fetch in fetches))

    def reads_all() -> bool:
        return all(ahead.read(sample_id, ranges) == [storage._one(ranges[0])] for sample_id, ranges in wanted.items())

    def starts_afresh() -> bool:
        ahead.plan(wanted)
        return reads_all()

    check_in_a_child(starts_afresh)
    assert reads_all()
