"""The board is correct on processors that reorder memory accesses.

The accesses of the board's real code to shared memory are recorded, then replayed in every order that a processor
allows, on a model of two processors, one for the parent and one for a worker. On "arm" any access may overtake any
other, except a fence or an access to the same cell. On "x86" only a load may overtake an earlier store.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest

from mpload.transport.board import ParentBoard, WorkerBoard
from mpload.transport.chunks import Chunk
from mpload.transport.queue import ENTRY_CELLS

Access = tuple[str, int, int]
"""`load`, `store` or `fence`; the cell; the stored value."""
Outcome = frozenset[tuple[str, int]]
"""The value that each load has read, by the name of the load."""

GENERATION, URGENT_TAIL, TAIL, ROW_SERIAL, ROW_SLEEPS = 0, 24, 32, 40, 42
STALE = -99
CHUNK = Chunk(batch=0, slot=3, first=4, last=6, task=(7, -8))


class Recorded:
    """Cells that record each access to them."""

    def __init__(self, cells: "memoryview[int]", trace: list[Access]) -> None:
        self._cells, self._trace = cells, trace

    def __getitem__(self, key: Any) -> Any:
        self._trace += [("load", cell, 0) for cell in self._touched(key)]
        return self._cells[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cells[key] = value
        self._trace += [("store", cell, self._cells[cell]) for cell in self._touched(key)]

    def _touched(self, key: int | slice) -> Iterable[int]:
        return range(*key.indices(len(self._cells))) if isinstance(key, slice) else (key,)


def recorded(board: ParentBoard | WorkerBoard, act: Callable[[], object]) -> list[Access]:
    """Return the accesses of `act` to the cells of `board`."""
    trace: list[Access] = []
    sides: tuple[Any, ...] = (board, board._urgent, board._plain)
    kept = [(side._cells, side._fence) for side in sides]
    for side, (cells, _) in zip(sides, kept, strict=True):
        side._cells, side._fence = Recorded(cells, trace), lambda: trace.append(("fence", -1, 0))
    act()
    for side, (cells, fence) in zip(sides, kept, strict=True):
        side._cells, side._fence = cells, fence
    return trace


def about(trace: Sequence[Access], cells: Sequence[int]) -> tuple[Access, ...]:
    """Return the accesses to `cells` and the fences, without repetitions of the previous access."""
    kept: list[Access] = []
    for access in trace:
        if (access[0] == "fence" or access[1] in cells) and access != (kept[-1] if kept else None):
            kept.append(access)
    return tuple(kept)


def outcomes(threads: Sequence[tuple[Access, ...]], before: dict[int, int], *, processor: str) -> set[Outcome]:
    """Return all possible outcomes of these threads. Loads are named `thread.number`, counted per thread."""

    def may_overtake(later: Access, earlier: Access) -> bool:
        if "fence" in {later[0], earlier[0]} or later[1] == earlier[1]:
            return False
        return processor == "arm" or (later[0], earlier[0]) == ("load", "store")

    @cache
    def after(done: tuple[frozenset[int], ...], memory: tuple[tuple[int, int], ...]) -> frozenset[Outcome]:
        found: set[Outcome] = set()
        is_over = True
        for number, accesses in enumerate(threads):
            todo = [place for place in range(len(accesses)) if place not in done[number]]
            for place in todo:
                is_over = False
                if not all(may_overtake(accesses[place], accesses[other]) for other in todo if other < place):
                    continue
                kind, cell, value = accesses[place]
                then = dict(memory)
                seen: Outcome = frozenset()
                if kind == "store":
                    then[cell] = value
                elif kind == "load":
                    loads = [other for other in range(place) if accesses[other][0] == "load"]
                    seen = frozenset({(f"{number}.{len(loads)}", then[cell])})
                left = tuple(each | {place} if turn == number else each for turn, each in enumerate(done))
                found |= {seen | rest for rest in after(left, tuple(sorted(then.items())))}
        return frozenset({frozenset()}) if is_over else frozenset(found)

    return set(after((frozenset(),) * len(threads), tuple(sorted(before.items()))))


def loads(trace: Sequence[Access], thread: int) -> list[tuple[str, int]]:
    """Return the name and cell of each load of a thread."""
    cells = [cell for kind, cell, _ in trace if kind == "load"]
    return [(f"{thread}.{number}", cell) for number, cell in enumerate(cells)]


def without_fences(
    first: tuple[Access, ...], second: tuple[Access, ...]
) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    bare = [tuple(access for access in thread if access[0] != "fence") for thread in (first, second)]
    return bare[0], bare[1]


@pytest.fixture
def sides() -> Iterator[tuple[ParentBoard, WorkerBoard]]:
    parent = ParentBoard(num_plain_entries=4)
    parent.prepare_row(0)
    worker = WorkerBoard(parent.fds)
    worker.use_row(0)
    yield parent, worker
    parent.close()


def entry_of(parent: ParentBoard) -> int:
    return parent._plain._cell_of(0)


@pytest.mark.parametrize("cell", range(9))
@pytest.mark.parametrize("num_waiting", [0, 1])
def test_a_worker_that_sees_the_new_tail_sees_the_whole_entry(
    sides: tuple[ParentBoard, WorkerBoard], num_waiting: int, cell: int
) -> None:
    parent, worker = sides
    for serial in range(1, 1 + num_waiting):
        parent.post(serial, CHUNK)
    parent.cancel()  # so that the generation is new
    place = parent._plain._cell_of(num_waiting) + cell
    before = {TAIL: num_waiting, place: STALE}
    posting = about(recorded(parent, lambda: parent.post(5, CHUNK)), (TAIL, place))
    taking = about(recorded(worker, lambda: (worker.reserve(2), worker.take())), (TAIL, place))

    def torn(posting: tuple[Access, ...], taking: tuple[Access, ...], processor: str) -> bool:
        found = outcomes([posting, taking], before, processor=processor)
        bound = ""
        for name, at in loads(taking, 1):
            if at == TAIL:
                bound = name
            elif any((bound, num_waiting + 1) in seen and (name, STALE) in seen for seen in found):
                return True
        return False

    assert not torn(posting, taking, "arm")
    assert not torn(posting, taking, "x86")
    assert torn(*without_fences(posting, taking), "arm")
    assert not torn(*without_fences(posting, taking), "x86")


def test_a_worker_that_sees_a_new_entry_also_sees_an_earlier_cancellation(
    sides: tuple[ParentBoard, WorkerBoard],
) -> None:
    parent, worker = sides
    before = {TAIL: 0, GENERATION: 0}

    def cancel_and_post() -> None:
        parent.cancel()
        parent.post(5, CHUNK)

    posting = about(recorded(parent, cancel_and_post), (TAIL, GENERATION))
    taking = about(recorded(worker, worker.take), (TAIL, GENERATION))

    def unaware(posting: tuple[Access, ...], taking: tuple[Access, ...]) -> list[Outcome]:
        names = loads(taking, 1)
        bound = next(name for name, at in names if at == TAIL)
        judged = [name for name, at in names if at == GENERATION][-1]
        found = outcomes([posting, taking], before, processor="arm")
        return [seen for seen in found if (bound, 1) in seen and (judged, 0) in seen]

    assert not unaware(posting, taking)
    assert unaware(*without_fences(posting, taking))


@pytest.mark.parametrize(("is_urgent", "tail"), [(False, TAIL), (True, URGENT_TAIL)])
def test_a_worker_that_falls_asleep_sees_the_chunk_or_the_parent_sees_it_sleep(
    sides: tuple[ParentBoard, WorkerBoard], is_urgent: bool, tail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, worker = sides

    class Sleeps(BaseException):
        pass

    def asleep(*_: object) -> bytes:
        raise Sleeps

    def fall_asleep() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("mpload.transport.board.os.read", asleep)
            with pytest.raises(Sleeps):
                worker.take()

    before = {tail: 0, ROW_SLEEPS: 0}
    sleeping = about(recorded(worker, fall_asleep), (tail, ROW_SLEEPS))
    worker._cells[ROW_SLEEPS] = 0

    def post_and_wake() -> None:
        parent.post(5, CHUNK, urgent=is_urgent)
        parent.wake(1)

    posting = about(recorded(parent, post_and_wake), (tail, ROW_SLEEPS))

    def missed(posting: tuple[Access, ...], sleeping: tuple[Access, ...], processor: str) -> list[Outcome]:
        checks = [name for name, at in loads(sleeping, 1) if at == tail]
        woken = [name for name, at in loads(posting, 0) if at == ROW_SLEEPS][-1]
        found = outcomes([posting, sleeping], before, processor=processor)
        return [seen for seen in found if (checks[-1], 0) in seen and (woken, 0) in seen]

    for processor in ("arm", "x86"):
        assert not missed(posting, sleeping, processor)
        assert missed(*without_fences(posting, sleeping), processor)


def test_a_parent_that_sees_a_chunk_leave_the_queue_sees_it_in_a_row(sides: tuple[ParentBoard, WorkerBoard]) -> None:
    parent, worker = sides
    assert parent.post(5, CHUNK)
    entry = entry_of(parent)
    before = {entry: 5, ROW_SERIAL: 0}

    def check() -> None:
        parent.queued_serials()
        parent.row(0)

    checking = about(recorded(parent, check), (entry, ROW_SERIAL))
    taking = about(recorded(worker, worker.take), (entry, ROW_SERIAL))

    def lost(checking: tuple[Access, ...], taking: tuple[Access, ...]) -> list[Outcome]:
        queued, held = (next(name for name, at in loads(checking, 0) if at == cell) for cell in (entry, ROW_SERIAL))
        found = outcomes([checking, taking], before, processor="arm")
        return [seen for seen in found if (queued, 0) in seen and (held, 0) in seen]

    assert not lost(checking, taking)
    assert lost(*without_fences(checking, taking))


def test_a_worker_reads_an_entry_before_it_frees_its_cells(sides: tuple[ParentBoard, WorkerBoard]) -> None:
    parent, worker = sides
    assert parent.post(5, CHUNK)
    taking = recorded(worker, worker.take)
    entry = range(entry_of(parent), entry_of(parent) + ENTRY_CELLS)
    emptied = taking.index(("store", entry[0], 0))
    last_fence = max(number for number, access in enumerate(taking[:emptied]) if access[0] == "fence")
    reads = [number for number, (kind, cell, _) in enumerate(taking) if kind == "load" and cell in entry[1:]]
    assert reads
    assert max(reads) < last_fence
