"""JSON that no program should write: deep, huge, or of the wrong types."""

from hypothesis import strategies as st

__all__ = ["HOSTILE_JSON", "JSON_VALUES"]

HOSTILE_JSON = (  # and a part of the error's message
    ("", "not JSON"),
    ("[", "not JSON"),
    ("[" * 100_000, "nested too deeply"),
    ('{"a":' * 100_000, "nested too deeply"),
    ("[[1, 2, 3, NaN]]", "NaN, which is not a number of JSON"),
    ("[[1, 2, 3, -Infinity]]", "-Infinity, which is not a number of JSON"),
    ("[[1, 2, 3, 1e999]]", "must be numbers"),
    (f"[[1, 2, 3, {'9' * 400}]]", "must be numbers"),
    (f"[[1, 2, 3, {'9' * 5000}]]", "not JSON: Exceeds the limit"),
    ('[["1", "2", "3", "4"]]', "must be numbers"),
    ("[[1, 2, 3, null]]", "must be numbers"),
    ("[[true, true, true, true]]", "must be numbers"),
    ("[[1, 2], [1, 2, 3]]", "must be numbers"),
    ("[[[1, 2, 3, 4]]]", "must be numbers"),
    ("[[]]", "must be numbers"),
    ("[null]", "must be numbers"),
    ("null", "must be"),
    ('"text"', "must be"),
    ("3", "must be"),
)

_NAMES = st.sampled_from(["boxes", "bbox", "labels", "category", "annotations", "objects", "width", "height", "image"])
_MORE_NAMES = st.sampled_from(["keypoints", "points", "segmentation", "counts", "size", "a"])
_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(0, 50) | st.floats(allow_nan=False) | st.text(max_size=5)
)
JSON_VALUES = st.recursive(
    _LEAVES | st.lists(st.floats(-100, 500), min_size=3, max_size=6),
    lambda values: st.lists(values, max_size=5) | st.dictionaries(_NAMES | _MORE_NAMES, values, max_size=4),
    max_leaves=25,
)
"""Values that may look like objects, boxes or points."""
