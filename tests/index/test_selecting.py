"""A selection lists the chosen samples in the order of the index, and refers to the same files, columns and classes."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import ArgumentError, Fold, Index, IndexChangedError, IndexFormatError, Share, build_index, open_index
from mpload.index import blocks, selecting
from mpload.index.columns import parse_columns
from mpload.index.text import format_header, format_line, read_header
from tests.support.conditions import CLASSES, COLUMNS, ROWS
from tests.support.index_texts import make_text


def write(path: Path, rows: list[tuple[Any, ...]] = ROWS, *, root: str | None = None) -> Index:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = format_header(columns=parse_columns(COLUMNS), root=root, classes=CLASSES)
    path.write_bytes(header + b"".join(map(format_line, rows)))
    return open_index(path)


def cells(index: Index) -> list[tuple[Any, ...]]:
    return [record.cells for record in index]


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60)
def test_the_chosen_lines_are_copied_in_order(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=30))
    folder = tmp_path_factory.mktemp("select")
    index = write(folder / "a.txt", rows)
    if data.draw(st.booleans()):  # the newline of the last line may be missing
        index.path.write_bytes(index.path.read_bytes().removesuffix(b"\n"))
        index = open_index(index.path)
    ids = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    names = data.draw(st.lists(st.sampled_from(rows), min_size=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_ROWS", data.draw(st.sampled_from([1, 3, 1 << 16])))
        patch.setattr(blocks, "_BLOCK_BYTES", data.draw(st.sampled_from([20, 1 << 20])))
        selected = index.select(folder / "b.txt", sample_ids=ids)
        assert cells(selected) == [rows[number] for number in sorted(set(ids))]
        assert selected.path.read_bytes().endswith(b"\n")
        keys = [row[0] for row in names]
        assert cells(index.select(folder / "b.txt", keys=keys)) == [row for row in rows if row[0] in keys]
        found = index.select(folder / "b.txt", sample_ids=ids, part=Share(1), where="label >= 0")
        assert cells(found) == cells(selected)
    assert (selected.root, selected.columns, selected.classes) == (index.root, index.columns, index.classes)
    assert selected.labels[:].tolist() == [row[1] for row in cells(selected)]


def test_a_share_of_what_a_condition_leaves_is_exact_by_class(tmp_path: Path) -> None:
    index = open_index(make_text(tmp_path / "a.txt", 20_000))  # labels from 0 to 999
    selected = index.select(tmp_path / "b.txt", where="label % 2 == 1", part=Share(0.33, seed=3, stratify="label"))
    assert len(selected) == 3300
    labels, counts = np.unique(selected.labels[:], return_counts=True)
    assert labels.tolist() == list(range(1, 1000, 2))
    assert set(counts.tolist()) == {6, 7}
    again = index.select(tmp_path / "c.txt", where="label % 2 == 1", part=Share(0.33, seed=3, stratify="label"))
    assert again.path.read_bytes() == selected.path.read_bytes()
    other = index.select(tmp_path / "c.txt", where="label % 2 == 1", part=Share(0.33, seed=4, stratify="label"))
    assert cells(other) != cells(selected)


def test_folds_of_an_index_share_no_sample_and_cover_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_ROWS", 7)
    index = write(tmp_path / "a.txt")
    folds = [index.select(tmp_path / f"{n}.txt", part=Fold(n, of=3, stratify="name")) for n in range(3)]
    assert sorted(row for fold in folds for row in cells(fold)) == sorted(ROWS)
    for name in {row[4] for row in ROWS}:
        counts = [sum(row[4] == name for row in cells(fold)) for fold in folds]
        assert max(counts) - min(counts) <= 1
    rest = index.select(tmp_path / "rest.txt", part=Fold(0, of=3, stratify="name", rest=True))
    assert cells(rest) == [row for row in ROWS if row not in cells(folds[0])]


def test_a_line_that_would_become_a_directive_at_the_top_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("#mpload 1\n#columns image:path\na.jpg\n#b.jpg\n#c.jpg\n")
    selected = open_index(path).select(tmp_path / "b.txt", where="image.startswith('#')")
    assert cells(selected) == [("#b.jpg",), ("#c.jpg",)]


@pytest.mark.parametrize("root", [None, "../y", "/z", "s3://b/c"])
def test_the_root_stays_the_same_wherever_the_new_index_is(tmp_path: Path, root: str | None) -> None:
    index = write(tmp_path / "x" / "a.txt", root=root)
    for out in (tmp_path / "x" / "b.txt", tmp_path / "b.txt"):
        selected = index.select(out, where="label == 1")
        assert selected.root == index.root
    is_relative = root == "../y"
    assert (read_header(tmp_path / "b.txt").root == "y") is is_relative
    assert (read_header(tmp_path / "x" / "b.txt").root == "../y") is is_relative
    assert index.select(tmp_path / "c.txt", where="label == 1", relative=True).root == index.root


def test_sizes_that_were_measured_are_kept(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for number in range(9):
        (tmp_path / "c" / f"{number}.jpg").write_bytes(bytes(100 + number))
    index = open_index(build_index(tmp_path / "c", tmp_path / "a.txt", with_sizes=True))
    selected = index.select(tmp_path / "b.txt", where="nbytes % 2 == 1")
    assert selected.nbytes is not None
    assert open_index(selected.path).nbytes[:].tolist() == [101, 103, 105, 107]  # type: ignore[index]
    assert len(selected.select(tmp_path / "c.txt", where="nbytes > 103")) == 2


def test_sizes_are_those_measured_even_beside_a_column_of_that_name(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(4):
        (files / f"{number}").write_bytes(bytes(number + 1))
    lines = [f"files/{number}\t{1000 * number}" for number in range(4)]
    (tmp_path / "a.txt").write_text("\n".join(["#mpload 1", "#columns image:path nbytes:int", *lines]) + "\n")
    index = open_index(build_index(tmp_path / "a.txt", tmp_path / "b.txt", with_sizes=True))
    selected = index.select(tmp_path / "c.txt", where="nbytes >= 2000")
    assert selected.nbytes is not None
    assert selected.nbytes[:].tolist() == [3, 4]


@pytest.mark.parametrize("name", ["list.txt", "list.csv", "tabs.txt"])
def test_a_selection_from_a_plain_list_is_an_index(tmp_path: Path, name: str) -> None:
    separator = {"list.txt": " ", "list.csv": ",", "tabs.txt": "\t"}[name]
    lines = [f"a\\b/{number}.jpg{separator}{number % 3}\r\n" for number in range(9)]
    (tmp_path / name).write_text("".join([*lines, "\n"]), newline="")
    index = open_index(tmp_path / name)
    selected = index.select(tmp_path / "new.txt", where="label == 2")
    assert cells(selected) == [row for row in cells(index) if row[1] == 2]
    assert (selected.root, selected.columns) == (index.root, index.columns)
    assert selected.path.read_bytes().startswith(b"#mpload 1\n")
    assert not selected.allow_outside_root


def test_a_path_of_a_plain_list_must_be_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg 1\n../b.jpg 2\n")
    index = open_index(tmp_path / "list.txt")
    assert len(index.select(tmp_path / "new.txt", where="label == 1")) == 1
    with pytest.raises(IndexFormatError, match=r"list\.txt:2: \.\./b\.jpg leads outside the root .* --root / -o"):
        index.select(tmp_path / "new.txt", where="label == 2")


def test_keys_may_be_paths(tmp_path: Path) -> None:
    index = write(tmp_path / "train.txt")
    index.select(tmp_path / "texts.txt", keys=["-/0.jpg"])
    index.select(tmp_path / "paths.txt", keys=[Path("-/0.jpg")])
    assert (tmp_path / "paths.txt").read_bytes() == (tmp_path / "texts.txt").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"where": "label == 9"}, "none of the 40 samples of .* is selected"),
        ({"keys": ["-/0.jpg", "nothing", "no"]}, "2 keys of 3 not found in column image of .*, such as 'no'"),
        ({"keys": [3]}, "keys must be texts or paths, got 3 of type int"),
        ({"keys": [b"-/0.jpg"]}, r"keys must be texts or paths, got b'-/0\.jpg'"),
        ({"keys": "-/0.jpg"}, r"keys must be a list of texts, got the text '-/0\.jpg'"),
        (
            {"keys": ["1"], "key_column": "label"},
            "key_column='label': its type is int .* Possible columns: image, name",
        ),
        ({"part": Share(0.5, stratify="score")}, "stratify='score': its type is float"),
        ({"part": Fold(0, of=2, stratify="clas")}, "stratify='clas': there is no such column"),
        ({"where": "label == 9", "part": Share(0.5, stratify="label")}, "none of the 40 samples of .* is selected"),
        ({"sample_ids": np.arange(40) == 3}, r"sample_ids must be integers, got bool\[40\]. Write np\.flatnonzero"),
        ({"sample_ids": [1.5]}, r"sample_ids must be integers, got float64\[1\]"),
        ({"sample_ids": [40]}, r"sample_ids must be in \[0, 40\)"),
        ({"where": 3}, r"where must be a text, got 3 of type int\. Write, for example, label == 3"),
        ({"where": b"label > 3"}, r"where must be a text, got b'label > 3' of type bytes"),
        ({"where": ""}, r"where '': it is empty\. Write, for example, .*, or leave it out$"),
        ({"where": " "}, r"where ' ': it is empty"),
        ({"where": "label <"}, r"where 'label <': it cannot be parsed: invalid syntax\. Write"),
        ({"part": 0.1}, r"part must be a Share or a Fold, got 0\.1 of type float\. Write part=Share\(0\.1\)"),
        ({"out": "a.txt"}, "is the source itself"),
        ({"out": "no/b.txt"}, "no such folder"),
        ({"out": "s3://bucket/b.txt"}, "an index is written to a local file"),
    ],
)
def test_a_refused_selection_changes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    index = write(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("#mpload old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ArgumentError, match=message):
        index.select(**{"out": "b.txt", **arguments})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_text_that_has_changed_is_refused(tmp_path: Path) -> None:
    index = write(tmp_path / "a.txt")
    with index.path.open("ab") as file:
        file.write(b"x/1.jpg\t1\t1\t1\tx\n")
    with pytest.raises(IndexChangedError, match="changed after it was opened"):
        index.select(tmp_path / "b.txt", where="label == 1")
    assert not (tmp_path / "b.txt").exists()


def test_a_sidecar_of_other_lines_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_index(make_text(tmp_path / "a.txt", 1000))
    offsets = index._sidecar_file.columns["offset"][:].astype(np.int64)
    monkeypatch.setattr(type(index._sidecar_file.columns["offset"]), "__getitem__", lambda _, key: offsets[key] + 1)
    with pytest.raises(IndexChangedError, match="does not match it"):
        index.select(tmp_path / "b.txt", sample_ids=[1])


def test_memory_does_not_grow_with_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_ROWS", 1024)
    peaks = []
    for num_samples in (4_000, 40_000):
        index = open_index(make_text(tmp_path / f"{num_samples}.txt", num_samples))
        monkeypatch.setattr(selecting, "open_index", lambda *_, index=index, **__: index)  # it builds no sidecar
        index.select(tmp_path / "b.txt", where="label != 3", part=Share(0.5, stratify="label"))
        tracemalloc.start()
        index.select(tmp_path / "b.txt", where="label != 3", part=Share(0.5, stratify="label"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


@pytest.mark.parametrize("per_class", [1, 2])
def test_the_seed_determines_which_small_strata_a_part_holds(tmp_path: Path, per_class: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("#mpload 1\n#columns label:int\n" + "".join(f"{row // per_class}\n" for row in range(240)))
    index = open_index(path)

    def classes(part: Share | Fold) -> tuple[int, ...]:
        return tuple(index.select(tmp_path / "b.txt", part=part).labels[:].tolist())

    for num_parts in (4, 5):
        shares = [classes(Share(1 / num_parts, seed=seed, stratify="label")) for seed in range(40)]
        folds = [classes(Fold(0, of=num_parts, seed=seed, stratify="label")) for seed in range(40)]
        for found in (shares, folds):
            assert {len(chosen) for chosen in found} == {240 // num_parts}
            assert all(len(set(chosen)) == len(chosen) for chosen in found), "within one of the exact share"
            assert len(set(found)) == 40
            times = np.bincount(np.concatenate(found), minlength=240 // per_class)
            assert times.min() > 0, "every class is in some of them"
            assert times.max() < 40, "no class is in all of them"
    folds = [classes(Fold(number, of=4, seed=7, stratify="label")) for number in range(4)]
    assert sorted(sum(folds, ())) == [row // per_class for row in range(240)]
    assert classes(Fold(3, of=4, seed=7, stratify="label")) == folds[3]
