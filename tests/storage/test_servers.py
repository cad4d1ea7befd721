"""Repetitions of a request: when they are made, when they end, and what is to blame. Pure arithmetic with times."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpload.errors import OutageError
from mpload.storage.object_facts import ObjectFacts
from mpload.storage.request_failure import RequestFailure, status_failure
from mpload.storage.retrying import RetryingClient
from mpload.storage.servers import Attempts, Limits, Server

LIMITS = Limits(connect_seconds=10.0, request_seconds=30.0, retry_seconds=90.0)
LIMITS_SHORT = Limits(connect_seconds=0.1, request_seconds=0.3, retry_seconds=1.0)
RESET = RequestFailure("connection reset")
REFUSED = RequestFailure("connection refused")


def fail(attempts: Attempts, at: float, *, took: float = 0.01, failure: RequestFailure = RESET) -> None:
    attempts.server.failed(failure, began=at - took, now=at)
    attempts.failed(failure, now=at)


@given(
    limits=st.tuples(st.floats(0.01, 60), st.floats(1.01, 20)),
    durations=st.lists(st.floats(0, 1), min_size=1, max_size=50),
)
def test_attempts_end_at_the_limit_and_never_after_it(limits: tuple[float, float], durations: list[float]) -> None:
    """`durations` are shares of the time that an attempt may take."""
    request_seconds, factor = limits
    times = Limits(connect_seconds=1.0, request_seconds=request_seconds, retry_seconds=request_seconds * factor)
    server, now, count = Server(), 0.0, 0
    attempts = Attempts.begin(times, server, now=now)
    while True:
        now += attempts.limit_seconds(now) * durations[count % len(durations)]
        count += 1
        fail(attempts, now)
        wait = attempts.wait_seconds(now)
        if wait is None or count > 1000:
            break
        assert wait >= 0
        now += wait
    assert now <= times.retry_seconds * 1.01
    assert count > 1000 or now >= times.retry_seconds - 1.125 * request_seconds
    assert attempts.is_outage


@given(
    limits=st.tuples(st.floats(0.1, 60), st.floats(1.01, 20)),
    durations=st.lists(st.floats(0, 1), min_size=1, max_size=50),
    answered=st.floats(0, 1),
    others=st.lists(st.booleans(), min_size=1, max_size=50),
)
@example(limits=(10.0, 1.01), durations=[1.0], answered=1.0, others=[True])
def test_a_read_whose_first_request_was_made_elsewhere_ends_in_time(
    limits: tuple[float, float], durations: list[float], answered: float, others: list[bool]
) -> None:
    """That request takes its whole time. Others are answered until a share of it is over, and now and then later."""
    request_seconds, factor = limits
    times = Limits(connect_seconds=1.0, request_seconds=request_seconds, retry_seconds=request_seconds * factor)
    server, now, count = Server(), request_seconds, 0
    server.answered(answered * request_seconds)
    server.failed(RESET, began=0.0, now=now)
    attempts = Attempts.begin(times, server, now=0.0)
    while (wait := attempts.wait_seconds(now) if count else 0.0) is not None and count < 1000:
        now += wait
        now += attempts.limit_seconds(now) * durations[count % len(durations)]
        fail(attempts, now)
        if others[count % len(others)]:
            server.answered(now + 1e-6)
        count += 1
    assert count == 1000 or now <= 1.2 * times.retry_seconds + 1e-3


def test_an_object_is_to_blame_if_it_fails_six_times_while_others_are_read() -> None:
    server = Server()
    attempts = Attempts.begin(LIMITS, server, now=0.0)
    for number in range(7):
        assert attempts.last is None or attempts.wait_seconds(number) is not None
        fail(attempts, number + 0.1)
        server.answered(number + 0.2)
    assert attempts.wait_seconds(7.0) is None
    assert not attempts.is_outage


def test_an_object_that_took_all_of_the_time_is_tried_once_more_if_the_server_answers() -> None:
    """It is not to blame before it has failed while the server answers, since an outage may just have ended."""
    server = Server()
    attempts = Attempts.begin(LIMITS, server, now=0.0)
    fail(attempts, 89.0, took=89.0)
    server.answered(89.1)
    assert attempts.wait_seconds(89.2) == 0.0
    assert attempts.limit_seconds(89.2) < 9.0
    fail(attempts, 95.0)
    server.answered(95.1)
    assert attempts.wait_seconds(95.2) is None
    assert not attempts.is_outage


def test_a_server_that_is_overloaded_is_asked_again_until_the_limit() -> None:
    server = Server()
    attempts = Attempts.begin(LIMITS, server, now=0.0)
    for number in range(20):
        fail(attempts, number + 0.1, failure=status_failure(503))
        server.answered(number + 0.2)
        assert attempts.wait_seconds(number + 0.2) is not None


def test_an_answer_that_was_under_way_when_an_outage_began_does_not_make_an_object_bad() -> None:
    server = Server()
    attempts = Attempts.begin(LIMITS, server, now=0.0)
    fail(attempts, 1.0)
    server.answered(1.1)
    for at in (2.0, 20.0, 80.0):
        fail(attempts, at)
    assert attempts.num_blames == 1
    assert attempts.is_outage


@pytest.mark.parametrize("num_resets", [0, 1, 3])
def test_an_object_is_not_to_blame_if_no_connection_can_be_made(num_resets: int) -> None:
    """A server that shuts down answers over the connections that it has."""
    server = Server()
    attempts = Attempts.begin(LIMITS, server, now=0.0)
    for number in range(20):
        fail(attempts, number + 0.1, failure=RESET if number < num_resets else REFUSED)
        server.answered(number + 0.2)
        assert attempts.wait_seconds(number + 0.2) is not None
    assert attempts.is_outage


def test_reads_that_meet_the_same_outage_end_together_and_an_old_failure_is_no_outage() -> None:
    server = Server()
    first = Attempts.begin(LIMITS, server, now=0.0)
    fail(first, 1.0, took=1.0)
    assert Attempts.begin(LIMITS, server, now=20.0).deadline == first.deadline == 90.0
    assert Attempts.begin(LIMITS, server, now=300.0).deadline == 390.0
    server.answered(301.0)
    assert Attempts.begin(LIMITS, server, now=302.0).deadline == 392.0


def test_an_outage_that_has_lasted_too_long_gets_a_tenth_of_the_time_again() -> None:
    server = Server()
    first = Attempts.begin(LIMITS, server, now=0.0)
    fail(first, 1.0, took=1.0)
    fail(first, 89.0)
    assert Attempts.begin(LIMITS, server, now=95.0).deadline == 104.0


@pytest.mark.parametrize("status", [400, 401, 404, 416, 501])
def test_a_refusal_is_final(status: int) -> None:
    server = Server()
    attempts = Attempts.begin(LIMITS, server, now=0.0)
    attempts.failed(status_failure(status), now=1.0)
    assert attempts.wait_seconds(1.0) is None
    assert not attempts.is_outage


def test_an_attempt_that_was_cut_short_does_not_hide_the_cause() -> None:
    unresolved, late = RequestFailure("name not resolved"), RequestFailure("no answer in time")
    attempts = Attempts.begin(LIMITS_SHORT, Server(), now=0.0)
    attempts.failed(late, now=0.3, seconds=0.3, limit_seconds=0.3)
    assert attempts.cause is late, "it had all of the time of a request"
    attempts.failed(unresolved, now=0.9, seconds=0.01, limit_seconds=attempts.limit_seconds(0.9))
    assert attempts.cause is unresolved, "it failed before its limit"
    short = attempts.limit_seconds(0.95)
    attempts.failed(late, now=0.99, seconds=short, limit_seconds=short)
    assert attempts.last is late
    assert attempts.cause is unresolved
    assert attempts.described(1.0) == "3 attempts in 1 s (2 x no answer in time, 1 x name not resolved)"
    only = Attempts.begin(LIMITS_SHORT, Server(), now=0.0)
    only.failed(late, now=0.1, seconds=0.1, limit_seconds=0.1)
    assert only.cause is late, "there is no other"


class _Unresolving:
    """A client whose lookups of a name fail at once, or take too long when they have less time than usual."""

    def fetch(self, url: str, key: str, span: tuple[int, int] | None, *, limit_seconds: float) -> bytes:
        if limit_seconds == LIMITS_SHORT.request_seconds:
            raise RequestFailure("name not resolved")
        time.sleep(limit_seconds)
        raise RequestFailure("no answer in time")

    def look_up(self, url: str, key: str, *, limit_seconds: float) -> ObjectFacts:
        raise AssertionError("not asked for")


def test_an_outage_names_the_cause_that_the_last_attempts_had_no_time_to_find() -> None:
    client = RetryingClient(_Unresolving(), "http://no-such-host.invalid", LIMITS_SHORT)
    with pytest.raises(OutageError, match=r"^name not resolved \(\d+ attempts in .*no answer in time\)"):
        client.fetch("x", None)
