"""An index of parts is the single index of their lines, however they are cut."""

import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import Fold, MPDataset, PKBatches, Share, build_index, list_parts, merge_indexes, open_index
from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.blocks import blocks_of
from mpload.index.index import prefetch_lines
from mpload.index.lines import NATIVE
from mpload.index.parts_index import PartsIndex
from mpload.index.text import read_header
from mpload.ingest.checking import check_index
from tests.support.growing import HEAD
from tests.support.index_parts import write_part, write_parts, write_whole
from tests.support.programs import mpload, run_script

cuts_of_30 = st.lists(st.integers(0, 30), max_size=6).map(lambda cuts: [0, *sorted(cuts), 30])
CUTS = [0, 3, 3, 4, 20, 30]
"""One part is empty, and one has one line."""


def opened(path: Path) -> PartsIndex:
    index = open_index(path)
    assert isinstance(index, PartsIndex)
    return index


def parts_of_30(folder: Path, cuts: list[int] = CUTS) -> PartsIndex:
    return opened(write_parts(folder, cuts))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=cuts_of_30, data=st.data())
def test_an_index_of_parts_has_the_records_and_columns_of_the_whole(tmp_path: Path, cuts: list[int], data: Any) -> None:
    whole, parts = open_index(write_whole(tmp_path, 30)), parts_of_30(tmp_path, cuts)
    ids = np.array(data.draw(st.lists(st.integers(0, 29))), np.int64)
    first, end = sorted(data.draw(st.tuples(st.integers(0, 30), st.integers(0, 30))))
    step = data.draw(st.integers(1, 4))
    for _ in range(2):  # the second time, the table is found
        assert list(parts) == list(whole)
        assert len(parts) == len(whole)
        assert (parts.columns, parts.root, parts.classes) == (whole.columns, whole.root, whole.classes)
        assert parts.records(ids) == whole.records(ids)
        assert parts[first:end:step] == whole[first:end:step]
        assert np.array_equal(parts.labels[ids], whole.labels[ids])
        assert np.array_equal(parts.labels[first:end:step], whole.labels[first:end:step])
        assert np.array_equal(np.concatenate(list(parts.labels.blocks())), np.asarray(whole.labels))
        assert np.array_equal(np.asarray(parts.labels), np.asarray(whole.labels))
        assert np.concatenate([block.numbers("id") for block in blocks_of(parts)]).tolist() == list(range(30))
        assert [block.first_id for block in blocks_of(parts)] == [cut for cut in sorted({*cuts}) if cut < 30]
        copy = pickle.loads(pickle.dumps(parts))
        assert (copy.fingerprint, copy.records(ids)) == (parts.fingerprint, whole.records(ids))
        parts = opened(parts.path)


@pytest.mark.parametrize("shown", [-1, 30, 31])
def test_a_sample_outside_an_index_of_parts_is_refused(tmp_path: Path, shown: int) -> None:
    parts = parts_of_30(tmp_path)
    with pytest.raises(ArgumentError, match=r"must be in \[0, 30\)"):
        parts.records([shown])


def test_a_sample_is_found_in_its_part(tmp_path: Path) -> None:
    parts = parts_of_30(tmp_path)
    assert [parts.where(row) for row in (0, 2, 3, 4, 29)] == [
        f"{tmp_path}/part-{part}.txt:{number}" for part, number in ((0, 3), (0, 5), (2, 3), (3, 3), (4, 12))
    ]


def test_a_broken_line_is_reported_with_its_part(tmp_path: Path) -> None:
    (tmp_path / "part-3.txt").write_text(HEAD + "4\tx\t0\n5\tx\tcat\n")
    path = tmp_path / "parts.txt"
    write_part(tmp_path / "part-0.txt", 0, 3)
    path.write_text("#mpload 1\n#parts\npart-0.txt\npart-3.txt\n")
    with pytest.raises(IndexFormatError, match=r"parts.txt:4: part part-3.txt: .*part-3.txt:4: label 'cat'"):
        open_index(path)


