"""Conditions on the columns of an index, and rows on which they differ."""

from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

__all__ = ["CLASSES", "COLUMNS", "ROWS", "conditions"]

COLUMNS = "image:path label:int width:int score:float name:str"
CLASSES = ["cat", "dog", "owl"]
_TEXTS = ["", "a", "ab", "a\tb", "a\\b", "é", "\udcff", "#", "cat", "ba"]
ROWS: list[tuple[Any, ...]] = [
    (f"{name or '-'}/{number}.jpg", number % 3, width, score, name)
    for number, (name, (width, score)) in enumerate(
        product(_TEXTS, [(0, 0.5), (-7, float("inf")), (256, -1e30), (1 << 60, 2.0)])
    )
]
"""Cells with escapes, and bytes that are not UTF-8, beside large and negative numbers."""

_INTEGERS = st.integers(-3, 4) | st.sampled_from([256, 1 << 20, 1 << 60])
_NUMBERS = _INTEGERS | st.sampled_from([0.5, 2.0, -1.5, 1e30])
_number_leaves = st.sampled_from(["label", "width", "score"]) | _NUMBERS.map(repr)
_TEXT_LEAVES = st.sampled_from(["image", "name"])


def _joined(numbers: SearchStrategy[str]) -> SearchStrategy[str]:
    divisors = st.sampled_from(["3", "-2", "7", "0.5"])
    sums = st.tuples(numbers, st.sampled_from("+-*"), numbers)
    quotients = st.tuples(numbers, st.sampled_from(["/", "//", "%"]), divisors)
    return (sums | quotients).map(lambda parts: "({} {} {})".format(*parts)) | numbers.map("(- {})".format)


# Infinite remainders and sums differ between Python, which raises, and NumPy; they are left out.
_numbers = _number_leaves | st.recursive(_number_leaves, _joined, max_leaves=3).filter(lambda text: "score" not in text)
_OPERATORS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
_constant_texts = st.sampled_from([*_TEXTS, "ab/4.jpg", ".jpg"]).map(ascii)
_comparisons = st.one_of(
    st.tuples(_numbers, _OPERATORS, _numbers).map(" ".join),
    st.tuples(_numbers, _OPERATORS, _numbers, _OPERATORS, _numbers).map(" ".join),
    st.tuples(_TEXT_LEAVES, st.sampled_from(["==", "!=", "<", ">="]), _constant_texts | _TEXT_LEAVES).map(" ".join),
    st.tuples(_numbers, st.sampled_from(["in", "not in"]), st.lists(_NUMBERS, max_size=3).map(repr)).map(" ".join),
    st.tuples(_TEXT_LEAVES, st.sampled_from(["in", "not in"]), st.lists(_constant_texts, max_size=3)).map(
        lambda parts: f"{parts[0]} {parts[1]} [{', '.join(parts[2])}]"
    ),
    st.tuples(_constant_texts, st.sampled_from(["in", "not in"]), _TEXT_LEAVES).map(" ".join),
    st.tuples(_TEXT_LEAVES, st.sampled_from(["startswith", "endswith"]), _constant_texts).map(
        lambda parts: "{}.{}({})".format(*parts)
    ),
)
conditions: SearchStrategy[str] = st.recursive(
    _comparisons,
    lambda parts: (
        st.tuples(parts, st.sampled_from(["and", "or"]), parts).map(lambda each: f"({' '.join(each)})")
        | parts.map("(not {})".format)
    ),
    max_leaves=4,
)
"""Texts of conditions that Python, too, can evaluate on each row."""
