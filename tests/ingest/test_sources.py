"""Folders and lists as sources: the samples that people expect, in the order of ImageFolder or of the list."""

import csv
import itertools
import os
import random
import tarfile
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, IndexFormatError, MploadWarning, StorageError
from mpload.index.columns import Cell
from mpload.index.opening import is_outside
from mpload.ingest.folder_options import IMAGE_EXTENSIONS, FolderOptions
from mpload.ingest.sorting import sorted_strings
from tests.support.ingested import JPEG, cells, make_files


def as_image_folder(folder: Path, extensions: tuple[str, ...] = IMAGE_EXTENSIONS) -> list[tuple[str, int]]:
    """Return the samples as torchvision's `make_dataset` does, by the same steps."""
    samples = []
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    for number, name in enumerate(classes):
        for root, _, names in sorted(os.walk(f"{folder}/{name}", followlinks=True)):
            samples += [
                (os.path.relpath(f"{root}/{file}", folder), number)
                for file in sorted(names)
                if file.lower().endswith(extensions)
            ]
    return samples


# Folders


def test_class_folders_get_the_order_and_numbers_of_image_folder(tmp_path: Path) -> None:
    generator = random.Random(0)
    words = ["b", "B", "a-b", "a", "a b", "\u4e2d", "\uffee", "\U0001f600", "z.z", "10", "9", "sub", "sub-a", "sub+a"]
    tree = tmp_path / "tree"
    for name in words:
        for _ in range(12):
            inner = "/".join(generator.sample(words, generator.randrange(3)))
            make_files(tree, f"{name}/{inner}/{generator.choice(words)}{generator.choice(['.jpg', '.JPEG', '.Png'])}")
    out = build_index(tree, tmp_path / "train.txt")
    assert cells(out) == as_image_folder(tree)
    index = open_index(out)
    assert index.classes == tuple(sorted(words))
    assert index.root == str(tree)


def test_undecodable_names_get_the_order_of_image_folder(tmp_path: Path) -> None:
    names = [b"\xff.jpg", b"\x80.jpg", "\uffee.jpg".encode(), "\U0001f600.jpg".encode(), b"a\nb.jpg", b"a\tb.jpg"]
    names += [b"a\\b.jpg", b"#mpload.jpg", b" a .jpg", b'a,b".jpg', b"\r.jpg"]
    folders = [b"c\xe9", "c\u00e9".encode(), b"t\ta\nb"]
    make_files(tmp_path / "tree", *(os.fsdecode(folder + b"/" + name) for folder in folders for name in names))
    out = build_index(tmp_path / "tree", tmp_path / "train.txt")
    assert cells(out) == as_image_folder(tmp_path / "tree")
    assert all((tmp_path / "tree" / str(path)).read_bytes() == JPEG for path, _ in cells(out))


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    make_files(tmp_path / "flat", "b.jpg", "a.jpg", "#c.jpg")
    (tmp_path / "flat" / "empty").mkdir()
    out = build_index(tmp_path / "flat", tmp_path / "flat.txt")
    assert cells(out) == [("#c.jpg",), ("a.jpg",), ("b.jpg",)]


def test_columns_without_a_label_list_all_images_below_the_folder(tmp_path: Path) -> None:
    make_files(tmp_path / "tree", "c/d/2.jpg", "c/1.jpg", "0.jpg")
    out = build_index(tmp_path / "tree", tmp_path / "all.txt", columns="photo:path")
    assert cells(out) == [("0.jpg",), ("c/1.jpg",), ("c/d/2.jpg",)]
    assert open_index(out)[0]["photo"] == "0.jpg"


def test_a_warning_counts_what_was_left_out(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "c/1.jpg", "c/.2.jpg", ".hidden/3.jpg", "top.jpg", "c/4.raw", "c/readme.TXT")
    (tree / "c" / "link.jpg").symlink_to("1.jpg")
    (tree / "c" / "linked").symlink_to(".")
    (tree / "c" / "folder.jpg").mkdir()
    os.mkfifo(tree / "c" / "pipe.jpg")
    with pytest.warns(MploadWarning) as warned:
        out = build_index(tree, tmp_path / "train.txt")
    assert cells(out) == [("c/1.jpg", 0)]
    assert len(warned) == 1
    assert warned[0].filename == __file__
    message = str(warned[0].message)
    assert "2 symbolic links (FolderOptions(follow_links=True) or --follow-links includes them)" in message
    assert "2 hidden images or folders" in message
    assert "(FolderOptions(hidden=True) or --hidden includes them)" in message
    assert "2 files with other extensions (FolderOptions(extensions=...) or --extensions includes them)" in message
    assert "1 images beside the class folders" in message
    assert "1 names of images that are not regular files" in message


