"""Answers of workers survive encoding and fit into a message, whatever their failures say."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import DecodeError
from mpload.transport.messages import MAX_COUNTS, Answer, Failure, Tally, cause_of, details_of

VALUES = st.none() | st.integers() | st.text(max_size=9)
DETAILS = st.dictionaries(st.just("error") | st.text(max_size=9), VALUES | st.lists(VALUES, max_size=4), max_size=3)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.text(max_size=50), DETAILS), max_size=16),
    st.dictionaries(st.integers(0, 1 << 40), st.integers(0, 1 << 60), max_size=9),
)
def test_answers_survive_encoding(failures: list[tuple[int, str, dict[str, Any]]], numbered: dict[int, int]) -> None:
    answer = Answer(
        worker=3,
        serial=1 << 60,
        tally=Tally(num_samples=1, busy_ns=2, counts=list(range(3, 3 + MAX_COUNTS)), numbered=numbered),
        failures=tuple(Failure(sample=s, cause=c, details=d) for s, c, d in failures),
    )
    assert Answer.decode(answer.encode()) == answer


def test_an_answer_fits_a_message_whatever_its_failures_say() -> None:
    failures = tuple(Failure(sample=n, cause="\U0001f600" * 10**6, details={"x": "y" * 10**6}) for n in range(64))
    tally = Tally(numbered=dict.fromkeys(range(4000), 1))
    assert len(Answer(worker=0, serial=1, tally=tally, failures=failures).encode()) <= 200_000


def test_samples_that_fail_alike_all_keep_their_causes() -> None:
    failures = tuple(
        Failure(sample=n, cause=f"{n}: " + "as the others do " * 20, details={"traceback": f"line {n}\n" * 100})
        for n in range(256)
    )
    answer = Answer(worker=0, serial=1, failures=failures)
    message = answer.encode()
    assert len(message) < 200_000
    assert Answer.decode(message) == answer


@given(
    st.lists(st.text(st.sampled_from("x\U0001f600"), max_size=3), min_size=1, max_size=3),
    st.integers(0, 5000),
    st.integers(1, 8),
)
def test_an_error_keeps_its_class_however_long_its_text_is(texts: list[str], times: int, num_failures: int) -> None:
    error = UnicodeError(*[text * times for text in texts], 7)
    details = details_of(error)
    failures = tuple(Failure(sample=n, cause=cause_of(error), details=details) for n in range(num_failures))
    message = Answer(worker=0, serial=1, failures=failures).encode()
    assert len(message) <= 200_000
    for failure in Answer.decode(message).failures:
        assert failure.kind is UnicodeError
        assert failure.arguments is not None
        assert failure.arguments[-1] == 7
        if sum(map(len, texts)) * times < 200:
            assert tuple(failure.arguments) == error.args


def test_the_details_of_a_handled_failure_stay_beside_a_long_error() -> None:
    details = {**details_of(ValueError("x" * 10**6)), "handled": True, "bad": [[7, "7", "ValueError"]]}
    (failure,) = Answer.decode(
        Answer(worker=0, serial=1, failures=(Failure(sample=0, cause="x" * 10**6, details=details),)).encode()
    ).failures
    assert failure.kind is ValueError
    assert (failure.details["handled"], failure.details["bad"]) == (True, [[7, "7", "ValueError"]])


def test_a_cause_names_the_type_of_errors_that_are_not_ours() -> None:
    assert cause_of(ValueError("no")) == "ValueError: no"
    assert cause_of(DecodeError("no JPEG")) == "no JPEG"
