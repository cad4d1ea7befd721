"""Folders, tar shards and lists as sources: the same samples, in the order that people know."""

import gzip
import io
import itertools
import os
import random
import tarfile
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, IndexFormatError, MploadWarning, StorageError
from mpload.index.columns import Cell, Span
from mpload.index.folders import IMAGE_EXTENSIONS, FolderOptions
from mpload.index.rows import is_outside
from mpload.index.sorting import sorted_strings
from mpload.index.tars import open_tars

JPEG: bytes = simplejpeg.encode_jpeg(np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8))


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def make_files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPEG)
    return folder


def make_tar(path: Path, *members: tuple[str, bytes], tar_format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def cells(path: Path) -> list[tuple[Cell, ...]]:
    return [record.cells for record in open_index(path)]


def read_span(root: Path, cell: Cell) -> bytes:
    assert isinstance(cell, Span)
    return (root / cell.path).read_bytes()[cell.offset_bytes :][: cell.length_bytes]


def as_image_folder(folder: Path, extensions: tuple[str, ...] = IMAGE_EXTENSIONS) -> list[tuple[str, int]]:
    """What torchvision's `make_dataset` does, word for word."""
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


def test_a_class_tree_has_the_order_and_the_numbers_of_image_folder(tmp_path: Path) -> None:
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


def test_names_of_undecodable_bytes_are_ordered_as_image_folder_orders_them(tmp_path: Path) -> None:
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


def test_columns_without_a_label_take_all_images_below(tmp_path: Path) -> None:
    make_files(tmp_path / "tree", "c/d/2.jpg", "c/1.jpg", "0.jpg")
    out = build_index(tmp_path / "tree", tmp_path / "all.txt", columns="photo:path")
    assert cells(out) == [("0.jpg",), ("c/1.jpg",), ("c/d/2.jpg",)]
    assert open_index(out)[0]["photo"] == "0.jpg"


def test_columns_of_a_folder_can_be_renamed_but_not_retyped(tmp_path: Path) -> None:
    make_files(tmp_path / "tree", "c/1.jpg")
    out = build_index(tmp_path / "tree", tmp_path / "a.txt", columns="photo:path species:int")
    assert open_index(out)[0]["species"] == 0
    with pytest.raises(ArgumentError, match="do not fit this source, which gives 'image:path label:int'"):
        build_index(tmp_path / "tree", tmp_path / "a.txt", columns="photo:path species:int more:int")


def test_what_is_left_out_is_counted_and_told(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "c/1.jpg", "c/.2.jpg", ".hidden/3.jpg", "top.jpg", "c/4.raw", "c/readme.TXT")
    (tree / "c" / "link.jpg").symlink_to("1.jpg")
    (tree / "linked").symlink_to("c")
    (tree / "c" / "folder.jpg").mkdir()
    os.mkfifo(tree / "c" / "pipe.jpg")
    with pytest.warns(MploadWarning) as warned:
        out = build_index(tree, tmp_path / "train.txt")
    assert cells(out) == [("c/1.jpg", 0)]
    assert len(warned) == 1
    assert warned[0].filename == __file__
    message = str(warned[0].message)
    assert "2 symbolic links (FolderOptions(follow_links=True)" in message
    assert "2 hidden images or folders" in message
    assert "2 files of other extensions" in message
    assert "1 images beside the class folders" in message
    assert "1 names of images that are no regular files" in message


def test_links_hidden_files_and_extensions_are_options(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "c/1.jpg", "c/.2.jpg", ".h/3.jpg", "c/4.raw")
    make_files(tmp_path / "elsewhere", "5.jpg")
    (tree / "link").symlink_to(tmp_path / "elsewhere")
    (tree / "c" / "6.jpg").symlink_to("1.jpg")
    options = FolderOptions(follow_links=True, hidden=True, extensions=(".jpg", ".raw"))
    out = build_index(tree, tmp_path / "train.txt", folder=options)
    assert cells(out) == as_image_folder(tree, (".jpg", ".raw"))
    assert len(open_index(out)) == 6


def test_a_link_to_a_folder_above_is_an_error(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "c/1.jpg")
    (tree / "c" / "loop").symlink_to(tree)
    with pytest.raises(ArgumentError, match="loop: is a link to a folder that it lies in"):
        build_index(tree, tmp_path / "train.txt", folder=FolderOptions(follow_links=True))


@pytest.mark.parametrize("extensions", [(), ("jpg",), (".JPG",), (".",)])
def test_extensions_that_match_nothing_are_refused(extensions: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError, match="extension"):
        FolderOptions(extensions=extensions)


def test_an_empty_class_is_an_error_that_names_it(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "b/1.jpg")
    (tree / "a").mkdir()
    (tree / "c").mkdir()
    with pytest.raises(ArgumentError, match=r"found no image for the classes a, c\. Images end with \.jpg"):
        build_index(tree, tmp_path / "train.txt")
    assert not (tmp_path / "train.txt").exists()


def test_a_folder_without_images_is_an_error_that_says_what_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="no image found"):
        build_index(tmp_path / "empty", tmp_path / "train.txt")
    make_files(tmp_path / "empty", "a/1.heic", "2.txt")
    with pytest.raises(ArgumentError, match="2 files of other extensions"):
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


