"""A merged index lists the same samples and refers to the same files as its sources."""

from pathlib import Path

import pytest

from mpload import build_index, open_index
from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.columns import parse_columns
from mpload.index.text import format_header, read_header
from mpload.ingest.merge import merge_indexes
from mpload.storage.ranges import LmdbValue, Span


def write(
    path: Path, *lines: str, columns: str = "image:path label:int", root: str | None = None, classes: str = ""
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = format_header(columns=parse_columns(columns), root=root, classes=classes.split())
    path.write_bytes(header + "".join(f"{line}\n" for line in lines).encode())
    return path


def make_tree(folder: Path, number: int) -> Path:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{number}.jpg").write_text(f"{folder}{name}")
    return folder


def test_a_merged_index_refers_to_the_same_files_in_the_same_order(tmp_path: Path) -> None:
    sources = [
        build_index(make_tree(tmp_path / "data" / "a" / "train", 1), tmp_path / "a.txt"),
        build_index(make_tree(tmp_path / "data" / "b", 2), tmp_path / "data" / "b" / "b.txt"),
    ]
    for relative in (False, True):
        merged = open_index(merge_indexes(sources, tmp_path / "all.txt", relative=relative))
        assert merged.root == str(tmp_path / "data")
        assert (read_header(merged.path).root == "data") is relative
        assert merged.classes == ("cat", "dog")
        expected = [
            ((Path(index.root) / str(path)).read_text(), label)
            for index in map(open_index, sources)
            for path, label in (record.cells for record in index)
        ]
        assert [((Path(merged.root) / str(p)).read_text(), label) for p, label in (r.cells for r in merged)] == expected


def test_a_common_root_and_its_paths_are_kept(tmp_path: Path) -> None:
    a = write(tmp_path / "a.txt", "x.jpg\t1", root="/data")
    b = write(tmp_path / "b.txt", "y.jpg\t2", root="/data/")
    progress: list[int] = []
    merged = open_index(merge_indexes([a, b, a], tmp_path / "c.txt", progress=progress.append))
    assert merged.root == "/data"
    assert [record["image"] for record in merged] == ["x.jpg", "y.jpg", "x.jpg"]
    assert progress == [3]


@pytest.mark.parametrize(
    ("roots", "common", "paths"),
    [
        (["/data/a", "/data/ab"], "/data", ["a/x", "ab/x"]),
        (["/data", "/data/b"], "/data", ["x", "b/x"]),
        (["/a", "/b"], "/", ["a/x", "b/x"]),
        (["/", "/b"], "/", ["x", "b/x"]),
        (["s3://bucket/a", "s3://bucket/b/c"], "s3://bucket", ["a/x", "b/c/x"]),
        (["s3://bucket/a/", "s3://bucket/a/c"], "s3://bucket/a", ["x", "c/x"]),
    ],
)
def test_the_root_is_the_innermost_common_parent(
    tmp_path: Path, roots: list[str], common: str, paths: list[str]
) -> None:
    sources = [write(tmp_path / f"{number}.txt", "x\t0", root=root) for number, root in enumerate(roots)]
    merged = open_index(merge_indexes(sources, tmp_path / "all.txt"))
    assert merged.root == common
    assert [record["image"] for record in merged] == paths


def test_paths_in_spans_and_lmdb_cells_are_made_relative_to_the_new_root(tmp_path: Path) -> None:
    columns = "image:span mask:lmdb label:int"
    sources = [
        write(tmp_path / f"{name}.txt", f"3+4@s.tar\tk@m.lmdb\t{label}", columns=columns, root=f"/data/{name}")
        for label, name in enumerate("ab")
    ]
    merged = open_index(merge_indexes(sources, tmp_path / "all.txt"))
    assert merged[1].cells == (Span("b/s.tar", 3, 4), LmdbValue("b/m.lmdb", b"k"), 1)


@pytest.mark.parametrize("roots", [["s3://a/x", "s3://b/x"], ["s3://a", "gs://a"], ["/a", "s3://a"], ["s3://a", "/a"]])
def test_roots_without_a_common_parent_are_refused(tmp_path: Path, roots: list[str]) -> None:
    sources = [write(tmp_path / f"{number}.txt", "x\t0", root=root) for number, root in enumerate(roots)]
    with pytest.raises(ArgumentError, match=rf"1\.txt: has the root {roots[1]}, which has no parent in common"):
        merge_indexes(sources, tmp_path / "all.txt")


def test_the_error_names_the_first_difference_in_columns_or_classes(tmp_path: Path) -> None:
    a = write(tmp_path / "a.txt", "x\t0", classes="cat dog")
    columns = write(tmp_path / "b.txt", "x", columns="image:path")
    fewer = write(tmp_path / "c.txt", "x\t0", classes="cat")
    other = write(tmp_path / "d.txt", "x\t0", classes="cat frog")
    for source, message in [
        (columns, r"b\.txt: has columns 'image:path', but .*a\.txt has 'image:path label:int'"),
        (fewer, r"c\.txt: has 1 classes, but .*a\.txt has 2.*match_classes=True"),
        (other, r"d\.txt: has class 1 'frog', but in .*a\.txt it is 'dog'.*Mixture\(\.\.\., match_classes=True\)"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            merge_indexes([a, a, source], tmp_path / "all.txt")
        assert not (tmp_path / "all.txt").exists()


def test_a_path_outside_its_own_root_is_refused_even_if_it_is_inside_the_new_root(tmp_path: Path) -> None:
    a = write(tmp_path / "a.txt", "x\t0", root="/data/a")
    b = write(tmp_path / "b.txt", "y\t0", "../a/x\t1", root="/data/b")
    with pytest.raises(IndexFormatError, match=r"b\.txt:5: \.\./a/x leads outside the root /data/b"):
        merge_indexes([a, b], tmp_path / "all.txt")


def test_plain_lists_merge_like_indexes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "l.txt").write_text("x y.jpg 1\n\n")
    (tmp_path / "l.csv").write_text("image,label\nz.jpg,2\n")
    merged = open_index(merge_indexes([tmp_path / "a" / "l.txt", tmp_path / "l.csv"], tmp_path / "all.txt"))
    assert [record.cells for record in merged] == [("a/x y.jpg", 1), ("z.jpg", 2)]


def test_merging_overwrites_no_source(tmp_path: Path) -> None:
    a = write(tmp_path / "a.txt", "x\t0")
    before = a.read_bytes()
    with pytest.raises(ArgumentError, match="is the source itself"):
        merge_indexes([a, a], a)
    with pytest.raises(ArgumentError, match="sources is empty"):
        merge_indexes([], a)
    with pytest.raises(FileNotFoundError):
        merge_indexes([tmp_path / "gone.txt"], tmp_path / "all.txt")
    assert a.read_bytes() == before
