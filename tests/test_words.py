"""Tests of mpload/units.py and mpload/errors.py, which every package uses."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import errors
from mpload.errors import ArgumentError, MploadError
from mpload.units import GIB, MIB, format_bytes, format_count, format_counted, format_seconds, parse_bytes

ERRORS = [
    getattr(errors, name)
    for name in errors.__all__
    if issubclass(getattr(errors, name), MploadError) and name != "MploadError"
]


@given(st.integers(0, 1 << 50))
def test_parsing_a_formatted_size_gives_nearly_the_same_size(num_bytes: int) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.06)
    assert parse_bytes(str(num_bytes)) == parse_bytes(num_bytes) == num_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("4GiB", 4 * GIB), (" 1.5 MiB ", MIB * 3 // 2), ("2k", 2000), ("3 GB", 3 * 10**9)]
)
def test_sizes_are_parsed_as_people_write_them(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 GiBi", "4x", "1e9", -1])
def test_a_text_that_is_not_a_size_is_refused(text: str | int) -> None:
    with pytest.raises(ArgumentError, match=r"is not a size in bytes\. Write|must not be negative"):
        parse_bytes(text)


def test_counts_and_durations_are_formatted_for_people() -> None:
    assert format_count(1281167) == "1,281,167"
    assert [format_counted(count, "sample") for count in (0, 1, 1024)] == ["0 samples", "1 sample", "1,024 samples"]
    assert [format_counted(2, noun) for noun in ("batch", "class", "index")] == ["2 batches", "2 classes", "2 indexes"]
    assert [format_seconds(s) for s in (0.34, 12.34, 250, 7260)] == ["340 ms", "12.3 s", "4 min 10 s", "2 h 1 min"]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_also_a_builtin_one_and_survives_pickling(error: type[MploadError]) -> None:
    made = error("train.txt:17: what, value, rule, next step")
    builtins = {base for base in error.__mro__ if base.__module__ == "builtins"}
    assert builtins - {object, BaseException, Exception}
    copy = pickle.loads(pickle.dumps(made))
    assert type(copy) is error
    assert str(copy) == str(made)
