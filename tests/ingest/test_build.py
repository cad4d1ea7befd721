"""Building an index: it is complete, has the right root, and destroys no other file."""

import hashlib
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, SampleError, StorageError
from mpload.index.columns import parse_columns
from mpload.index.text import format_header, read_header
from mpload.ingest import writing
from mpload.ingest.image_sizes import measure_sizes
from mpload.ingest.lists import open_list
from mpload.ingest.rows import Rows
from mpload.ingest.splitting import Split, part_of
from mpload.ingest.threads import map_in_threads
from mpload.ingest.writing import write_texts
from mpload.storage.ranges import Span


def make_tree(folder: Path, *, classes: int = 2, images: int = 5) -> Path:
    """Make class folders `c0`, `c1` and so on. Image `i` of each has `100 + i` bytes."""
    for number in range(classes):
        (folder / f"c{number}").mkdir(parents=True)
        for image in range(images):
            (folder / f"c{number}" / f"{image}.jpg").write_bytes(bytes(100 + image))
    return folder


def paths_of(*indexes: Path) -> list[str]:
    return [str(record.cells[0]) for index in indexes for record in open_index(index)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


file_names = st.binary(min_size=1, max_size=20).filter(
    lambda name: not set(name) & set(b"/\0") and name not in {b".", b".."} and not name.startswith(b".")
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(folders=st.dictionaries(file_names, st.sets(file_names, min_size=1, max_size=3), min_size=1, max_size=3))
def test_any_valid_file_name_is_indexed_unchanged(
    tmp_path_factory: pytest.TempPathFactory, folders: dict[bytes, set[bytes]]
) -> None:
    place = tmp_path_factory.mktemp("names")
    written = {}
    for folder, names in folders.items():
        for name in names:
            path = place / "tree" / os.fsdecode(folder) / os.fsdecode(name + b".jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name)
            written[os.fsdecode(folder + b"/" + name + b".jpg")] = name
    index = open_index(build_index(place / "tree", place / "i.txt", with_sizes=True, num_workers=2))
    assert sorted(str(record.cells[0]) for record in index) == sorted(written)
    assert index.classes == tuple(sorted(map(os.fsdecode, folders)))
    for record in index:
        name = written[str(record["image"])]
        assert (Path(index.root) / str(record["image"])).read_bytes() == name
        assert index.nbytes is not None
        assert index.nbytes[record.sample_id] == len(name)


# Root


def test_the_root_is_absolute_or_relative_or_omitted(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "data" / "tree")
    (tmp_path / "lists").mkdir()
    absolute = build_index(tree, tmp_path / "lists" / "a.txt")
    relative = build_index(tree, tmp_path / "lists" / "r.txt", relative=True)
    inside = build_index(tree, tree / "i.txt")
    assert read_header(absolute).root == str(tree)
    assert read_header(relative).root == "../data/tree"
    assert read_header(inside).root is None
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "moved").rename(tmp_path / "data")
    assert {open_index(out).root for out in (absolute, relative, inside)} == {str(tree)}


def test_with_a_parent_as_the_root_paths_start_with_the_source_folder(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "data" / "tree", classes=1, images=1)
    index = open_index(build_index(tree, tmp_path / "a.txt", root=tmp_path))
    assert index.root == str(tmp_path)
    assert index[0]["image"] == "data/tree/c0/0.jpg"
    with pytest.raises(ArgumentError, match="does not contain the source"):
        build_index(tree, tmp_path / "b.txt", root=tmp_path / "other")


def test_a_url_can_be_the_root_of_a_local_copy(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", classes=1, images=1)
    for relative in (False, True):
        out = build_index(tree, tmp_path / "a.txt", root="s3://bucket/train", relative=relative)
        assert read_header(out).root == "s3://bucket/train"
        assert paths_of(out) == ["c0/0.jpg"]


def test_an_index_with_a_new_root_keeps_everything_else(tmp_path: Path) -> None:
    first = build_index(make_tree(tmp_path / "old"), tmp_path / "a.txt")
    (tmp_path / "old").rename(tmp_path / "new")
    second = build_index(first, tmp_path / "b.txt", root=tmp_path / "new", with_sizes=True)
    old, new = open_index(first), open_index(second)
    assert [record.cells for record in old] == [record.cells for record in new]
    assert (new.root, new.classes, new.fingerprint) == (str(tmp_path / "new"), old.classes, old.fingerprint)


def test_an_index_rebuilt_in_another_folder_refers_to_the_same_files(tmp_path: Path) -> None:
    first = build_index(make_tree(tmp_path / "tree"), tmp_path / "tree" / "a.txt")
    (tmp_path / "lists").mkdir()
    second = build_index(first, tmp_path / "lists" / "b.txt", relative=True)
    assert open_index(second).root == str(tmp_path / "tree")


# Split


@given(
    fractions=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    cells=st.lists(st.text(max_size=5), max_size=50),
)
def test_the_part_of_a_sample_depends_only_on_the_sample(fractions: list[int], cells: list[str]) -> None:
    split = Split.of([fraction / sum(fractions) for fraction in fractions])
    parts = [part_of(cell, split.bounds) for cell in cells]
    assert all(0 <= part < len(fractions) for part in parts)
    assert [part_of(cell, split.bounds) for cell in reversed(cells)] == parts[::-1]


def test_the_split_never_changes_between_versions() -> None:
    bounds = Split.of({"train": 0.8, "val": 0.1, "test": 0.1}).bounds
    parts = bytes(part_of(f"c/{number}.jpg", bounds) for number in range(10_000))
    assert [parts.count(part) for part in range(3)] == [8053, 942, 1005]
    assert hashlib.blake2b(parts, digest_size=8).hexdigest() == "db6f05fd123c129d"


def test_the_files_of_a_split_are_named_after_its_parts_and_hold_all_samples(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", images=50)
    whole = build_index(tree, tmp_path / "data.txt")
    named = build_index(tree, tmp_path / "data.txt", split={"train": 0.5, "val": 0.5})
    assert named == (tmp_path / "data.train.txt", tmp_path / "data.val.txt")
    counted = build_index(whole, tmp_path / "data.txt.x", split=[0.5, 0.5])
    assert counted == (tmp_path / "data.txt.0.x", tmp_path / "data.txt.1.x")
    assert sorted(paths_of(*named)) == paths_of(whole)
    assert paths_of(named[0]) == paths_of(counted[0])  # the names of the parts make no difference
    assert {open_index(path).classes for path in named} == {("c0", "c1")}


def test_a_sample_stays_in_its_part_when_data_are_added(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", images=40)
    before = [set(paths_of(path)) for path in build_index(tree, tmp_path / "a.txt", split=[0.7, 0.3])]
    make_tree(tree / "c0" / "more", images=40)
    after = [set(paths_of(path)) for path in build_index(tree, tmp_path / "b.txt", split=[0.7, 0.3])]
    assert all(old < new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ([0.9, 0.2], "must sum to 1"),
        ([0.9], "must sum to 1, got .* Name the rest too"),
        ([], r"must be in \(0, 1\]"),
        ([1.0, 0.0], r"must be in \(0, 1\]"),
        ([float("nan")], r"must be in \(0, 1\]"),
        ({"a/b": 1.0}, "part 'a/b' of the split cannot be used in a file name"),
        ({"": 1.0}, "part '' of the split"),
        ([1 - 1e-9, 1e-9], r"a\.1\.txt: none of the 10 samples falls into this part"),
    ],
)
def test_an_invalid_split_is_refused(tmp_path: Path, split: Any, message: str) -> None:
    make_tree(tmp_path / "tree")
    with pytest.raises(ArgumentError, match=message):
        build_index(tmp_path / "tree", tmp_path / "a.txt", split=split)
    assert names_in(tmp_path) == ["tree"]


# Sizes


def test_sizes_are_the_sizes_of_files_and_spans(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", classes=2, images=700)
    index = open_index(build_index(tree, tmp_path / "a.txt", with_sizes=True, num_workers=3))
    assert index.nbytes is not None
    assert index.nbytes[:].tolist() == [100 + int(Path(path).stem) for path in paths_of(tmp_path / "a.txt")]
    assert index.labels[:].tolist() == [0] * 700 + [1] * 700
    pairs = tmp_path / "pairs.txt"
    pairs.write_bytes(
        format_header(columns=parse_columns("lr:span hr:path"), root="tree") + b"3+40@nowhere.tar\tc0/7.jpg\n"
    )
    progress: list[int] = []
    measure_sizes(open_index(pairs), progress=progress.append)
    assert np.asarray(open_index(pairs).nbytes).tolist() == [147]
    assert progress == [1]


def test_sizes_change_neither_fingerprint_nor_records(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    plain = open_index(build_index(tree, tmp_path / "a.txt"))
    sized = open_index(build_index(tree, tmp_path / "b.txt", with_sizes=True))
    assert plain.nbytes is None
    assert (plain.fingerprint, list(plain)) == (sized.fingerprint, list(sized))


def test_the_error_of_a_missing_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a.jpg 0\nb.jpg 1\n")
    (tmp_path / "a.jpg").touch()
    with pytest.raises(SampleError, match=r"i\.txt:4: b\.jpg: No such file or directory, below"):
        build_index(tmp_path / "l.txt", tmp_path / "i.txt", with_sizes=True)


@pytest.mark.parametrize(
    ("columns", "line", "message"),
    [("a:lmdb", b"1@x.lmdb\n", "lmdb values cannot be measured"), ("a:path", b"x\n", "at s3://b cannot be measured")],
)
def test_sizes_that_cannot_be_measured_are_refused(tmp_path: Path, columns: str, line: bytes, message: str) -> None:
    path = tmp_path / "i.txt"
    path.write_bytes(format_header(columns=parse_columns(columns), root="s3://b") + line)
    with pytest.raises(ArgumentError, match=message):
        measure_sizes(open_index(path))


def test_results_from_threads_are_in_order_and_items_are_taken_lazily() -> None:
    taken = 0

    def items() -> Any:
        nonlocal taken
        for number in range(1, 101):
            taken = number
            yield number

    results = map_in_threads(lambda number: number * 2, items(), num_workers=3)
    assert next(results) == 2
    assert taken <= 6
    assert list(results) == list(range(4, 202, 2))
    with pytest.raises(ArgumentError, match="num_workers must be positive"):
        next(map_in_threads(abs, [1], num_workers=0))


# Complete or not at all


def test_an_index_must_not_overwrite_its_source(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    index = build_index(tree, tmp_path / "a.0.txt")
    (tmp_path / "link.txt").symlink_to(index)
    before = index.read_bytes()
    cases: list[tuple[Path, str | Path, list[float] | None]] = [
        (index, index, None),
        (tmp_path / "link.txt", index, None),
        (index, "a.txt", [0.5, 0.5]),
    ]
    for source, out, split in cases:
        with pytest.raises(ArgumentError, match="is the source itself"):
            build_index(source, tmp_path / out, split=split)
    assert index.read_bytes() == before


def test_an_index_replaces_nothing_but_an_index(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "tree")
    for content in (b"a shard", b"#mploa"):
        (tmp_path / "shard.tar").write_bytes(content)
        with pytest.raises(ArgumentError, match=r"shard\.tar: is not an index, so no index replaces it"):
            build_index(source, tmp_path / "shard.tar")
        assert (tmp_path / "shard.tar").read_bytes() == content
    (tmp_path / "empty.txt").touch()
    build_index(source, tmp_path / "empty.txt")
    build_index(source, tmp_path / "empty.txt")


def test_an_impossible_path_for_the_index_is_refused(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    with pytest.raises(ArgumentError, match=r"is a directory\. Name the index file"):
        build_index(tree, tmp_path)
    with pytest.raises(ArgumentError, match=r"gone: no such folder\. Create it: mkdir -p"):
        build_index(tree, tmp_path / "gone" / "a.txt")


def test_an_older_index_is_kept_until_the_new_one_is_complete(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    index = build_index(tree, tmp_path / "a.txt")
    before = index.read_bytes()
    (tree / "c2").mkdir()  # found to be empty only after all others are written
    with pytest.raises(ArgumentError, match="found no images for the classes c2"):
        build_index(tree, index)
    assert index.read_bytes() == before
    (tree / "c2" / "0.jpg").touch()
    assert len(open_index(build_index(tree, index))) == 11
    assert names_in(tmp_path) == ["a.txt", "a.txt.mpx", "tree"]


def test_a_new_text_of_the_same_size_and_time_gets_a_new_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        os.utime(descriptor, ns=(0, 0))

    monkeypatch.setattr(os, "fsync", fsync)
    for label in (1, 2):
        (tmp_path / "l.txt").write_text(f"a.jpg {label}\n")
        out = build_index(tmp_path / "l.txt", tmp_path / "i.txt")
        assert open_index(out).labels[:].tolist() == [label]


@pytest.mark.parametrize("split", [None, [0.5, 0.5]])
def test_a_full_disk_leaves_no_incomplete_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: list[float] | None
) -> None:
    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    tree = make_tree(tmp_path / "tree", images=50)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match=r"cannot be written: No space left on device\. Free some space"):
        build_index(tree, tmp_path / "a.txt", split=split)
    assert names_in(tmp_path) == ["tree"]


@pytest.mark.processes
def test_a_killed_build_leaves_no_index(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom mpload import build_index\n"
        "build_index(sys.argv[1], sys.argv[2], progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))"
    )
    tree = make_tree(tmp_path / "tree")
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tree), str(tmp_path / "a.txt")], check=False, cwd=Path(__file__).parents[2]
    )
    assert ended.returncode == -9
    assert not (tmp_path / "a.txt").exists()


def test_an_error_of_the_source_is_raised_unchanged(tmp_path: Path) -> None:
    def cells() -> Any:
        yield ["a"]
        raise StorageError("the shard broke")

    rows = Rows(columns=parse_columns("image:path"), root=str(tmp_path), cells=cells())
    with pytest.raises(StorageError, match=r"^the shard broke$"):
        write_texts(rows, tmp_path / "a.txt", split=None, relative=False, progress=None)
    assert names_in(tmp_path) == []


def test_progress_is_called_with_the_number_of_samples_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_PROGRESS_SAMPLES", 4)
    calls: list[int] = []
    build_index(make_tree(tmp_path / "tree"), tmp_path / "a.txt", progress=calls.append)
    assert calls == [4, 8, 10]


def test_spans_with_unusual_paths_are_written_unchanged(tmp_path: Path) -> None:
    spans = [Span("a@b+1.tar", 0, 5), Span("\udcff\t.tar", 7, 0)]
    rows = Rows(columns=parse_columns("image:span"), root=str(tmp_path), cells=iter([span] for span in spans))
    (first,) = write_texts(rows, tmp_path / "a.txt", split=None, relative=False, progress=None)
    second = build_index(first, tmp_path / "b.txt")
    assert [record["image"] for record in open_index(second)] == spans


@pytest.mark.slow
def test_memory_does_not_grow_with_the_list(tmp_path: Path) -> None:
    def peak_bytes(count: int) -> int:
        (tmp_path / "l.txt").write_text("".join(f"some/folder/{number:09d}.jpg 1\n" for number in range(count)))
        tracemalloc.start()
        try:
            with open_list(tmp_path / "l.txt") as rows:
                write_texts(rows, tmp_path / "i.txt", split=None, relative=False, progress=None)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(10)
    few = peak_bytes(40_000)
    assert peak_bytes(80_000) < few + 1_000_000  # the paths alone would be 3.2 MB more