def test_parts_are_selected_sorted_out_and_checked_as_the_whole_is(tmp_path: Path) -> None:
    whole, parts = open_index(write_whole(tmp_path, 30)), parts_of_30(tmp_path)
    choices: list[dict[str, Any]] = [
        {"where": "label == 1 and id > 3"},
        {"sample_ids": [29, 3, 4]},
        {"part": Share(0.3)},
        {"keys": ["sample 4", "sample 28"], "key_column": "text"},
    ]
    for choice in choices:
        a, b = whole.select(tmp_path / "a.txt", **choice), parts.select(tmp_path / "b.txt", **choice)
        assert (list(a), a.fingerprint) == (list(b), b.fingerprint)
    done: list[int] = []
    assert list(check_index(parts, progress=done.append)) == []
    assert done[-1] == 30


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=cuts_of_30, rotation=st.integers(0, 29))
def test_strata_and_classes_do_not_depend_on_where_parts_begin(tmp_path: Path, cuts: list[int], rotation: int) -> None:
    columns = "#mpload 1\n#columns id:int kind:int name:str\n"
    lines = [f"{number}\t{(29 - number) // 4}\t{number * 5 % 3}\n" for number in range(30)]
    lines = lines[rotation:] + lines[:rotation]
    found = []
    for edges in ([0, 30], cuts):
        names = [f"{number}.txt" for number in range(len(edges) - 1)]
        for name, (first, end) in zip(names, pairwise(edges), strict=True):
            (tmp_path / name).write_text(columns + "".join(lines[first:end]))
        (tmp_path / "list.txt").write_text("#mpload 1\n#parts\n" + "".join(f"{name}\n" for name in names))
        index = open_index(tmp_path / "list.txt")
        parts: list[Share | Fold] = [Share(0.4, stratify="name"), Fold(0, of=2, stratify="kind", rest=True)]
        chosen = [list(index.select(tmp_path / "chosen.txt", where="id % 7 > 1", part=part)) for part in parts]
        batches = MPDataset(index, batch_size=4, shuffle=PKBatches("kind", 2, 2), as_dict=True)
        found.append((chosen, [batch["id"].tolist() for batch in batches]))
    assert found[0] == found[1]


def test_findings_name_the_part_and_the_sample(tmp_path: Path) -> None:
    head = "#mpload 1\n#columns image:path label:int\n"
    for number, name in enumerate(("here.jpg", "gone.jpg")):
        (tmp_path / f"part-{number}.txt").write_text(f"{head}here.jpg\t1\n{name}\t1\n")
    (tmp_path / "here.jpg").write_bytes(b"x")
    (tmp_path / "parts.txt").write_text("#mpload 1\n#parts\npart-0.txt\npart-1.txt\n")
    (finding,) = check_index(open_index(tmp_path / "parts.txt"))
    assert (finding.where, finding.sample_id, finding.path) == (f"{tmp_path}/part-1.txt:4", 3, "gone.jpg")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=cuts_of_30)
def test_listing_and_merging_undo_each_other(tmp_path: Path, cuts: list[int]) -> None:
    cuts = sorted({*cuts})
    write_parts(tmp_path, cuts)
    names = [tmp_path / f"part-{number}.txt" for number in range(len(cuts) - 1)]
    listed = opened(list_parts(names, tmp_path / "list.txt"))
    again = opened(list_parts([listed.path], tmp_path / "again.txt"))
    assert listed.fingerprint == again.fingerprint == opened(tmp_path / "parts.txt").fingerprint
    assert listed.path.read_text() == again.path.read_text()
    merged = open_index(merge_indexes([listed.path], tmp_path / "merged.txt"))
    assert merged.fingerprint == open_index(write_whole(tmp_path, 30)).fingerprint
    assert list(listed) == list(merged)


@pytest.mark.skipif(NATIVE is None, reason="the native module was not built")
def test_lines_of_parts_are_asked_for_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of_30(tmp_path)
    asked: list[int] = []

    class Native:
        def ask(self, files: tuple[int, ...], rows: Any) -> int:
            asked.append(len(rows))
            assert NATIVE is not None
            return NATIVE.ask(files, rows)

    monkeypatch.setattr("mpload.index.parts_index.NATIVE", Native())
    prefetch_lines(parts, lambda: np.array([29, 0, 3, 1]))
    assert asked == [], "no line was missing lately"
    parts._num_missed = 1
    prefetch_lines(parts, lambda: np.array([29, 0, 3, 1]))
    assert asked == [2, 1, 1]


def test_parts_are_read_without_the_native_module_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(open_index(write_whole(tmp_path, 30)))
    for module in ("index", "lines", "parts_index"):
        monkeypatch.setattr(f"mpload.index.{module}.NATIVE", None)
    parts = parts_of_30(tmp_path)
    assert list(parts) == expected
    assert parts.records([29, 0, 3]) == [expected[29], expected[0], expected[3]]


