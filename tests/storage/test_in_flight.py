"""Reads in progress: as many as allowed, in order, and each ends exactly once."""

import gc
import time
from collections.abc import Callable

import pytest

from mpload.errors import StorageError
from mpload.storage.fetches import Fetch
from mpload.storage.in_flight import InFlight
from mpload.storage.ranges import ByteRange
from mpload.storage.read_threads import ReadThreads

Ended = Callable[[bytes | None, Callable[[], bytes] | None], None]


class Storage:
    """Notes which reads begin. The test ends them."""

    def __init__(self) -> None:
        self.begun: dict[str, Ended] = {}
        self.read_in_threads: list[str] = []
        self.can_begin = True

    def begin(self, item: ByteRange, is_wanted: Callable[[], bool], ended: Ended) -> bool:
        assert is_wanted()
        if self.can_begin:
            self.begun[item.path] = ended
        return self.can_begin

    def read_wanted(self, item: ByteRange, is_wanted: Callable[[], bool]) -> bytes:
        self.read_in_threads.append(item.path)
        return item.path.encode()

    def read_again(self, item: ByteRange) -> bytes:
        raise NotImplementedError

    def may_read_again(self, item: ByteRange) -> bool:
        return False


def in_flight_of(storage: Storage, *, num_reads: int) -> InFlight:
    made = InFlight(storage, max_reads=8, clock_ns=time.perf_counter_ns)
    for _ in range(num_reads):
        assert made.start(num_reads)
    return made


def put(in_flight: InFlight, names: str, *, place: int | None = None) -> dict[str, Fetch]:
    fetches = {name: Fetch(ByteRange(name)) for name in names}
    for fetch in fetches.values():
        fetch.num_wanting = 1
        fetch.begin()
        in_flight.put_fetch(fetch, place=place)
    return fetches


def test_reads_begin_in_order_when_others_end() -> None:
    storage = Storage()
    in_flight = in_flight_of(storage, num_reads=2)
    fetches = put(in_flight, "abcd")
    put(in_flight, "e", place=0)
    assert "".join(storage.begun) == "ab"
    storage.begun["b"](b"of b", None)
    assert fetches["b"].data == b"of b"
    assert fetches["a"].data is None
    assert "".join(storage.begun) == "abe"
    in_flight.limit(1)
    storage.begun["a"](b"", None)
    assert "".join(storage.begun) == "abe"
    assert in_flight.num_waiting == 2
    in_flight.start(2)
    assert "".join(storage.begun) == "abec"


def test_a_cancelled_read_is_passed_over() -> None:
    storage = Storage()
    in_flight = in_flight_of(storage, num_reads=1)
    fetches = put(in_flight, "abc")
    fetches["b"].drop()
    storage.begun["a"](b"", None)
    assert "".join(storage.begun) == "ac"


@pytest.mark.parametrize("is_bad", [False, True])
def test_the_rest_of_a_read_takes_a_thread_and_counts_until_it_ends(is_bad: bool) -> None:
    storage = Storage()
    in_flight = in_flight_of(storage, num_reads=1)
    fetches = put(in_flight, "ab")

    def rest() -> bytes:
        assert "b" not in storage.begun
        if is_bad:
            raise StorageError("bad")
        return b"the rest"

    storage.begun["a"](None, rest)
    assert fetches["a"].wait(10.0)
    assert fetches["a"].data == (None if is_bad else b"the rest")
    assert (fetches["a"].failure is None) != is_bad
    while "b" not in storage.begun:
        time.sleep(0.001)


def test_a_read_that_cannot_begin_takes_a_thread() -> None:
    storage = Storage()
    storage.can_begin = False
    in_flight = in_flight_of(storage, num_reads=2)
    fetches = put(in_flight, "abc")
    for name, fetch in fetches.items():
        assert fetch.wait(10.0)
        assert fetch.data == name.encode()


def test_a_read_without_a_thread_ends_and_so_do_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage()
    storage.can_begin = False
    in_flight = in_flight_of(storage, num_reads=1)
    monkeypatch.setattr(ReadThreads, "start", lambda *_: False)
    fetches = put(in_flight, "abc")
    assert all(fetch.wait(0) and fetch.data is None for fetch in fetches.values())


def test_an_interrupt_loses_no_slot_and_leaves_no_read_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage()
    in_flight = in_flight_of(storage, num_reads=1)

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Storage, "begin", interrupt)
    fetch = Fetch(ByteRange("a"))
    fetch.num_wanting = 1
    fetch.begin()
    with pytest.raises(KeyboardInterrupt):
        in_flight.put_fetch(fetch)
    assert fetch.wait(0)
    monkeypatch.undo()
    put(in_flight, "b")
    assert "".join(storage.begun) == "b"


def test_an_interrupt_after_a_read_has_begun_leaks_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage()
    in_flight = in_flight_of(storage, num_reads=1)

    def begin(_: Storage, item: ByteRange, is_wanted: Callable[[], bool], ended: Ended) -> bool:
        storage.begun[item.path] = ended
        raise KeyboardInterrupt

    monkeypatch.setattr(Storage, "begin", begin)
    with pytest.raises(KeyboardInterrupt):
        put(in_flight, "a")
    monkeypatch.undo()
    storage.begun["a"](b"late", None)
    put(in_flight, "bc")
    assert "".join(storage.begun) == "ab"


def test_nothing_begins_once_nobody_holds_the_reads() -> None:
    storage = Storage()
    in_flight = in_flight_of(storage, num_reads=2)
    fetches = put(in_flight, "abcd")
    del in_flight
    gc.collect()
    storage.begun["a"](b"of a", None)
    storage.begun["b"](None, lambda: b"of b")
    assert "".join(storage.begun) == "ab"
    assert fetches["a"].wait(0)
    assert fetches["b"].wait(0)
