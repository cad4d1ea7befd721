"""The governor: laws of its decision, and real loaders in real containers that run short of memory."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import MploadWarning
from mpload.loader.governor import Governor, GovernorState, Readings, decide, fitting_depth, reserve_bytes
from mpload.memory.budget import WORKER_BYTES
from mpload.memory.machine import MemoryRoom
from mpload.units import GIB, MIB
from tests.support.batches import numbers_index
from tests.support.containers import Container, memory_container

SLOT = 40 * MIB
sizes = st.integers(0, 4 * GIB)
depths = st.integers(1, 16)


@st.composite
def readings(draw: st.DrawFn, /, **fixed: Any) -> Readings:
    limit = draw(st.integers(64 * MIB, 4 * GIB))
    drawn = {
        "limit_bytes": limit,
        "free_bytes": draw(st.integers(0, limit)),
        "own_bytes": draw(sizes),
        "budget_bytes": draw(sizes),
        "used_slots_bytes": draw(sizes),
        "num_lent": draw(st.integers(0, 4)),
        "slot_bytes": draw(st.integers(0, 200 * MIB)),
        "stalled_fraction": draw(st.floats(0, 1)),
        "num_new_oom_kills": draw(st.integers(0, 3)),
    }
    return Readings(**{**drawn, **fixed})


def changed(of: Readings, **values: Any) -> Readings:
    return Readings(**{**{name: getattr(of, name) for name in Readings.__slots__}, **values})


def states() -> st.SearchStrategy[GovernorState]:
    return st.builds(
        GovernorState, depth=depths, num_calm_checks=st.integers(0, 70), patience_checks=st.integers(5, 60)
    )


@given(readings(), states(), depths)
def test_the_depth_stays_between_one_and_its_maximum_and_grows_by_one_at_most(
    found: Readings, state: GovernorState, max_depth: int
) -> None:
    after = decide(found, state, max_depth=max_depth)
    assert 1 <= after.depth <= max_depth
    assert after.depth <= state.depth + 1


@given(readings(), states(), depths, sizes)
def test_less_room_or_more_usage_never_means_a_greater_depth(
    found: Readings, state: GovernorState, max_depth: int, more_bytes: int
) -> None:
    depth = decide(found, state, max_depth=max_depth).depth
    worse = (
        changed(found, free_bytes=max(0, found.free_bytes - more_bytes)),
        changed(found, own_bytes=found.own_bytes + more_bytes),
        changed(found, budget_bytes=max(0, found.budget_bytes - more_bytes)),
        changed(found, stalled_fraction=1.0),
        changed(found, num_new_oom_kills=found.num_new_oom_kills + 1),
    )
    for each in worse:
        assert decide(each, state, max_depth=max_depth).depth <= depth


@given(readings(stalled_fraction=0.0, num_new_oom_kills=0), states())
def test_the_depth_does_not_shrink_if_there_is_room(found: Readings, state: GovernorState) -> None:
    free_bytes = reserve_bytes(found.limit_bytes, found.slot_bytes) + 2 * found.slot_bytes + 4
    roomy = changed(found, free_bytes=free_bytes, own_bytes=min(found.own_bytes, found.budget_bytes))
    assert decide(roomy, state, max_depth=16).depth >= state.depth


@given(readings(stalled_fraction=0.0, num_new_oom_kills=0, used_slots_bytes=0, num_lent=0), depths)
def test_the_initial_depth_does_not_shrink_when_its_slots_are_filled(found: Readings, max_depth: int) -> None:
    depth = fitting_depth(found, max_depth=max_depth)
    used_bytes = depth * max(1, found.slot_bytes)
    filled = changed(
        found,
        free_bytes=found.free_bytes - used_bytes,
        own_bytes=found.own_bytes + used_bytes,
        used_slots_bytes=used_bytes,
    )
    assert decide(filled, GovernorState(depth=depth), max_depth=max_depth).depth == depth


def simulate(
    others: list[int], *, limit_bytes: int, budget_bytes: int = 64 * GIB, max_depth: int = 8, slots_at: int = 8
) -> list[int]:
    """Return the depth after each check. Others use `others` bytes, and the slots follow the depth one check late."""
    state, num_slots, seen = GovernorState(depth=max_depth), slots_at, []
    for other in others:
        used = num_slots * SLOT
        found = Readings(
            limit_bytes=limit_bytes,
            free_bytes=max(0, limit_bytes - other - used),
            own_bytes=used,
            budget_bytes=budget_bytes,
            used_slots_bytes=used,
            num_lent=0,
            slot_bytes=SLOT,
        )
        num_slots = state.depth
        state = decide(found, state, max_depth=max_depth)
        seen.append(state.depth)
    return seen


@given(st.integers(0, GIB), st.integers(0, 2 * GIB))
def test_the_depth_settles_if_other_processes_use_constant_memory(other: int, budget_bytes: int) -> None:
    seen = simulate([other] * 200, limit_bytes=GIB, budget_bytes=budget_bytes)
    grows = [b > a for a, b in itertools.pairwise(seen) if a != b]
    assert grows == sorted(grows), seen  # it first shrinks, then grows, and never shrinks again
    assert len(set(seen[100:])) == 1


@given(st.integers(0, 500 * MIB))
def test_the_depth_recovers_when_another_process_frees_its_memory(much: int) -> None:
    seen = simulate([0] * 5 + [650 * MIB + much] * 20 + [0] * 60, limit_bytes=GIB)
    assert seen[4] == 8
    assert min(seen) < 8
    assert seen[-1] == 8


def test_repeated_memory_pressure_makes_the_governor_grow_less_often() -> None:
    seen = simulate(([GIB // 2 + 4 * SLOT] * 8 + [0] * 8) * 100, limit_bytes=GIB)
    grown = [i for i, (a, b) in enumerate(itertools.pairwise(seen)) if b > a]
    assert len([check for check in grown if check < 200]) > len([check for check in grown if check > 1400])


def test_slots_that_will_become_free_anyway_are_not_requested_twice() -> None:
    def found(free_bytes: int) -> Readings:
        return Readings(
            limit_bytes=4 * GIB,
            free_bytes=free_bytes,
            own_bytes=0,
            budget_bytes=GIB,
            used_slots_bytes=8 * SLOT,
            num_lent=0,
            slot_bytes=SLOT,
        )

    short = found(reserve_bytes(4 * GIB, SLOT) - 3 * SLOT)
    once = decide(short, GovernorState(depth=8), max_depth=8)
    assert once.depth == 5
    assert decide(short, once, max_depth=8).depth == 5
    assert decide(found(0), once, max_depth=8).depth < 5


class Ring:
    def __init__(self) -> None:
        self.used_bytes = 6 * SLOT
        self.num_lent = 1
        self.num_drops = 0

    def drop_free_memory(self) -> None:
        self.num_drops += 1
        self.used_bytes = 2 * SLOT


class Pool:
    def __init__(self) -> None:
        self.depth = 6
        self.ring = Ring()
        self.pids: dict[str, int] = {}


def test_the_governor_checks_once_a_second_warns_once_and_frees_memory() -> None:
    pool, now, num_reads, free_bytes = Pool(), 0.0, 0, GIB

    def read() -> MemoryRoom:
        nonlocal num_reads
        num_reads += 1
        return MemoryRoom(limit_bytes=GIB, free_bytes=free_bytes, stalled_seconds=0, num_oom_kills=0)

    governor = Governor(pool, budget_bytes=GIB, slot_bytes=SLOT, read_memory=read, monotonic=lambda: now)
    for _ in range(100):
        now += 0.05
        governor.check()
    assert num_reads <= 6
    assert pool.depth == 6
    free_bytes = 30 * MIB
    now += 1
    with pytest.warns(MploadWarning, match=r"memory is short: 30.0 MiB of 1.0 GiB are left, .* instead of 6") as said:
        governor.check()
    assert len(said) == 1
    assert pool.depth < 6
    assert pool.ring.num_drops == 1
    free_bytes = 0
    for _ in range(5):
        now += 1
        governor.check()  # a second warning would be an error
    assert pool.depth == 1
    free_bytes = GIB
    for _ in range(100):
        now += 1
        governor.check()
    assert pool.depth == 6


def test_the_warning_names_the_budget_if_that_is_what_lets_no_more_batches_fit() -> None:
    pool = Pool()
    pool.ring.used_bytes = 6 * SLOT
    with pytest.warns(MploadWarning, match=r"and its memory_budget is .*To avoid this, raise memory_budget"):
        Governor(
            pool,
            budget_bytes=6 * SLOT + SLOT // 2,
            slot_bytes=SLOT,
            read_memory=lambda: MemoryRoom(
                limit_bytes=24 * GIB, free_bytes=18 * GIB, stalled_seconds=0, num_oom_kills=0
            ),
            monotonic=lambda: 0.0,
        )


def room(free_bytes: int) -> MemoryRoom:
    return MemoryRoom(limit_bytes=4 * GIB, free_bytes=free_bytes, stalled_seconds=0, num_oom_kills=0)


@pytest.mark.parametrize("slot_bytes", [SLOT, None])
def test_more_workers_get_more_batches_ahead_at_once_if_these_fit(slot_bytes: int | None) -> None:
    pool, free_bytes = Pool(), 2 * GIB
    pool.ring.used_bytes = 7 * SLOT
    governor = Governor(
        pool, budget_bytes=2 * GIB, slot_bytes=slot_bytes, first_depth=6, read_memory=lambda: room(free_bytes)
    )
    assert pool.depth == 6
    governor.resize(40)
    assert pool.depth == 40
    governor.resize(4)
    assert pool.depth == 4
    assert pool.ring.num_drops == 1
    pool.ring.used_bytes = 5 * SLOT
    free_bytes = 10 * SLOT + reserve_bytes(4 * GIB, SLOT)
    governor.resize(40)
    assert pool.depth == 14  # those of the four in flight, and ten more


@pytest.mark.parametrize(
    ("slot_bytes", "num_ahead"), [(MIB, 67), (10 * MIB, 25), (36 * MIB, 7), (300 * MIB, 7)], ids=str
)
def test_batches_ahead_take_a_bounded_number_of_bytes_but_keep_workers_busy(slot_bytes: int, num_ahead: int) -> None:
    pool, now = Pool(), 0.0
    pool.depth = 67
    pool.ring.used_bytes = 3 * slot_bytes

    def read() -> MemoryRoom:
        return MemoryRoom(limit_bytes=512 * GIB, free_bytes=400 * GIB, stalled_seconds=0, num_oom_kills=0)

    governor = Governor(
        pool, budget_bytes=200 * GIB, slot_bytes=slot_bytes, least_depth=7, read_memory=read, monotonic=lambda: now
    )
    for _ in range(300):
        now += 1
        pool.ring.used_bytes = pool.depth * slot_bytes
        governor.check()  # a warning would be an error
    assert pool.depth == num_ahead
    governor.resize(131, least_depth=11)
    assert pool.depth == (131 if slot_bytes == MIB else max(num_ahead, 11))


def test_workers_are_affordable_while_memory_and_budget_have_room_for_them() -> None:
    pool, free_bytes = Pool(), GIB
    pool.pids = {"zygote": 0, "a": 0, "b": 0}
    pool.ring.used_bytes = 0
    governor = Governor(pool, budget_bytes=GIB, slot_bytes=SLOT, read_memory=lambda: room(free_bytes))
    free_bytes = 0
    assert governor.num_affordable_workers() == 2  # those that there are
    free_bytes = reserve_bytes(4 * GIB, SLOT) + 5 * WORKER_BYTES
    assert governor.num_affordable_workers() == 7
    free_bytes = 4 * GIB
    assert governor.num_affordable_workers() == 2 + GIB // WORKER_BYTES


@pytest.fixture
def container() -> Iterator[Container]:
    with memory_container(700 * MIB) as made:
        if made is None:
            pytest.skip("no control group with a memory limit can be made here (needs Linux and root)")
        yield made


def run(container: Container, program: str, *words: str) -> dict[str, Any]:
    join = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(container.procs)]
    done = subprocess.run(
        [*join, sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0
    result: dict[str, Any] = json.loads(done.stdout)
    return result


SHORT = """
import json, sys, time, warnings
from mpload import MPDataset, MPLoader, Topology
from mpload.memory.budget import WORKER_BYTES
from mpload.memory.machine import MemoryGauge
from mpload.units import MIB
from tests.support.decoders import large_number
from tests.support.transport_works import wait_until
dataset = MPDataset(sys.argv[1], decode=large_number, batch_size=8, seed=3, shuffle=True, topology=Topology())
with warnings.catch_warnings(record=True) as said, MPLoader(dataset, num_workers=1, memory_budget="300MiB") as loader:
    warnings.simplefilter("always")
    gauge, ring, held, ids, depths = MemoryGauge(), loader._pool.ring, [], [], []
    for number, (values, labels) in enumerate(loader):
        assert (values[:, -1] == labels).all()
        ids.append(labels.tolist())
        del values, labels
        time.sleep(0.04)  # a training step
        depths.append(loader._pool.depth)
        if 35 < number < 90:  # the training itself takes memory
            # The workers must first fill the slots, whose memory would otherwise seem free.
            assert wait_until(lambda: ring.used_bytes >= (loader._pool.depth - 1) * 8 * 2 * MIB)
            free = gauge.read().free_bytes
            if free > 54 * MIB:
                held.append(bytearray(b"x") * min(10 * MIB, free - 50 * MIB))
        elif number == 110:
            held.clear()
    deaths = loader.stats().num_deaths
