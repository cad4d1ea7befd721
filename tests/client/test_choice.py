"""Which server is asked next: a function of what they did, and of the time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.client.choice import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, Choice, Nearest
from mpload.plan.topology import Topology

_ACTIONS = st.lists(st.tuples(st.sampled_from(["pick", "answer", "fail", "busy", "wait"]), st.integers(0, 9)))


def _choice(num_servers: int, *, num_few: int | None = None) -> Choice:
    choice = Choice(num_servers, jitter=lambda: 0.0)
    choice.nearest = Nearest(order=tuple(range(num_servers)), num_few=num_few or num_servers)
    return choice


def _urls(num_servers: int) -> list[str]:
    return [f"http://node{number}:8000" for number in range(num_servers)]


@given(num_servers=st.integers(1, 5), first=st.integers(0, 9), num_requests=st.integers(1, 30))
def test_servers_take_turns(num_servers: int, first: int, num_requests: int) -> None:
    choice = _choice(num_servers)
    picked = [choice.pick(first + turn, 0.0) for turn in range(num_requests)]
    assert picked == [(first + turn) % num_servers for turn in range(num_requests)]


@given(num_servers=st.integers(1, 5), turns=st.lists(st.integers(0, 99), max_size=30))
def test_no_server_owes_much_more_than_another(num_servers: int, turns: list[int]) -> None:
    choice = _choice(num_servers)
    picked = [choice.pick(turn, 0.0) for turn in turns]
    counts = [picked.count(number) for number in range(num_servers)]
    assert max(counts) - min(counts) <= 2


def test_server_that_answers_more_slowly_is_asked_less_often() -> None:
    choice = _choice(2)
    assert [choice.pick(0, 0.0), choice.pick(0, 0.0)] == [0, 0]
    for turn in range(5):
        assert choice.pick(turn, 0.0) == 1
        choice.end(1)


@given(num_servers=st.integers(1, 40), num_ranks=st.integers(1, 60), servers_per_rank=st.integers(1, 6))
def test_ranks_ask_few_servers_and_equally_many_ranks_ask_each(
    num_servers: int, num_ranks: int, servers_per_rank: int
) -> None:
    urls = _urls(num_servers)
    ranks = [Topology(rank=rank, world_size=num_ranks) for rank in range(num_ranks)]
    nearest = [Nearest.of(urls, rank, servers_per_rank=servers_per_rank) for rank in ranks]
    assert all(sorted(each.order) == list(range(num_servers)) for each in nearest)
    num_few = nearest[0].num_few
    asked = [number for each in nearest for number in each.order[:num_few]]
    counts = [asked.count(number) for number in range(num_servers)]
    assert max(counts) - min(counts) <= 1
    assert min(servers_per_rank, num_servers) <= num_few <= num_servers
    assert min(counts) >= min(servers_per_rank, num_ranks) or num_few == servers_per_rank
    if num_ranks >= num_servers:
        assert num_few == min(servers_per_rank, num_servers)
    backwards = Nearest.of(urls[::-1], ranks[-1], servers_per_rank=servers_per_rank)
    assert [urls[::-1][number] for number in backwards.order] == [urls[number] for number in nearest[-1].order]


def test_load_of_a_failed_server_is_spread_over_all_others() -> None:
    urls, num_ranks = _urls(32), 1000
    ranks = [Topology(rank=rank, world_size=num_ranks) for rank in range(num_ranks)]
    nearest = [Nearest.of(urls, rank, servers_per_rank=4) for rank in ranks]
    stand_ins = [each.order[4] for each in nearest if 7 in each.order[:4]]
    assert len(stand_ins) == num_ranks * 4 / 32
    assert max(stand_ins.count(number) for number in range(32)) < 20  # were it the neighbour, it would be up to 125


def test_next_server_takes_the_place_of_a_failed_one_until_it_is_back() -> None:
    choice = _choice(4, num_few=2)
    assert choice.few(0.0) == [0, 1]
    choice.failed(0, 0.0, "fails")
    assert choice.few(0.0) == [1, 2]
    choice.failed(1, 0.0, "fails")
    assert choice.few(0.0) == [2, 3]
    assert choice.few(0.0, without=[2]) == [3]
    now = 2 * SHORTEST_PAUSE_SECONDS
    assert choice.few(now) == [0, 2, 3]  # one at a time shows whether it is back
    choice.answered(0)
    assert choice.few(now) == [0, 1, 2]
    choice.answered(1)
    assert choice.few(now) == [0, 1]


@pytest.mark.slow
@given(num_servers=st.integers(1, 9), wait_seconds=st.floats(0.0, 8.0))
def test_trials_of_failing_servers_take_a_small_part_of_the_time_and_turns(
    num_servers: int, wait_seconds: float
) -> None:
    choice, now = _choice(num_servers), 0.0
    lost_seconds, trials = 0.0, [0] * num_servers
    for number in range(num_servers):
        choice.failed(number, now, "is silent", seconds=30.0)
    while now < 10_000:
        picked = choice.pick(0, now)
        if picked is None:
            now += 0.5
            continue
        assert choice.pick(1, now) is None
        now += wait_seconds
        lost_seconds += wait_seconds
        trials[picked] += 1
        choice.end(picked)
        choice.failed(picked, now, "is silent", seconds=wait_seconds)
    assert lost_seconds <= 0.051 * now + wait_seconds
    assert min(trials) >= 3
    assert max(trials) - min(trials) <= max(1, 0.1 * min(trials))


def test_failing_servers_are_all_asked_while_nothing_else_can_help() -> None:
    choice = Choice(3, jitter=lambda: 0.0, is_awaited=True)
    for number in range(3):
        choice.failed(number, 0.0, "is silent", seconds=30.0)
    now = choice.seconds_until_ready(0.0)
    assert now == SHORTEST_PAUSE_SECONDS
    assert {choice.pick(0, now) for _ in range(3)} == {0, 1, 2}
    for number in range(3):
        choice.end(number)
    choice.answered(2)
    assert choice.few(now) == [2]
    assert choice.few(30.0) == [0, 2]


def test_second_request_goes_to_another_server_even_if_the_rank_has_only_one() -> None:
    choice = _choice(2, num_few=1)
    assert choice.pick(0, 0.0) == 0
    assert choice.pick(0, 0.0, without=[0]) == 1


def test_pauses_of_a_failing_server_grow_and_end() -> None:
    choice, now, pauses = _choice(1), 0.0, list[float]()
    for _ in range(10):
        assert choice.pick(0, now) == 0
        if pauses:
            assert choice.pick(0, now) is None  # one request shows whether it is back
        choice.failed(0, now, "fails")
        choice.end(0)
        pauses.append(choice.seconds_until_ready(now))
        now += pauses[-1]
    assert pauses[0] == SHORTEST_PAUSE_SECONDS
    assert pauses[1] == 2 * SHORTEST_PAUSE_SECONDS
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    assert choice.answered(0)
    choice.failed(0, now, "fails")
    assert choice.seconds_until_ready(now) == SHORTEST_PAUSE_SECONDS


def test_requests_that_fail_together_are_one_failure() -> None:
    choice = _choice(1)
    assert choice.failed(0, 0.0, "fails")
    assert not choice.failed(0, 0.0, "fails")
    assert choice.seconds_until_ready(0.0) == SHORTEST_PAUSE_SECONDS


def test_busy_server_has_not_failed() -> None:
    choice = _choice(2)
    choice.busy(0, 0.0, 3.0)
    assert [choice.pick(0, 1.0), choice.pick(0, 1.0)] == [1, 1]
    assert not choice.answered(0)
    choice.busy(0, 0.0, 1e9)
    assert choice.seconds_until_ready(0.0) == 0.0
    choice.busy(1, 0.0, 1e9)
    assert choice.seconds_until_ready(0.0) == LONGEST_PAUSE_SECONDS


@given(num_servers=st.integers(1, 3), actions=_ACTIONS)
def test_some_server_can_be_asked_within_the_longest_pause(num_servers: int, actions: list[tuple[str, int]]) -> None:
    choice, now, asked = Choice(num_servers, jitter=lambda: 0.999), 0.0, list[int]()
    for action, amount in actions:
        if action == "pick":
            number = choice.pick(amount, now, without=[amount])
            assert number != amount
            asked += [] if number is None else [number]
        elif action == "wait":
            now += amount
        elif action == "busy":
            choice.busy(amount % num_servers, now, amount)
        elif asked:
            number = asked.pop(amount % len(asked))
            choice.end(number)
            if action == "fail":
                choice.failed(number, now, "fails")
            else:
                choice.answered(number)
    for number in asked:
        choice.end(number)
    seconds = choice.seconds_until_ready(now)
    assert seconds <= 1.5 * LONGEST_PAUSE_SECONDS
    assert choice.pick(0, now + seconds) is not None


def test_only_listed_servers_are_chosen_and_one_that_comes_back_is_as_new() -> None:
    choice = Choice(0, jitter=lambda: 0.0)
    assert choice.pick(0, 0.0) is None
    assert choice.seconds_until_ready(0.0) == math.inf
    choice.use(Nearest(order=(0, 1), num_few=2))
    assert choice.pick(0, 0.0) == 0
    choice.failed(0, 0.0, "fails")
    choice.end(0)
    choice.use(Nearest(order=(1, 2), num_few=2))
    assert {choice.pick(turn, 0.0) for turn in range(4)} == {1, 2}
    choice.use(Nearest(order=(0,), num_few=1))
    assert choice.pick(0, 0.0) == 0
    choice.use(Nearest(order=(), num_few=0))
    assert choice.pick(0, 0.0) is None