def test_a_directory_that_fails_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@settings(deadline=None)  # it writes files
@given(
    strings=st.lists(st.text("ab\0\n\\\xff\udcff\udc80\ud800\uffee\U0001f600"), max_size=60),
    run_bytes=st.integers(1, 2000),
)
def test_an_external_sort_is_sorted(
    tmp_path_factory: pytest.TempPathFactory, strings: list[str], run_bytes: int
) -> None:
    with sorted_strings(iter(strings), folder=tmp_path_factory.getbasetemp(), run_bytes=run_bytes) as found:
        assert list(found) == sorted(strings)


def test_sorting_takes_bounded_memory_and_leaves_no_file(tmp_path: Path) -> None:
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
        "mpload.index.folders.sorted_strings", lambda keys, folder: sorted_strings(keys, folder=folder, run_bytes=2000)
    )
    assert cells(build_index(tree, tmp_path / "train.txt")) == as_image_folder(tree)


def test_no_room_for_the_sort_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="the temporary file for sorting names cannot be written"),
        sorted_strings(iter("ab"), folder=tmp_path / "gone", run_bytes=1),
    ):
        pass


# Tar shards


def test_tar_members_become_spans_of_their_very_bytes(tmp_path: Path) -> None:
    data = {f"{n}.jpg": JPEG + bytes([n]) for n in range(5)}
    shards = tmp_path / "shards"
    shards.mkdir()
    make_tar(
        shards / "b.tar", *((f"x/{n}.{e}", v) for n in (0, 1) for e, v in (("cls", b" 7\n"), ("jpg", data[f"{n}.jpg"])))
    )
    make_tar(
        shards / "a.tar",
        *((f"x/{n}.{e}", v) for n in (2, 3, 4) for e, v in (("JPG", data[f"{n}.jpg"]), ("json", b'{"label": 9}'))),
    )
    out = build_index(shards, tmp_path / "train.txt")
    index = open_index(out)
    assert [str(column) for column in index.columns] == ["image:span", "label:int"]
    assert [read_span(shards, record["image"]) for record in index] == [data[f"{n}.jpg"] for n in (2, 3, 4, 0, 1)]
    assert np.asarray(index.labels).tolist() == [9, 9, 9, 7, 7]