def test_options_include_links_hidden_files_and_other_extensions(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "c/1.jpg", "c/.2.jpg", ".h/3.jpg", "c/4.raw")
    make_files(tmp_path / "elsewhere", "5.jpg")
    (tree / "link").symlink_to(tmp_path / "elsewhere")
    (tree / "c" / "6.jpg").symlink_to("1.jpg")
    options = FolderOptions(follow_links=True, hidden=True, extensions=(".jpg", ".raw"))
    out = build_index(tree, tmp_path / "train.txt", folder=options, root=tmp_path)
    assert cells(out) == [(f"tree/{path}", label) for path, label in as_image_folder(tree, (".jpg", ".raw"))]
    assert len(open_index(out)) == 6


def test_a_link_to_a_parent_folder_is_an_error(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "c/1.jpg")
    (tree / "c" / "loop").symlink_to(tree)
    with pytest.raises(ArgumentError, match="loop: is a link to a folder that contains it"):
        build_index(tree, tmp_path / "train.txt", folder=FolderOptions(follow_links=True))


@pytest.mark.parametrize("extensions", [(), ("jpg",), (".JPG",), (".",)])
def test_extensions_that_match_nothing_are_refused(extensions: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError, match="extension"):
        FolderOptions(extensions=extensions)


def test_an_empty_class_is_an_error_that_names_it(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "b/1.jpg")
    (tree / "a").mkdir()
    (tree / "c").mkdir()
    with pytest.raises(ArgumentError, match=r"found no images for the classes a, c\. Names of images end in \.jpg"):
        build_index(tree, tmp_path / "train.txt")
    assert not (tmp_path / "train.txt").exists()


def test_the_error_of_a_folder_without_images_tells_what_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="no image found"):
        build_index(tmp_path / "empty", tmp_path / "train.txt")
    make_files(tmp_path / "empty", "a/1.heic", "2.txt")
    with pytest.raises(ArgumentError, match="2 files with other extensions"):
        build_index(tmp_path / "empty", tmp_path / "train.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any directory")
def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "a/1.jpg", "b/2.jpg")
    (tree / "b").chmod(0)
    try:
        with pytest.raises(StorageError, match="b: the directory cannot be read: Permission denied"):
            build_index(tree, tmp_path / "train.txt")
    finally:
        (tree / "b").chmod(0o755)


def test_a_read_error_within_a_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_files(tmp_path / "tree", "a/1.jpg", "b/2.jpg")
    scandir = os.scandir

    class Failing:
        def __init__(self, path: str) -> None:
            self.entries = scandir(path)

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            yield next(self.entries)
            raise OSError(5, "Input/output error")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def close(self) -> None:
            self.entries.close()

    monkeypatch.setattr(os, "scandir", lambda path: Failing(path) if path.endswith("/b") else scandir(path))
    with pytest.raises(StorageError, match="tree/b: the directory cannot be read: Input/output error"):
        build_index(tree, tmp_path / "train.txt")


# Sorting


@given(
    strings=st.lists(st.text("ab\0\n\\\xff\udcff\udc80\ud800\uffee\U0001f600"), max_size=60),
    run_bytes=st.integers(1, 2000),
)
def test_an_external_sort_returns_sorted_strings(
    tmp_path_factory: pytest.TempPathFactory, strings: list[str], run_bytes: int
) -> None:
    with sorted_strings(iter(strings), folder=tmp_path_factory.getbasetemp(), run_bytes=run_bytes) as found:
        assert list(found) == sorted(strings)


def test_sorting_uses_bounded_memory_and_leaves_no_file(tmp_path: Path) -> None:
    names = (f"some/directory\0{number * 7919 % 100_003:09d}.jpg" for number in range(100_000))
    tracemalloc.start()
    try:
        with sorted_strings(names, folder=tmp_path, run_bytes=1 << 19) as found:
            assert list(tmp_path.iterdir()) == []
            assert all(name < following for name, following in itertools.pairwise(found))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 << 20  # all names together take 9 MB


def test_a_class_larger_than_memory_has_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_files(tmp_path / "tree", *(f"c{n % 3}/d{n % 7}/{n * 37 % 1000}.jpg" for n in range(1000)))
    monkeypatch.setattr(
        "mpload.ingest.folders.sorted_strings", lambda keys, folder: sorted_strings(keys, folder=folder, run_bytes=2000)
    )
    assert cells(build_index(tree, tmp_path / "train.txt")) == as_image_folder(tree)


