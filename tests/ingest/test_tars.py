"""Tar shards as sources: spans contain exactly the members' bytes, and damaged shards are refused."""

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mpload import build_index, open_index
from mpload.errors import ArgumentError, MploadWarning, StorageError
from mpload.ingest.folder_options import IMAGE_EXTENSIONS
from mpload.ingest.tars import open_tars
from mpload.storage.ranges import Span
from tests.support.ingested import JPEG, make_tar, read_span


def test_spans_contain_exactly_the_bytes_of_the_members(tmp_path: Path) -> None:
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


def test_a_source_may_be_one_shard_or_a_list_of_shards(tmp_path: Path) -> None:
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


def test_each_image_of_a_sample_is_a_column(tmp_path: Path) -> None:
    tar = make_tar(
        tmp_path / "pairs.tar",
        *((f"{n}.{e}", f"{n}{e}".encode()) for n in range(2) for e in ("lr.png", "1x.webp", "hr.PNG", "jpg")),
    )
    index = open_index(build_index(tar, tmp_path / "pairs.txt"))
    assert [str(column) for column in index.columns] == ["image:span", "_1x:span", "hr:span", "lr:span"]
    assert read_span(tmp_path, index[1]["lr"]) == b"1lr.png"
    assert read_span(tmp_path, index[1]["hr"]) == b"1hr.PNG"


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_unusual_names_give_the_right_bytes(tmp_path: Path, tar_format: int) -> None:
    names = ["d" * 120 + "/" + "n" * 140, "\u4e2d\u6587/x", "a\tb\nc", "\udcff", "./dir.with.dot/7"]
    members = [
        (f"{name}.{e}", v)
        for n, name in enumerate(names)
        for e, v in (("jpg", JPEG + bytes([n])), ("cls", str(n).encode()))
    ]
    index = open_index(build_index(make_tar(tmp_path / "x.tar", *members, tar_format=tar_format), tmp_path / "x.txt"))
    assert [read_span(tmp_path, record["image"])[-1] for record in index] == [0, 1, 2, 3, 4]
    assert np.asarray(index.labels).tolist() == [0, 1, 2, 3, 4]


def test_a_warning_counts_members_that_are_left_out(tmp_path: Path) -> None:
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
    with pytest.warns(MploadWarning, match=r"2 captions, JSON .*meta\.json; 2 members with other ext"):
        out = build_index(tar, tmp_path / "x.txt")
    assert open_index(out)[0]["label"] == 3  # a .cls file wins over a .json file


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["0.jpg", "0.cls", "1.jpg"], r"x\.tar: sample '1' has no label member like 0\.cls"),
        (["0.jpg", "1.jpg", "1.cls"], r"sample '1' has a label \(1\.cls\), which the first sample lacks"),
        (["0.a.jpg", "0.b.jpg", "1.a.jpg"], r"sample '1' has no member like 0\.b\.jpg \(column b\)"),
        (["0.jpg", "1.jpg", "1.b.jpg"], r"sample '1' has a member 1\.b\.jpg \(column b\), which the first"),
        (["0.jpg", "0.cls", "1.cls", "2.jpg"], r"sample '1' has a label \(1\.cls\) but no image"),
        (["0.cls", "1.jpg"], r"sample '0' has a label \(0\.cls\) but no image\. Every sample needs an image, and its"),
        (["0.txt", "0.cls"], r"x\.tar: sample '0' has a label .* but no image\. Every sample needs an image"),
        (["0.jpg", "0.jpg"], r"member 0\.jpg occurs twice in a row"),
        (["0.jpg", "0.cls", "0.cls"], r"member 0\.cls occurs twice in a row"),
        (["0.jpg", "0.png"], r"member 0\.png and 0\.jpg are both column image"),
        (["0.txt"], r"x\.tar: no image found\. Every sample needs an image\. Names of images end in \.jpg"),
        ([], r"x\.tar: no image found"),
    ],
)
def test_samples_with_different_members_are_errors(tmp_path: Path, members: list[str], message: str) -> None:
    tar = make_tar(tmp_path / "x.tar", *((name, b"5" if name.endswith("cls") else JPEG) for name in members))
    with pytest.raises(ArgumentError, match=message):
        build_index(tar, tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("0.cls", b"cat", r"member 0\.cls contains 'cat', but a label must be an integer"),
        ("0.cls", b"", "must be an integer"),
        ("0.cls", str(2**63).encode(), "integer of 64 bits"),
        ("0.json", b'{"label": "cat"}', "contains 'cat'"),
        ("0.json", b'{"cls": true}', "contains True"),
        ("0.json", b'{"cls": 1e400}', "contains inf"),
        ("0.json", b'{"cls"', r"member 0\.json is not JSON"),
        ("0.json", b"[" * 100_000, "is not JSON"),
        ("0.json", b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_a_label_member_must_contain_an_integer(tmp_path: Path, name: str, data: bytes, message: str) -> None:
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


def test_a_folder_with_both_images_and_shards_is_refused(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "9.jpg").write_bytes(JPEG)
    make_tar(shards / "0.tar", ("0.jpg", JPEG))
    with pytest.raises(ArgumentError, match=r"contains both images \(9\.jpg\) and tar shards \(0\.tar\)"):
        build_index(shards, tmp_path / "x.txt")
    (shards / "9.jpg").unlink()
    (shards / "sub").mkdir()
    (shards / "sub" / "8.jpg").write_bytes(JPEG)
    with pytest.raises(ArgumentError, match=r"contains both images \(sub/8\.jpg\) and tar shards \(0\.tar\)"):
        build_index(shards, tmp_path / "x.txt")


def test_a_tar_truncated_anywhere_is_refused(tmp_path: Path) -> None:
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
    with pytest.raises(StorageError, match=f"no valid member header at byte {middle}"):
        build_index(tar, tmp_path / "x.txt")


@pytest.mark.parametrize("num_zeros", [0, 512, 1_000_448])
def test_a_warning_names_a_tar_that_another_one_was_joined_to(tmp_path: Path, num_zeros: int) -> None:
    parts = [make_tar(tmp_path / f"{n}.tar", (f"{n}.jpg", JPEG)).read_bytes() for n in range(2)]
    (tmp_path / "x.tar").write_bytes(parts[0] + bytes(num_zeros) + parts[1])
    with pytest.warns(
        MploadWarning, match=r"1 archives that follow the end of a tar .*index the tars.* such as .*x\.tar"
    ):
        out = build_index(tmp_path / "x.tar", tmp_path / "x.txt")
    assert len(open_index(out)) == 1


@pytest.mark.parametrize("end", [b"", b"\0" * 99, b"not a header".ljust(512, b"x"), b"x"])
def test_what_is_no_member_after_the_end_of_a_tar_gives_no_warning(tmp_path: Path, end: bytes) -> None:
    tar = make_tar(tmp_path / "x.tar", ("0.jpg", JPEG))
    tar.write_bytes(tar.read_bytes() + end)
    assert len(open_index(build_index(tar, tmp_path / "x.txt"))) == 1


@pytest.mark.parametrize(
    ("kind", "word"),
    [(tarfile.SYMTYPE, "a link"), (tarfile.LNKTYPE, "a link"), (tarfile.CHRTYPE, "not a regular")],
)
def test_a_member_without_bytes_of_its_own_is_refused(tmp_path: Path, kind: bytes, word: str) -> None:
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


def test_indexing_a_shard_takes_constant_memory(tmp_path: Path) -> None:
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
