"""The indexes of a mixture, read as one."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import Column, Mixture, MPDataset, open_index
from mpload.errors import ArgumentError, OutsideRootError, SampleError
from mpload.index.columns import range_of
from mpload.index.index import lines_of
from mpload.index.mixture import names_of, shares_of
from mpload.loader.mixing import open_mixture
from tests.support.mixtures import mixed, samples, source


def _text(path: Path, columns: str, *lines: str, classes: str = "") -> Path:
    header = ["#mpload 1", f"#columns {columns}", *([f"#classes {classes}"] if classes else [])]
    path.write_text("\n".join([*header, *lines]) + "\n")
    return path


def test_records_are_those_of_the_sources_one_after_another_in_every_lap(tmp_path: Path) -> None:
    paths = [source(tmp_path, name, size, root="files") for name, size in (("a", 30), ("b", 5))]
    index = open_mixture(Mixture(dict.fromkeys(paths, 1)))
    expected = [record.cells for path in paths for record in open_index(path)]
    assert [record.cells for record in index] == expected
    ids = np.array([34, 0, 35, 29, 30, 7 * 35 + 31])
    assert [record.sample_id for record in index.records(ids)] == ids.tolist()
    assert [record.cells for record in index.records(ids)] == [expected[row % 35] for row in ids.tolist()]
    assert index.where(7 * 35 + 31) == open_index(paths[1]).where(1)
    assert [record.cells for record in pickle.loads(pickle.dumps(index)).records(ids)] == [
        expected[row % 35] for row in ids.tolist()
    ]


def test_cells_of_many_lines_are_those_of_their_records(tmp_path: Path) -> None:
    one = _text(tmp_path / "one.txt", "image:path label:int", "a\t0", "b/c\t-1", "d\t1", classes="cat\tdog")
    two = _text(tmp_path / "two.txt", "n:int label:int image:span", "7\t1\t3+4@e", "8\t0\t5+6@f", classes="dog\temu")
    mixture = Mixture({one: 1, two: 1}, fill={"n": -5}, match_classes=True, source_column="source")
    index = open_mixture(mixture)
    assert index.columns[-1] == Column(name="source", type="int")  # type: ignore[arg-type]
    assert index.classes == ("cat", "dog", "emu")
    lines = lines_of(index, np.array([4, 1, 2, 0, 3]))
    records = index.records([4, 1, 2, 0, 3])
    assert [record["label"] for record in records] == [1, -1, 1, 0, 2]
    assert [record["n"] for record in records] == [8, -5, -5, -5, 7]
    assert [record["source"] for record in records] == [1, 0, 0, 0, 1]
    for number, name in ((1, "label"), (2, "n"), (3, "source")):
        assert lines.integers(number)[0].tolist() == [record[name] for record in records]
        assert lines.integers(number)[1].all()
    spans = lines.spans(0)
    for place, record in enumerate(records):
        wanted = range_of(record["image"])
        start, end = spans.paths[place].tolist()
        assert lines.data[start:end].decode() == wanted.path
        assert (spans.offsets[place], spans.lengths[place]) == (wanted.offset_bytes, wanted.length_bytes or -1)
        start, end = lines.cells[place, 0].tolist()
        assert lines.data[start:end].decode() == str(record["image"])


def test_sources_with_different_roots_keep_to_their_own(tmp_path: Path) -> None:
    one, two = source(tmp_path, "a", 3), source(tmp_path, "b", 3)
    assert sorted(samples(mixed(Mixture({one: 1, two: 1}), batch_size=2, tail="drop"))) == [
        (f"{name}{number:>9}", number % 2) for name in "ab" for number in range(3)
    ]
    one.write_text(one.read_text().replace("a1\t", "../b/b1\t"))
    with pytest.raises(SampleError) as raised:
        list(mixed(Mixture({one: 1, two: 1})))
    assert isinstance(raised.value.__cause__, OutsideRootError)


def test_a_source_may_have_the_root_of_the_file_system(tmp_path: Path) -> None:
    one, two = source(tmp_path, "a", 3), source(tmp_path, "b", 3)
    text = two.read_text().replace("#root b", "#root /")
    for number in range(3):
        text = text.replace(f"\nb{number}\t", f"\n{str(tmp_path).strip('/')}/b/b{number}\t")
    two.write_text(text)
    for mixture in (Mixture({one: 1, two: 1}), Mixture({one: 1, open_index(two, allow_outside_root=True): 1})):
        assert sorted(name[0] for name, _ in samples(mixed(mixture, batch_size=6))) == list("aaabbb")


def test_a_source_keeps_to_its_root_beside_one_that_may_leave_the_same(tmp_path: Path) -> None:
    one, two = source(tmp_path, "a", 3), source(tmp_path, "b", 3)
    (tmp_path / "a" / "c").mkdir()
    two.write_text(two.read_text().replace("#root b", "#root a").replace("\nb", "\n../b/b"))
    trusted = open_index(two, allow_outside_root=True)
    assert sorted(name[0] for name, _ in samples(mixed(Mixture({one: 1, trusted: 1}), batch_size=6))) == list("aaabbb")
    for path in ("../b/b1", "./../b/b1", "././../b/b1", "/./../b/b1", "c/./../../b/b1", "c/.././../b/b1"):
        one.write_text(one.read_text().replace("\na1\t", f"\n{path}\t"))
        with pytest.raises(SampleError) as raised:
            list(mixed(Mixture({one: 1, trusted: 1})))
        assert isinstance(raised.value.__cause__, OutsideRootError)
        one.write_text(one.read_text().replace(f"\n{path}\t", "\na1\t"))


@pytest.mark.parametrize(
    ("columns", "line", "options", "message"),
    [
        ("image:path", "x", {}, r"has no column label:int, which another source has"),
        ("image:path label:str", "x\ty", {}, r"column label is of type str, but of type int"),
        ("label:int", "1", {"fill": {"image": "x"}}, "columns of files cannot be filled"),
        ("image:path", "x", {"fill": {"label": "x"}}, r"fill\['label'\] must be of type int, got 'x'"),
        ("image:path label:int", "x\t1", {"fill": {"other": 1}}, "fill has 'other', which is no column"),
        ("image:path label:int", "x\t1", {"source_column": "label"}, "is a column of the sources"),
        ("image:path label:int", "x\t1", {}, "has 0 class names, which are not those of"),
        ("image:path label:int", "x\t1", {"match_classes": True}, "has no #classes"),
    ],
)
def test_sources_that_do_not_fit_together_are_refused(
    tmp_path: Path, columns: str, line: str, options: dict[str, Any], message: str
) -> None:
    first = _text(tmp_path / "first.txt", "image:path label:int", "a\t0", classes="cat\tdog")
    second = _text(tmp_path / "second.txt", columns, line)
    with pytest.raises(ArgumentError, match=message):
        MPDataset(Mixture({first: 1, second: 1}, **options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "needs a dict of sources"),
        ((["a.txt"],), "needs a dict of sources"),
        (({"a": -1, "b": 1},), "weights must be numbers of at least 0, got -1 for 'a'"),
        (({"a": float("nan")},), "weights must be numbers"),
        (({"a": float("inf")},), "weights must be numbers"),
        (({"a": 0},), "all weights are 0"),
        (({"a": 1, Path("a"): 1},), "'a' is missing, unknown or named twice"),
        (({5: 1},), "a source must be the path of an index"),
        (({Mixture({"a": 1}, epoch_samples=5): 1},), "must have weights only"),
    ],
)
def test_wrong_mixtures_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Mixture(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch_samples": 0}, "epoch_samples must be at least 1"),
        ({"schedule": [(0, {"a": 1, "b": 1})]}, "must be integers that ascend from 1"),
        ({"schedule": [(5, {"a": 1, "b": 1}), (5, {"a": 1, "b": 1})]}, "got 5 after 5"),
        ({"schedule": [(5, {"a": 1})]}, "'b' is missing"),
        ({"schedule": iter([(5, {"a": 1, "b": 1})])}, "a schedule must be a list of positions and weights"),
        ({"schedule": {5: {"a": 1, "b": 1}}}, "a schedule must be a list"),
        ({"schedule": [5]}, "a schedule must be a list"),
        ({"schedule": [(5, [1, 1])]}, r"weights must be a dict with the weight of each source, got \[1, 1\]"),
        ({"schedule": [(5, {"a": 1, "b": 1, "c": 1})]}, "'c' is missing, unknown"),
    ],
)
def test_wrong_epochs_and_schedules_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Mixture({"a": 1, "b": 2}, **options)


def test_a_mixture_has_no_columns_of_its_own_and_cannot_be_copied(tmp_path: Path) -> None:
    index = open_mixture(Mixture({_text(tmp_path / "one.txt", "a:int", "1", "2"): 1}))
    with pytest.raises(ArgumentError, match="a mixture has no text and no sidecar of its own"):
        _ = index.labels
    with pytest.raises(ArgumentError, match="a mixture has no text and no sidecar of its own"):
        index.select(tmp_path / "out.txt", where="a > 1")
    with pytest.raises(ArgumentError, match="the index of a mixture cannot be a source"):
        MPDataset(Mixture({index: 1}))


def test_weights_of_nested_mixtures_multiply() -> None:
    inner = Mixture({"b": 3, "c": 1})
    mixture = Mixture({"a": 0.2, inner: 0.8})
    assert names_of(mixture) == ["a", "b", "c"]
    assert [float(share) for share in shares_of(mixture, mixture.sources)] == [0.2, 0.6, 0.2]


def test_the_fingerprint_depends_on_all_that_samples_depend_on(tmp_path: Path) -> None:
    one = _text(tmp_path / "one.txt", "a:int", "1", "2")
    two = _text(tmp_path / "two.txt", "a:int b:int", "1\t2", "2\t3")
    variants = [
        Mixture({one: 1, two: 1}, fill={"b": 1}),
        Mixture({one: 1, two: 1}, fill={"b": 2}),
        Mixture({two: 1, one: 1}, fill={"b": 1}),
        Mixture({one: 1, two: 1}, fill={"b": 1}, source_column="source"),
    ]
    assert len({open_mixture(mixture).fingerprint for mixture in variants}) == len(variants)
    same = Mixture({one: 2, two: 3}, fill={"b": 1}, epoch_samples=5)  # weights are part of the order
    assert open_mixture(same).fingerprint == open_mixture(variants[0]).fingerprint


def test_the_fingerprint_depends_on_how_classes_are_matched(tmp_path: Path) -> None:
    one = _text(tmp_path / "one.txt", "image:path label:int", "a\t0", classes="cat\tdog")
    found = set()
    for classes in ("cat\tdog", "dog\tcat"):
        two = _text(tmp_path / "two.txt", "image:path label:int", "b\t0", classes=classes)
        index = open_mixture(Mixture({one: 1, two: 1}, match_classes=True))
        assert index.classes == ("cat", "dog")
        found.add(index.fingerprint)
    assert len(found) == 2
