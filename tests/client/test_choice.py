"""Which server is asked next: a function of what they did, and of the time."""

from hypothesis import given
from hypothesis import strategies as st

from mpload.client.choice import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, Choice

_ACTIONS = st.lists(st.tuples(st.sampled_from(["pick", "answer", "fail", "busy", "wait"]), st.integers(0, 9)))


def _choice(num_servers: int, *, first: int = 0) -> Choice:
    return Choice(num_servers, first=first, jitter=lambda: 0.0)


@given(num_servers=st.integers(1, 5), first=st.integers(0, 9), num_requests=st.integers(1, 30))
def test_healthy_servers_owe_equally_many_answers(num_servers: int, first: int, num_requests: int) -> None:
    choice = _choice(num_servers, first=first)
    picked = [choice.pick(0.0) for _ in range(num_requests)]
    counts = [picked.count(number) for number in range(num_servers)]
    assert max(counts) - min(counts) <= 1
    assert picked[0] == first % num_servers


def test_server_that_answers_more_slowly_is_asked_less_often() -> None:
    choice = _choice(2)
    slow, fast = choice.pick(0.0), choice.pick(0.0)
    assert (slow, fast) == (0, 1)
    for _ in range(5):
        choice.end(1)
        assert choice.pick(0.0) == 1


def test_servers_that_owe_nothing_take_turns() -> None:
    choice = _choice(3)
    picked = []
    for _ in range(6):
        number = choice.pick(0.0)
        assert number is not None
        picked.append(number)
        choice.end(number)
    assert picked == [0, 1, 2, 0, 1, 2]


def test_pauses_of_a_failing_server_grow_and_end() -> None:
    choice, now, pauses = _choice(1), 0.0, list[float]()
    for _ in range(10):
        assert choice.pick(now) == 0
        if pauses:
            assert choice.pick(now) is None  # one request shows whether it is back
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
    assert [choice.pick(1.0), choice.pick(1.0)] == [1, 1]
    assert not choice.answered(0)
    choice.busy(0, 0.0, 1e9)
    assert choice.seconds_until_ready(0.0) == 0.0
    choice.busy(1, 0.0, 1e9)
    assert choice.seconds_until_ready(0.0) == LONGEST_PAUSE_SECONDS


@given(num_servers=st.integers(1, 3), actions=_ACTIONS)
def test_some_server_can_be_asked_within_the_longest_pause(num_servers: int, actions: list[tuple[str, int]]) -> None:
    choice, now, asked = Choice(num_servers, first=0, jitter=lambda: 0.999), 0.0, list[int]()
    for action, amount in actions:
        if action == "pick":
            number = choice.pick(now, without=[amount])
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
    assert choice.pick(now + seconds) is not None