print(json.dumps({"ids": ids, "depths": depths, "said": [str(each.message) for each in said], "deaths": deaths}))
"""


@pytest.mark.slow
def test_a_loader_shrinks_before_the_kernel_kills_it_and_recovers(container: Container, tmp_path: Path) -> None:
    from mpload import MPDataset, Topology
    from tests.support.decoders import number_in

    path = numbers_index(tmp_path, 2000)
    found = run(container, SHORT, str(path))
    alone = MPDataset(path, decode=number_in, batch_size=8, seed=3, shuffle=True, topology=Topology())
    assert found["ids"] == [labels.tolist() for _, labels in alone]
    depths = found["depths"]
    lowest = min(depths[35:])
    assert lowest < depths[35]
    assert depths[-1] > lowest
    assert len([text for text in found["said"] if "memory is short" in text]) == 1, found["said"]
    assert container.num_oom_kills == found["deaths"] == 0


KILLED = """
import json, os, sys
from mpload import ErrorPolicy, MPDataset, MPLoader, Topology
import warnings; warnings.simplefilter("ignore")
from tests.support.decoders import greedy_number
policy = ErrorPolicy(action="skip", report=sys.argv[2])
dataset = MPDataset(
    sys.argv[1], decode=greedy_number, batch_size=8, shuffle=False, topology=Topology(), on_error=policy
)
with MPLoader(dataset, num_workers=1) as loader:
    ids = [label for _, labels in loader for label in labels.tolist()]
    print(json.dumps({"ids": ids, "deaths": loader.stats().num_deaths}))
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_worker_killed_for_lack_of_memory_is_replaced_and_the_cause_is_reported(
    container: Container, tmp_path: Path
) -> None:
    report = tmp_path / "report.jsonl"
    found = run(container, KILLED, str(numbers_index(tmp_path, 40)), str(report))
    assert found["ids"] == [number for number in range(40) if number != 13]
    assert container.num_oom_kills == found["deaths"] >= 2
    assert "out of memory" in report.read_text()


@pytest.mark.slow
def test_a_loader_stays_within_its_budget_in_a_small_container() -> None:
    """The same over ten million samples and 2,000 batches: `python benchmarks/bench_budget.py`."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "bench_budget.py"
    done = subprocess.run(
        [sys.executable, str(benchmark), "--quick"], capture_output=True, text=True, timeout=110, check=False
    )
    if "no control group" in done.stderr:
        pytest.skip("no control group with a memory limit can be made here (needs Linux and root)")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["peak_loader_bytes"] <= found["budget_bytes"] == 400 * MIB
    assert (found["num_batches"], found["num_workers"]) == (20, 8)
    assert found["num_oom_kills"] == found["num_deaths"] == 0