def test_one_shard_and_a_list_of_shards_are_sources(tmp_path: Path) -> None:
    for folder in ("p/q", "p/r"):
        (tmp_path / folder).mkdir(parents=True)
    b = make_tar(tmp_path / "p/q/b.tar", ("0.png", JPEG))
    a = make_tar(tmp_path / "p/r/a.tar", ("1.png", JPEG))
    unnamed = make_tar(tmp_path / "p/shard", ("2.png", JPEG))
    index = open_index(build_index([b, str(a)], tmp_path / "two.txt"))
    assert index.root == str(tmp_path / "p")
    assert [record["image"] for record in index] == [Span("q/b.tar", 512, len(JPEG)), Span("r/a.tar", 512, len(JPEG))]
    index = open_index(build_index(unnamed, tmp_path / "one.txt"))
    assert read_span(Path(index.root), index[0]["image"]) == JPEG


def test_several_images_of_a_sample_are_columns(tmp_path: Path) -> None:
    tar = make_tar(
        tmp_path / "pairs.tar",
        *((f"{n}.{e}", f"{n}{e}".encode()) for n in range(2) for e in ("lr.png", "1x.webp", "hr.PNG", "jpg")),
    )
    index = open_index(build_index(tar, tmp_path / "pairs.txt"))
    assert [str(column) for column in index.columns] == ["image:span", "_1x:span", "hr:span", "lr:span"]
    assert read_span(tmp_path, index[1]["lr"]) == b"1lr.png"
    assert read_span(tmp_path, index[1]["hr"]) == b"1hr.PNG"


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_strange_names_lead_to_the_right_bytes(tmp_path: Path, tar_format: int) -> None:
    names = ["d" * 120 + "/" + "n" * 140, "\u4e2d\u6587/x", "a\tb\nc", "\udcff", "./dir.with.dot/7"]
    members = [
        (f"{name}.{e}", v)
        for n, name in enumerate(names)
        for e, v in (("jpg", JPEG + bytes([n])), ("cls", str(n).encode()))
    ]
    index = open_index(build_index(make_tar(tmp_path / "x.tar", *members, tar_format=tar_format), tmp_path / "x.txt"))
    assert [read_span(tmp_path, record["image"])[-1] for record in index] == [0, 1, 2, 3, 4]
    assert np.asarray(index.labels).tolist() == [0, 1, 2, 3, 4]