def test_a_folder_that_cannot_hold_the_temporary_file_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="the temporary file for sorting names cannot be written"),
        sorted_strings(iter("ab"), folder=tmp_path / "gone", run_bytes=1),
    ):
        pass


# Lists


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("l.txt", "a b.jpg 0\nc.jpg 1\n", [("a b.jpg", 0), ("c.jpg", 1)]),
        ("l.txt", "a.jpg\t0\r\nc.jpg\t1", [("a.jpg", 0), ("c.jpg", 1)]),
        ("l.txt", "\ufeffa.jpg 5\n\n\n", [("a.jpg", 5)]),
        ("l.txt", "a.jpg\nb.jpg\n", [("a.jpg",), ("b.jpg",)]),
        ("l.csv", 'image,label\n"a,""b"".jpg",3\nc.jpg,-4\n', [('a,"b".jpg', 3), ("c.jpg", -4)]),
        ("l.csv", "a.jpg,0,0.5,red\n", [("a.jpg", 0, 0.5, "red")]),
    ],
)
def test_common_kinds_of_lists_become_indexes(
    tmp_path: Path, name: str, text: str, expected: list[tuple[Cell, ...]]
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "out").mkdir()
    out = build_index(tmp_path / name, tmp_path / "out" / "i.txt")
    assert cells(out) == expected
    assert open_index(out).root == str(tmp_path)
    assert not (tmp_path / f"{name}.mpx").exists()


def test_quoted_cells_of_a_csv_may_contain_newlines(tmp_path: Path) -> None:
    text = 'path,caption,n\na.jpg,"two\nlines, ""quoted""",1\n"b\r\n.jpg","",2\r\nc.jpg,"\n\n",3\n'
    (tmp_path / "l.csv").write_bytes(text.encode())
    found = cells(build_index(tmp_path / "l.csv", tmp_path / "i.txt"))
    assert found == [("a.jpg", 'two\nlines, "quoted"', 1), ("b\r\n.jpg", "", 2), ("c.jpg", "\n\n", 3)]


@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)] * 2), min_size=1
    )
)
def test_what_the_csv_module_writes_is_read_again(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    with (folder / "l.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["path", "caption"])
        writer.writerows((f"x{number}{name}", caption) for number, (name, caption) in enumerate(rows))
    index = build_index(folder / "l.csv", folder / "i.txt", columns="path:str caption:str")
    assert cells(index) == [(f"x{number}{name}", caption) for number, (name, caption) in enumerate(rows)]


def test_a_quote_that_is_never_closed_is_an_error_of_its_line(tmp_path: Path) -> None:
    for rest in ("", "b.jpg,2\n" * 50_000):
        (tmp_path / "l.csv").write_text(f'image,label\na.jpg,1\nc.jpg,"2\n{rest}')
        with pytest.raises(IndexFormatError, match=r"l\.csv:3: a quote is not closed"):
            build_index(tmp_path / "l.csv", tmp_path / "i.txt")


def test_columns_of_a_list_can_be_given_names_and_types(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("a.jpg,0,b.jpg\n")
    index = open_index(build_index(tmp_path / "l.csv", tmp_path / "i.txt", columns="lr:path kind:str hr:path"))
    assert index[0].cells == ("a.jpg", "0", "b.jpg")
    assert index[0]["hr"] == "b.jpg"
    with pytest.raises(IndexFormatError, match=r"l\.csv:1: has 3 cells"):
        build_index(tmp_path / "l.csv", tmp_path / "j.txt", columns="image:path label:int")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a.jpg 0\nb.jpg x\n", r"l\.txt:2: .*'x' is not an integer"),
        (b"a.jpg 0\n\nb.jpg 1\n", r"l\.txt:2: is blank"),
        (b"a.jpg 0\n" + b"b" * 1_000_000 + b" 1\nc.jpg 2\n", r"l\.txt:2: is longer than"),
        (b"a.jpg 0\nb\0.jpg 1\n", r"l\.txt:2: contains a NUL byte"),
        (b"a.jpg 0\n../b.jpg 1\n", r"l\.txt:2: \.\./b\.jpg leads outside the root"),
        (b"a.jpg 0\n/b.jpg 1\n", r"l\.txt:2: /b\.jpg leads outside the root .*root='/'"),
        (b"a.jpg\t0\nb.jpg\n", r"l\.txt:2: has 1 cell"),
        (b"#mpload 1\n#columns image:path\na.jpg\r\n", "CRLF"),
        (b"", "no sample"),
        (b"\n\n", "no sample"),
    ],
)
def test_the_error_of_a_broken_list_names_the_line(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "l.txt").write_bytes(text)
    with pytest.raises(IndexFormatError, match=message):
        build_index(tmp_path / "l.txt", tmp_path / "i.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.txt"]


@pytest.mark.parametrize("server", ["https://data.example.com:8443", "s3://bucket"])
def test_the_root_of_a_list_of_urls_is_their_server(tmp_path: Path, server: str) -> None:
    listed = tmp_path / "l.csv"
    listed.write_text(f"image,label\n{server}/a/x.jpg,0\n{server}/b/y.jpg,1\n")
    index = build_index(listed, tmp_path / "i.txt")
    assert open_index(index).root == server
    assert [row[0] for row in cells(index)] == [f"{server}/a/x.jpg", f"{server}/b/y.jpg"]


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        (["https://a.example.com/x.jpg", "https://b.example.com/x.jpg"], r"txt:2: .* outside the root .* one server"),
        (["https://a.example.com/x.jpg", "https://me:word@a.example.com/y.jpg"], r"txt:2: .*contains a password"),
        (["https://me:word@a.example.com/x.jpg"], r"txt:1: .*contains a password"),
    ],
)
def test_a_url_of_another_server_or_with_a_password_is_an_error_of_its_line(
    tmp_path: Path, urls: list[str], message: str
) -> None:
    listed = tmp_path / "l.txt"
    listed.write_text("".join(f"{url}\t0\n" for url in urls))
    with pytest.raises(IndexFormatError, match=message) as caught:
        build_index(listed, tmp_path / "i.txt", columns="image:path label:int")
    assert "me:word" not in str(caught.value)