def test_sizes_are_those_of_the_parts_if_all_have_them(tmp_path: Path) -> None:
    for number, names in enumerate(("ab", "c")):
        for name in names:
            (tmp_path / f"{name}.jpg").write_bytes(b"x" * ord(name))
        (tmp_path / f"{number}.csv").write_text("".join(f"{name}.jpg,0\n" for name in names))
        build_index(tmp_path / f"{number}.csv", tmp_path / f"part-{number}.txt", with_sizes=True)
    path = list_parts([tmp_path / "part-0.txt", tmp_path / "part-1.txt"], tmp_path / "list.txt")
    sizes = open_index(path).nbytes
    assert sizes is not None
    assert np.asarray(sizes).tolist() == [97, 98, 99]
    assert sizes[[2, 0]].tolist() == [99, 97]
    assert len(open_index(path).select(tmp_path / "large.txt", where="nbytes >= 98")) == 2
    (tmp_path / "part-1.txt.mpx").unlink()
    assert open_index(path).nbytes is None


def test_no_part_is_overwritten(tmp_path: Path) -> None:
    path, part = write_parts(tmp_path, [0, 3, 5]), tmp_path / "part-1.txt"
    before = part.read_text()
    for write in (list_parts, merge_indexes):
        with pytest.raises(ArgumentError, match=r"part-1.txt: is the source itself"):
            write([path], part)
    with pytest.raises(ArgumentError, match=r"part-1.txt: is the source itself"):
        open_index(path).select(part, where="id > 1")
    assert part.read_text() == before


@pytest.mark.parametrize("write", [list_parts, merge_indexes])
def test_one_path_in_place_of_several_is_refused(tmp_path: Path, write: Any) -> None:
    part = write_part(tmp_path / "part.txt", 0, 3)
    for path in (part, str(part)):
        with pytest.raises(ArgumentError, match=r"(parts|sources) is one path, '.*part.txt', but must be a list"):
            write(path, tmp_path / "all.txt")


def test_a_list_moves_with_its_parts(tmp_path: Path) -> None:
    for folder in ("a", "a/b"):
        (tmp_path / folder).mkdir()
    head = HEAD.replace("#columns", "#root /data\n#columns")
    parts = [
        write_part(tmp_path / "a" / "one\t.txt", 0, 4, head=head),
        write_part(tmp_path / "a/b/two.txt", 4, 9, head=head),
    ]
    outside = write_part(tmp_path / "three.txt", 9, 12, head=head)
    path = list_parts([*parts, outside], tmp_path / "a" / "list.txt")
    assert [text.split("\t")[0] for text in path.read_text().splitlines()[2:]] == [
        "one\\t.txt",
        "b/two.txt",
        str(outside),
    ]
    list_parts([*parts, outside], path, relative=True)
    index = open_index(path)
    before = list(index), index.fingerprint
    (tmp_path / "moved").mkdir()
    (tmp_path / "a").rename(tmp_path / "moved" / "a")
    outside.rename(tmp_path / "moved" / "three.txt")
    after = open_index(tmp_path / "moved" / "a" / "list.txt")
    assert (list(after), after.fingerprint) == before


def test_a_relative_list_may_be_written_through_a_link_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "far" / "lists").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "lists")
    part = write_part(tmp_path / "part.txt", 0, 4)
    assert len(open_index(list_parts([part], tmp_path / "link" / "list.txt", relative=True))) == 4
    assert len(open_index(tmp_path / "far" / "lists" / "list.txt")) == 4


def test_a_part_that_occurs_twice_counts_twice(tmp_path: Path) -> None:
    part = write_part(tmp_path / "part.txt", 0, 3)
    index = open_index(list_parts([part, part], tmp_path / "list.txt"))
    assert [record["id"] for record in index] == [0, 1, 2, 0, 1, 2]
    assert index.labels[:].tolist() == [0, 1, 2, 0, 1, 2]


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    one = write_part(tmp_path / "one.txt", 0, 3)
    heads = {
        "columns": HEAD.replace("text:str", "name:str"),
        "class names": HEAD + "#classes a\tb\tc\n",
        "root": HEAD.replace("#columns", "#root elsewhere\n#columns"),
    }
    others = [(write_part(tmp_path / f"{word}.txt", 3, 5, head=head), word) for word, head in heads.items()]
    plain = tmp_path / "plain.txt"
    plain.write_text("a.jpg\t1\n")
    for other, word in [*others, (plain, "plain list")]:
        with pytest.raises(ArgumentError, match=word):
            list_parts([one, other], tmp_path / "list.txt")
        (tmp_path / "list.txt").write_text(f"#mpload 1\n#parts\none.txt\n{other.name}\n")
        with pytest.raises(IndexFormatError, match=f"list.txt:4: part {other.name}: .*{word}"):
            open_index(tmp_path / "list.txt")
        (tmp_path / "list.txt").unlink()