def test_other_members_are_left_out_and_told(tmp_path: Path) -> None:
    tar = make_tar(
        tmp_path / "x.tar",
        ("meta.json", b'{"made": "by"}'),
        ("list.json", b"[1]"),
        ("._0.jpg", b"mac"),
        ("README", b"x"),
        ("0.txt", b"caption"),
        ("0.cls", b"3"),
        ("0.json", b'{"label": 4}'),
        ("0.jpg", JPEG),
    )
    with pytest.warns(MploadWarning, match="5 files of other extensions"):
        out = build_index(tar, tmp_path / "x.txt")
    assert cells(out)[0][1] == 3  # .cls goes before .json


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["0.jpg", "0.cls", "1.jpg"], r"x\.tar: sample '1' has no label member like 0\.cls"),
        (["0.jpg", "1.jpg", "1.cls"], r"sample '1' has a label \(1\.cls\), which the first sample has not"),
        (["0.a.jpg", "0.b.jpg", "1.a.jpg"], r"sample '1' has no member like 0\.b\.jpg \(column b\)"),
        (["0.jpg", "1.jpg", "1.b.jpg"], r"sample '1' has a member 1\.b\.jpg \(column b\), which the first"),
        (["0.jpg", "0.cls", "1.cls", "2.jpg"], r"sample '1' has a label \(1\.cls\) but no image"),
        (["0.cls", "1.jpg"], r"sample '0' has a label \(0\.cls\) but no image"),
        (["0.jpg", "0.jpg"], r"member 0\.jpg stands twice in a row"),
        (["0.jpg", "0.cls", "0.cls"], r"member 0\.cls stands twice in a row"),
        (["0.jpg", "0.png"], r"member 0\.png and 0\.jpg are both column image"),
        (["0.txt"], r"x\.tar: no image found"),
        ([], r"x\.tar: no image found"),
    ],
)
def test_samples_that_are_not_alike_are_errors(tmp_path: Path, members: list[str], message: str) -> None:
    tar = make_tar(tmp_path / "x.tar", *((name, b"5" if name.endswith("cls") else JPEG) for name in members))
    with pytest.raises(ArgumentError, match=message):
        build_index(tar, tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("0.cls", b"cat", r"member 0\.cls holds 'cat', where a label must be an integer"),
        ("0.cls", b"", "must be an integer"),
        ("0.cls", str(2**63).encode(), "integer of 64 bits"),
        ("0.json", b'{"label": "cat"}', "holds 'cat'"),
        ("0.json", b'{"cls": true}', "holds True"),
        ("0.json", b'{"cls": 1e400}', "holds inf"),
        ("0.json", b'{"cls"', r"member 0\.json is no JSON"),
        ("0.json", b"[" * 100_000, "is no JSON"),
        ("0.json", b"\xff\xfe\x00", "is no JSON"),
    ],
)
def test_a_label_member_must_hold_an_integer(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build_index(make_tar(tmp_path / "x.tar", ("0.jpg", JPEG), (name, data)), tmp_path / "x.txt")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar", "x"])
def test_a_compressed_tar_is_refused_by_name_or_content(tmp_path: Path, name: str) -> None:
    tar = make_tar(tmp_path / "plain", ("0.jpg", JPEG))
    (tmp_path / name).write_bytes(gzip.compress(tar.read_bytes()))
    with pytest.raises(ArgumentError, match=r"compressed.* Decompress it"):
        build_index(tmp_path / name, tmp_path / "x.txt")


def test_a_compressed_tar_in_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    make_tar(tmp_path / "shards/0.tar", ("0.jpg", JPEG))
    (tmp_path / "shards/1.tar.zst").write_bytes(b"x")
    with pytest.raises(ArgumentError, match=r"1\.tar\.zst: is a compressed tar"):
        build_index(tmp_path / "shards", tmp_path / "x.txt")


def test_images_beside_shards_are_refused(tmp_path: Path) -> None:
    shards = make_files(tmp_path / "shards", "9.jpg")
    make_tar(shards / "0.tar", ("0.jpg", JPEG))
    with pytest.raises(ArgumentError, match=r"holds both images \(9\.jpg\) and tar shards \(0\.tar\)"):
        build_index(shards, tmp_path / "x.txt")
    (shards / "9.jpg").unlink()
    make_files(shards, "sub/8.jpg")
    with pytest.raises(ArgumentError, match=r"holds both images \(sub/8\.jpg\) and tar shards \(0\.tar\)"):
        build_index(shards, tmp_path / "x.txt")


def test_a_tar_truncated_anywhere_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    whole = make_tar(
        tmp_path / "w.tar", *((f"{n}.{e}", v) for n in range(3) for e, v in (("jpg", JPEG), ("cls", b"1")))
    )
    data = whole.read_bytes()
    with tarfile.open(whole) as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + 512
    cut = tmp_path / "cut.tar"
    for num_bytes in (*range(0, end, 97), *range(0, end + 1, 512), end):
        cut.write_bytes(data[:num_bytes])
        with pytest.raises(StorageError, match=r"cut\.tar"):
            build_index(cut, tmp_path / "x.txt")
        assert not (tmp_path / "x.txt").exists()


def test_a_broken_header_in_the_middle_is_an_error(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", ("0.jpg", JPEG), ("1.jpg", JPEG), ("2.jpg", JPEG))
    with tarfile.open(tar) as opened:
        middle = opened.getmembers()[1].offset
    data = bytearray(tar.read_bytes())
    data[middle] ^= 1
    tar.write_bytes(data)
    with pytest.raises(StorageError, match=f"no member header at byte {middle}"):
        build_index(tar, tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("kind", "word"), [(tarfile.SYMTYPE, "a link"), (tarfile.LNKTYPE, "a link"), (tarfile.CHRTYPE, "no regular file")]
)
def test_a_member_whose_bytes_lie_elsewhere_is_refused(tmp_path: Path, kind: bytes, word: str) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("0.jpg")
        info.type, info.linkname = kind, "1.jpg"
        tar.addfile(info)
    with pytest.raises(ArgumentError, match=rf"x\.tar: member 0\.jpg is {word}"):
        build_index(tmp_path / "x.tar", tmp_path / "x.txt")


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("GNUSparseFile.0/0.jpg")
    info.size = 512
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "0.jpg",
        "GNU.sparse.realsize": "4096",
    }
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(b"0\n".ljust(512, b"\0")))
    with pytest.raises(ArgumentError, match=r"member 0\.jpg is sparse"):
        build_index(tmp_path / "x.tar", tmp_path / "x.txt")


