"""Conditions on columns mean what they mean in Python, and nothing but conditions is accepted."""

import operator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import ArgumentError, Index, open_index
from mpload.index import blocks
from mpload.index.columns import parse_columns
from mpload.index.exact import compared
from mpload.index.text import format_header, format_line
from mpload.index.where import parse_condition
from tests.support.conditions import CLASSES, COLUMNS, ROWS, conditions


def holds(index: Index, text: str) -> list[bool]:
    condition = parse_condition(text, index)
    return [bool(each) for block in blocks.blocks_of(index) for each in condition(block)]


def outcome(index: Index, text: str) -> tuple[str, list[bool]]:
    """Return why a condition is refused, and for which samples it holds if it is not."""
    try:
        return "", holds(index, text)
    except ArgumentError as error:
        return str(error), []


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("where") / "train.txt"
    header = format_header(columns=parse_columns(COLUMNS), classes=CLASSES)
    path.write_bytes(header + b"".join(map(format_line, ROWS)))
    return open_index(path)


@given(text=conditions)
@settings(max_examples=150)
def test_a_condition_holds_for_the_samples_for_which_python_says_so(index: Index, text: str) -> None:
    names = [column.name for column in index.columns]
    expected = [bool(eval(text, {}, dict(zip(names, row, strict=True)))) for row in ROWS]
    refusal, found = outcome(index, text)
    assert found == expected or "does not fit into 64 bits" in refusal, (text, refusal)