def test_absolute_paths_in_a_list_are_kept_if_the_root_contains_them(tmp_path: Path) -> None:
    make_files(tmp_path / "data", "a.jpg")
    (tmp_path / "l.txt").write_text(f"{tmp_path}/data/a.jpg 1\n")
    out = build_index(tmp_path / "l.txt", tmp_path / "i.txt", root="/")
    assert cells(out) == [(f"{tmp_path}/data/a.jpg", 1)]


@pytest.mark.parametrize(
    ("path", "root", "outside"),
    [
        ("a/b.jpg", "/r", False),
        ("a/../b.jpg", "/r", False),
        ("a..b.jpg", "/r", False),
        ("../b.jpg", "/r", True),
        ("../r/b.jpg", "/r", False),
        ("a/../../rr/b.jpg", "/r", True),
        ("/r/b.jpg", "/r", False),
        ("/rr/b.jpg", "/r", True),
        ("/b.jpg", "/", False),
        ("a/../../b.jpg", "s3://bucket/r", True),
        ("a/../b.jpg", "s3://bucket/r", False),
        ("/b.jpg", "s3://bucket/r", True),
    ],
)
def test_paths_outside_the_root_are_recognised(path: str, root: str, outside: bool) -> None:
    assert is_outside(path, root) is outside


# Invalid sources


def test_the_error_of_an_invalid_source_tells_what_to_give_instead(tmp_path: Path) -> None:
    make_files(tmp_path, "one.jpg")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "list.txt").write_text("one.jpg 0\n")
    cases: Sequence[tuple[str | list[str], type[Exception], str]] = [
        ("gone", StorageError, "gone: the source cannot be read: No such file"),
        ("one.jpg", ArgumentError, r"one\.jpg: is one image. Give the folder"),
        ("pipe", ArgumentError, "pipe: is a device, pipe or socket"),
        ([], ArgumentError, "source is an empty list"),
        (["list.txt", "list.txt"], ArgumentError, r"list\.txt: is not a tar shard.*mpload merge"),
    ]
    for source, error, message in cases:
        paths = [tmp_path / part for part in source] if isinstance(source, list) else tmp_path / source
        with pytest.raises(error, match=message):
            build_index(paths, tmp_path / "i.txt")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("l.txt", {"extensions": (".jpg",)}, r"l\.txt: extensions \(--extensions\) .* of kind 'list'\. Leave it out"),
        ("t.tar", {"beside": {"mask": "{}.png"}}, r"beside \(--beside\) .* of kind 'tar'"),
    ],
)
def test_an_option_without_effect_on_a_source_is_refused(
    tmp_path: Path, source: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "l.txt").write_text("a.jpg 1\n")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.add(tmp_path / "l.txt", "a.jpg")
    with pytest.raises(ArgumentError, match=message):
        build_index(tmp_path / source, tmp_path / "x.txt", folder=FolderOptions(**options))