def test_a_shard_of_many_members_takes_constant_memory(tmp_path: Path) -> None:
    def peak_bytes(count: int) -> int:
        tar = make_tar(tmp_path / f"{count}.tar", *((f"{n}.jpg", b"") for n in range(count)))
        tracemalloc.start()
        try:
            with open_tars([str(tar)], extensions=IMAGE_EXTENSIONS) as rows:
                assert sum(1 for _ in rows.cells) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(10)
    few = peak_bytes(100)
    assert peak_bytes(3000) < few + 200_000  # a TarInfo each would be 3 MB


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
def test_lists_as_people_have_them_become_indexes(
    tmp_path: Path, name: str, text: str, expected: list[tuple[Cell, ...]]
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "out").mkdir()
    out = build_index(tmp_path / name, tmp_path / "out" / "i.txt")
    assert cells(out) == expected
    assert open_index(out).root == str(tmp_path)
    assert not (tmp_path / f"{name}.mpx").exists()


def test_columns_name_and_type_those_of_a_list(tmp_path: Path) -> None:
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
        (b"a.jpg 0\nb\0.jpg 1\n", r"l\.txt:2: holds a NUL byte"),
        (b"a.jpg 0\n../b.jpg 1\n", r"l\.txt:2: \.\./b\.jpg leads out of the root"),
        (b"a.jpg 0\n/b.jpg 1\n", r"l\.txt:2: /b\.jpg leads out of the root .*root='/'"),
        (b"a.jpg\t0\nb.jpg\n", r"l\.txt:2: has 1 cell"),
        (b"#mpload 1\n#columns image:path\na.jpg\r\n", "CRLF"),
        (b"", "no sample"),
        (b"\n\n", "no sample"),
    ],
)
def test_a_broken_list_is_an_error_that_names_the_line(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "l.txt").write_bytes(text)
    with pytest.raises(IndexFormatError, match=message):
        build_index(tmp_path / "l.txt", tmp_path / "i.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.txt"]


def test_absolute_paths_of_a_list_are_kept_below_a_root_that_holds_them(tmp_path: Path) -> None:
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
def test_a_path_leads_out_of_its_root_or_does_not(path: str, root: str, outside: bool) -> None:
    assert is_outside(path, root) is outside


# What is no source


def test_what_is_no_source_is_an_error_that_says_what_would_be(tmp_path: Path) -> None:
    make_files(tmp_path, "one.jpg")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "list.txt").write_text("one.jpg 0\n")
    cases: Sequence[tuple[str | list[str], type[Exception], str]] = [
        ("gone", StorageError, "gone: the source cannot be read: No such file"),
        ("one.jpg", ArgumentError, r"one\.jpg: is one image. Give the folder"),
        ("pipe", ArgumentError, "pipe: is a device, pipe or socket"),
        ([], ArgumentError, "source is an empty list"),
        (["list.txt", "list.txt"], ArgumentError, r"list\.txt: is no tar shard.*mpload merge"),
    ]
    for source, error, message in cases:
        paths = [tmp_path / part for part in source] if isinstance(source, list) else tmp_path / source
        with pytest.raises(error, match=message):
            build_index(paths, tmp_path / "i.txt")