@given(text=conditions)
@settings(max_examples=50)
def test_a_condition_does_not_depend_on_how_the_index_is_cut_into_blocks(index: Index, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = parse_condition(text, index)
        with suppress(ArgumentError):  # results that are too large
            expected = [bool(each) for block in blocks.blocks_of(index) for each in whole(block)]
            patch.setattr(blocks, "_BLOCK_ROWS", 3)
            assert holds(index, text) == expected


TEXT = "label name ( ) [ ] . == < in not and 1 'x' , : = * - lambda if else for x await f'{x}' ... startswith"


@given(text=st.text(max_size=60) | st.lists(st.sampled_from(TEXT.split())).map(" ".join))
@settings(max_examples=200)
def test_any_text_is_a_condition_or_refused(index: Index, text: str) -> None:
    refusal, found = outcome(index, text)
    assert len(found) == len(ROWS) or refusal.startswith("where ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("label ==", "it cannot be parsed"),
        ("label = 3", "it cannot be parsed"),
        ("lable == 3", "has no column lable. Do you mean label?"),
        ("nothing == 3", "has no column nothing. Its columns are image:path label:int"),
        ("nbytes > 3", "sizes were not measured. Measure them: mpload index"),
        ("label", "label is a number, not true or false. Compare it: label != 0"),
        ("name", 'name is a text, not true or false. Compare it: name != ""'),
        ("label == name", "label is a number, but name is a text"),
        ("width == '3'", "width is a number, but '3' is a text"),
        ("label == 'catt'", "has no class 'catt'. Do you mean 'cat'?"),
        ("label < 'cat'", "label is a number, but 'cat' is a text"),
        ("name + name == 'x'", "name is a text, but arithmetic needs numbers"),
        ("label == 9223372036854775808", "9223372036854775808 does not fit into 64 bits"),
        ("label in [width]", "width is not a constant"),
        ("label in name", "label in name is not a search"),
        ("name.upper() == 'X'", r"name.upper() (Call) is not allowed"),
        ("name.startswith(name)", "is not a search in a text"),
        ("__import__('os').system('touch broken')", "is not allowed. Use columns, numbers, texts"),
        ("(lambda: True)()", "is not allowed"),
        ("[x for x in (1, 2)] == label", "is not allowed"),
        ("label.real == 1", "label.real (Attribute) is not allowed"),
        ("label ** 99 == 1", "label ** 99 (BinOp) is not allowed"),
        ("label if label else label", "is not allowed"),
        ("(label == 1) == (label == 2)", "are true or false, not values. Join them by and, or, not"),
        ("label is 1", "(Is) is not allowed"),
        ("True", "True (Constant) is not allowed"),
        ("label == b'x'", "b'x' (Constant) is not allowed"),
        ("label == 1j", "1j (Constant) is not allowed"),
        ("(" * 300 + "label == 1" + ")" * 300, "where"),
        ("not " * 5000 + "label == 1", "where"),
        ("label == " + "-" * 50_000 + "1", "where"),
        ("label == 1 or " * 10_000 + "label == 2", "it has 140010 characters"),
        ("label == 1\0", "it cannot be parsed"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_next_step(
    index: Index, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError) as refused:
        holds(index, text)
    assert message in str(refused.value)
    assert str(refused.value).startswith("where ")
    assert not list(tmp_path.iterdir())


def test_labels_may_be_compared_with_the_names_of_classes(index: Index) -> None:
    assert holds(index, "label == 'dog'") == holds(index, "label == 1")
    assert holds(index, "label in ('dog', 2)") == holds(index, "label in (1, 2)")
    assert holds(index, "'dog' != label") == holds(index, "1 != label")


def test_division_by_zero_is_no_error(index: Index) -> None:
    zero = [row[1] == 0 for row in ROWS]
    assert any(zero)
    assert holds(index, "label != 0 and 6 / label >= 3") == [label != 0 and 6 / label >= 3 for label in labels()]
    assert holds(index, "label != 0 and 6 % label == 0") == [label != 0 and 6 % label == 0 for label in labels()]
    assert holds(index, "label != 0 and 6 // label == 2") == [label != 0 and 6 // label == 2 for label in labels()]


@pytest.mark.parametrize("operation", ["%", "//"])
def test_large_integers_stay_exact_beside_a_division_by_zero_or_are_refused(tmp_path: Path, operation: str) -> None:
    def held(lines: list[tuple[int, int]], text: str) -> list[bool]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
        path.write_text("#mpload 1\n#columns id:int parts:int\n" + "".join(f"{a}\t{b}\n" for a, b in lines))
        return holds(open_index(path), text)

    small, large = (1 << 53) - 1, (1 << 53) + 1
    result = {"%": small % 10, "//": small // 10}[operation]
    assert held([(small, 10), (5, 0)], f"id {operation} parts == {result}") == [True, False]
    result = {"%": large % 10, "//": large // 10}[operation]
    assert held([(large, 10)], f"id {operation} parts == {result}") == [True]
    for lines in ([(large, 10), (5, 0)], [(5, 0), (7, -large)]):
        with pytest.raises(ArgumentError, match=r"a divisor is 0, and integers exceed 2\*\*53"):
            held(lines, f"id {operation} parts == {result}")
    for text in (f"(parts {operation} 3) + id == {large}", f"id - (parts {operation} 3) in [{large}]"):
        assert held([(large, 3)], text) == [operation == "%"]
        with pytest.raises(ArgumentError, match=r"a divisor is 0, and integers exceed 2\*\*53"):
            held([(large, 3), (0, 0)], text.replace(" 3)", " parts)"))
    assert held([(6, 3), (5, 0)], f"(id {operation} parts) * 10 + 1 == {'1' if operation == '%' else '21'}") == [
        True,
        False,
    ]
    assert held([(6, 3), (5, 0)], f"(id {operation} parts) / 4 in [0, 0.5]") == [True, False]
    assert held([(6, 3), (5, 0)], f"-(id {operation} parts) <= 0.5") == [True, operation == "//"]


def labels() -> list[Any]:
    return [row[1] for row in ROWS]


def test_integers_that_do_not_fit_are_refused_and_not_wrapped(index: Index) -> None:
    with pytest.raises(ArgumentError, match="a result does not fit into 64 bits"):
        holds(index, "label * 9223372036854775807 > 0")
    assert holds(index, "label * 1.0 * 9223372036854775807 >= 0") == [label >= 0 for label in labels()]


def test_sizes_that_were_measured_may_be_used(tmp_path: Path) -> None:
    from mpload import build_index

    (tmp_path / "c").mkdir()
    for number in range(5):
        (tmp_path / "c" / f"{number}.jpg").write_bytes(bytes(100 + number))
    index = open_index(build_index(tmp_path / "c", tmp_path / "train.txt", with_sizes=True))
    assert holds(index, "nbytes >= 103") == [False, False, False, True, True]


@pytest.mark.parametrize("name", ["list.txt", "list.csv", "tabs.txt"])
def test_plain_lists_have_columns_too(tmp_path: Path, name: str) -> None:
    separator = {"list.txt": " ", "list.csv": ",", "tabs.txt": "\t"}[name]
    (tmp_path / name).write_bytes(b"".join(b"a/%d.jpg%b%d\r\n" % (n, separator.encode(), n % 3) for n in range(9)))
    index = open_index(tmp_path / name)
    assert holds(index, "label == 1 and image.startswith('a/')") == [n % 3 == 1 for n in range(9)]
    assert holds(index, "image == 'a/5.jpg'") == [n == 5 for n in range(9)]


def test_large_integers_stay_exact(tmp_path: Path) -> None:
    values = [2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
    path = tmp_path / "x.txt"
    path.write_bytes(format_header(columns=parse_columns("n:int")) + b"".join(b"%d\n" % value for value in values))
    index = open_index(path)
    assert holds(index, f"n == {2**53 + 1}") == [False, True, False, False]
    assert holds(index, f"n in [{2**53 + 1}, {2**53 + 1}.0, 1e300]") == [True, True, False, False]
    assert holds(index, f"n >= {2**63 - 1}") == [False, False, True, False]
    assert np.array_equal(holds(index, "n in []"), [False] * 4)


_EDGES = [0, 1, -1, 1 << 53, (1 << 53) + 1, -(1 << 53) - 1, (1 << 63) - 1, -(1 << 63), (1 << 62) + 1]
_FLOATS = st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.5, -0.5, 2.0**63, -(2.0**63), 2.0**53 + 2])
_INTEGERS = st.sampled_from(_EDGES)


@given(
    integers=st.lists(_INTEGERS | st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=8),
    floats=st.lists(_FLOATS | _INTEGERS.map(float) | st.floats(), min_size=8, max_size=8),
    constant=_INTEGERS | st.integers(-(1 << 70), 1 << 70) | st.just(10**400) | st.just(-(10**400)),
    compare=st.sampled_from([operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]),
)
def test_integers_and_floats_compare_as_in_python(
    integers: list[int], floats: list[float], constant: int, compare: Any
) -> None:
    whole, real = np.array(integers), np.array(floats[: len(integers)])
    pairs = list(zip(integers, real.tolist(), strict=True))
    assert compared(compare, whole, real).tolist() == [compare(a, b) for a, b in pairs]
    assert compared(compare, real, whole).tolist() == [compare(b, a) for a, b in pairs]
    assert compared(compare, constant, real).tolist() == [compare(constant, b) for b in real.tolist()]
    assert compared(compare, real, constant).tolist() == [compare(b, constant) for b in real.tolist()]
    assert compared(compare, whole, floats[0]).tolist() == [compare(a, floats[0]) for a in integers]


def test_large_integers_are_not_rounded_in_conditions(tmp_path: Path) -> None:
    large = 1 << 53
    rows = "".join(f"{large + number}\t{float(large + number)}\n" for number in range(3))
    (tmp_path / "large.txt").write_text("#mpload 1\n#columns n:int f:float\n" + rows)
    index = open_index(tmp_path / "large.txt")
    for text, expected in {
        "n == f": [True, False, True],
        "n > f": [False, True, False],
        f"n == {large}.0": [True, False, False],
        f"f == {large + 1}": [False, False, False],
        f"f in [{large + 1}, {large + 2}]": [False, False, True],
        f"n < {large + 2}.0": [True, True, False],
    }.items():
        assert holds(index, text) == expected, text