def test_a_list_of_lists_and_a_list_of_itself_are_refused(tmp_path: Path) -> None:
    inner = write_parts(tmp_path, [0, 3, 5])
    for name in (inner.name, "outer.txt"):
        (tmp_path / "outer.txt").write_text(f"#mpload 1\n#parts\n{name}\n")
        with pytest.raises(IndexFormatError, match=f"outer.txt:3: part {name}: lists parts itself"):
            open_index(tmp_path / "outer.txt")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("", "3: is blank"),
        ("part-0.txt\n\npart-1.txt\n", "4: is blank"),
        ("#root /data\npart-0.txt\n", "3: .*no directives"),
        ("part-0.txt\t3\n", "3: has 2 cells"),
        ("part-0.txt\t-1\tx\n", "3: .*are not a number of samples and the digest"),
        ("part-0.txt\t3\tx\n", "3: .*are not a number of samples and the digest"),
        ("part-0.txt\tmany\tx\n", "3: samples 'many' is not an integer"),
        ("s3://a:b@bucket/part.txt\n", "3?.*"),
    ],
)
def test_a_broken_list_is_refused_with_its_line(tmp_path: Path, body: str, fault: str) -> None:
    path = write_parts(tmp_path, [0, 3, 5])
    path.write_text(f"#mpload 1\n#parts\n{body}")
    with pytest.raises((IndexFormatError, ArgumentError), match=fault):
        open_index(path)


def test_what_needs_lines_of_its_own_refuses_a_list(tmp_path: Path) -> None:
    path = write_parts(tmp_path, [0, 3, 5])
    with pytest.raises(IndexFormatError, match=r"parts.txt:2: lists the parts of an index"):
        read_header(path)
    for wrong in ("#columns id:int\n#parts\n1\n", "#parts 2\npart-0.txt\n"):
        path.write_text(f"#mpload 1\n{wrong}")
        with pytest.raises(
            IndexFormatError, match=r"parts.txt:\d: '#parts' is line 2 of a list of parts, and has no value"
        ):
            open_index(path)
    path.write_text("#mpload 2\n#parts\npart-0.txt\n")
    with pytest.raises(IndexFormatError, match="Update mpload"):
        open_index(path)


def test_a_list_of_empty_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="none of its parts has samples"):
        open_index(write_parts(tmp_path, [0, 0, 0]))


_MANY = """
import os, resource, sys
import numpy as np
from mpload import open_index
index, limit = open_index(sys.argv[1]), 64
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(int(sys.argv[2]))]
for seed in range(3):
    ids = np.random.default_rng(seed).integers(len(index), size=200)
    assert [record["id"] for record in index.records(ids)] == ids.tolist()
    assert (index.labels[ids] == ids % 3).all()
print(len(os.listdir("/proc/self/fd")) - len(taken))
"""


@pytest.mark.processes
@pytest.mark.parametrize("num_taken", [0, 45])
def test_many_parts_need_few_descriptors(tmp_path: Path, num_taken: int) -> None:
    path = write_parts(tmp_path, list(range(101)))
    open_index(path)
    ran = run_script(_MANY, str(path), str(num_taken))
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 32


def test_what_a_process_is_sent_grows_by_few_bytes_per_part(tmp_path: Path) -> None:
    sizes = []
    for num_parts in (10, 110):
        folder = tmp_path / str(num_parts)
        folder.mkdir()
        index = open_index(write_parts(folder, list(range(num_parts + 1))))
        list(index)
        sizes.append(len(pickle.dumps(index)))
    assert sizes[1] - sizes[0] < 100 * 10


@pytest.mark.processes
def test_the_command_lists_parts(tmp_path: Path) -> None:
    write_parts(tmp_path, CUTS)
    parts = [str(tmp_path / f"part-{number}.txt") for number in (0, 2, 3, 4)]
    out = str(tmp_path / "list.txt")
    assert mpload("merge", *parts, "-o", out, "--as-parts").stdout.endswith("list.txt: 30 samples from 4 indexes\n")
    facts = [json.loads(mpload("inspect", out, "--check", "--json").stdout) for _ in range(2)]
    assert [each["num_findings"] for each in facts] == [0, 0]
    assert facts[0]["num_parts"] == 4
    assert facts[0]["text_bytes"] == sum(Path(part).stat().st_size for part in parts)
    assert facts[1]["sidecar"]["was_fresh"]
    assert "parts        4" in mpload("inspect", out).stdout
