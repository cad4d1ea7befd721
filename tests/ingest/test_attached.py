"""Texts, JSON, arrays and masks beside the images of a shard become columns."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, MploadWarning
from mpload.ingest.grouping import Member, group_members
from mpload.ingest.rows import LeftOut
from mpload.storage.ranges import Span
from tests.support.ingested import JPEG, columns_of, make_tar, read_span

CAPTION = "ein Hund\t\u72ac\n".encode()


def as_npy(values: list[int]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values))
    return file.getvalue()


def test_files_beside_the_image_become_columns_with_exactly_their_bytes(tmp_path: Path) -> None:
    files = {"jpg": JPEG, "txt": CAPTION, "seg.png": b"mask", "emb.npy": as_npy([1, 2]), "boxes.json": b"[[0,0,1,1]]"}
    tar = make_tar(tmp_path / "x.tar", *((f"d/{n}.{e}", data) for n in range(3) for e, data in sorted(files.items())))
    index = open_index(build_index(tar, tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == "image:span seg:span boxes:span emb:span txt:span"
    for record in index:
        found = [read_span(tmp_path, record[column.name]) for column in index.columns]
        assert found == [JPEG, b"mask", files["boxes.json"], files["emb.npy"], CAPTION]


def test_json_with_a_label_and_more_is_both_a_label_and_a_column(tmp_path: Path) -> None:
    document = json.dumps({"label": 7, "caption": "a dog"}).encode()
    tar = make_tar(tmp_path / "x.tar", ("0.jpg", JPEG), ("0.json", document))
    (record,) = open_index(build_index(tar, tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == "image:span label:int json:span"
    assert record["label"] == 7
    assert read_span(tmp_path, record["json"]) == document


def test_json_with_nothing_but_a_label_is_no_column(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", ("0.jpg", JPEG), ("0.json", b'{"label": 7}'))
    build_index(tar, tmp_path / "x.txt")
    assert columns_of(tmp_path / "x.txt") == "image:span label:int"


LATER = [
    pytest.param({"0.json": b'{"label": 3}', "1.json": b'{"label": 4, "caption": "a dog"}'}, 1, id="more"),
    pytest.param({"0.cls": b"5", "0.json": b'{"label": 5}', "1.cls": b"6", "1.json": b'{"label": 1}'}, 1, id="other"),
    pytest.param({"0.cls": b"5", "0.json": b'{"label": 3}', "1.cls": b"6", "1.json": b'{"x": 1}'}, 2, id="both"),
]


@pytest.mark.parametrize("kind", ["span", pytest.param("lmdb", marks=pytest.mark.processes)])
@pytest.mark.parametrize(("files", "num_lost"), LATER)
def test_a_warning_counts_json_that_says_more_than_the_label_if_that_of_the_first_sample_does_not(
    tmp_path: Path, files: dict[str, bytes], num_lost: int, kind: str
) -> None:
    members = sorted({**files, "0.png": JPEG, "1.png": JPEG}.items())
    if kind == "span":
        source = make_tar(tmp_path / "x.tar", *members)
    else:
        lmdb = pytest.importorskip("lmdb")
        source = tmp_path / "lmdb"
        with lmdb.open(str(source), map_size=1 << 24) as environment, environment.begin(write=True) as put:
            for name, data in members:
                put.put(name.encode(), data)
    example = rf"{2 - num_lost}\.json"
    with pytest.warns(MploadWarning, match=f": {num_lost} JSON files that say more than the label, .*{example}$"):
        build_index(source, tmp_path / "x.txt")
    assert columns_of(tmp_path / "x.txt") == f"image:{kind} label:int"
    named = f"image:{kind} label:int json:{kind}"
    for columns in (named, f"photo:{kind} label:int meta:{kind}", f"json:{kind} image:{kind}", f"image:{kind}"):
        build_index(source, tmp_path / "x.txt", columns=columns)
        assert columns_of(tmp_path / "x.txt") == columns
    build_index(source, tmp_path / "x.txt", columns=named)
    if kind == "span":
        found = [read_span(tmp_path, record["json"]) for record in open_index(tmp_path / "x.txt")]
        assert found == [files["0.json"], files["1.json"]]


def test_some_of_the_columns_can_be_selected(tmp_path: Path) -> None:
    tar = make_tar(
        tmp_path / "x.tar", ("0.cls", b"4"), ("0.jpg", JPEG), ("0.txt", CAPTION), ("1.cls", b"5"), ("1.jpg", JPEG)
    )
    with pytest.raises(ArgumentError, match=r"sample '1' has no member like 0\.txt, .*columns='image:span'"):
        build_index(tar, tmp_path / "x.txt")
    chosen = build_index(tar, tmp_path / "x.txt", columns="label:int image:span")
    assert columns_of(chosen) == "label:int image:span"
    assert [record["label"] for record in open_index(chosen)] == [4, 5]
    with pytest.raises(ArgumentError, match=r"columns 'label:int caption:span' do not match this source"):
        build_index(tar, tmp_path / "x.txt", columns="label:int caption:span")


def test_files_that_the_first_sample_lacks_are_counted(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", ("0.jpg", JPEG), ("1.jpg", JPEG), ("1.txt", CAPTION))
    with pytest.warns(MploadWarning, match=r"1 captions, JSON or arrays that the first sample lacks, such as .*1\.txt"):
        build_index(tar, tmp_path / "x.txt")
    assert columns_of(tmp_path / "x.txt") == "image:span"


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["0.seg.png", "0.seg.json"], "seg:span seg_json:span"),
        (["0.jpg", "0.image.txt"], "image:span image_txt:span"),
        (["0.jpg", "0.label.txt"], "image:span label_txt:span"),
        (["0.jpg", "0.2nd.txt", "0.b c.txt"], "image:span _2nd:span b_c:span"),
    ],
)
def test_the_column_of_an_attached_file_has_a_name_of_its_own(tmp_path: Path, names: list[str], columns: str) -> None:
    build_index(
        make_tar(tmp_path / "x.tar", *((name, JPEG if "json" not in name else b"{}") for name in names)),
        tmp_path / "x.txt",
    )
    assert columns_of(tmp_path / "x.txt") == columns


def test_attached_files_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", ("0.a-b.txt", b""), ("0.a_b.txt", b""), ("0.jpg", JPEG), ("0.a b.txt", b""))
    with pytest.raises(ArgumentError, match=r"are both column 'a_b_txt'"):
        build_index(tar, tmp_path / "x.txt")
    tar = make_tar(tmp_path / "x.tar", ("0.jpg", JPEG), ("0.txt", b""), ("0.txt", b""))
    with pytest.raises(ArgumentError, match=r"member 0\.txt occurs twice in a row"):
        build_index(tar, tmp_path / "x.txt")


@pytest.mark.processes
def test_values_beside_the_images_of_a_database_become_columns(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "lmdb"), map_size=1 << 24) as environment, environment.begin(write=True) as put:
        for number in range(2):
            for ending, data in {"jpg": JPEG, "txt": CAPTION, "json": b'{"a": 1}', "arrays.npz": b"PK"}.items():
                put.put(f"cat/{number}.{ending}".encode(), data)
    index = open_index(build_index(tmp_path / "lmdb", tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == "image:lmdb label:int arrays:lmdb json:lmdb txt:lmdb"
    assert str(index[1]["txt"]) == "cat%2F1.txt@data.mdb"
    assert index.classes == ("cat",)
    build_index(tmp_path / "lmdb", tmp_path / "y.txt", columns="image:lmdb txt:lmdb")
    assert columns_of(tmp_path / "y.txt") == "image:lmdb txt:lmdb"


@pytest.mark.processes
def test_a_database_without_images_has_samples_of_several_arrays(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "lmdb"), map_size=1 << 24) as environment, environment.begin(write=True) as put:
        for number in range(3):
            file = io.BytesIO()
            np.savez(file, x=np.arange(4), y=np.float32(number))
            put.put(f"{number:08d}".encode(), file.getvalue())
        put.put(b"__len__", b"3")
    with pytest.warns(MploadWarning, match="__len__"):
        index = open_index(build_index(tmp_path / "lmdb", tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == "arrays:lmdb"
    assert [str(record["arrays"]) for record in index] == [f"{number:08d}@data.mdb" for number in range(3)]


_KEYS = st.sampled_from(["a", "b", "c"])
_MEMBERS = st.lists(st.tuples(_KEYS, st.sampled_from(["jpg", "txt", "json", "x.npy"])), max_size=20, unique=True)


@given(_MEMBERS)
def test_each_attached_file_is_in_the_sample_beside_it_or_is_counted(members: list[tuple[str, str]]) -> None:
    left_out = LeftOut()
    made = [
        Member(name=f"{key}.{end}", key=key, column="image" if end == "jpg" else "", cell=Span("x.tar", number, 1))
        for number, (key, end) in enumerate(members)
    ]
    samples = list(group_members("x.tar", made, left_out))
    assert [sample.key for sample in samples] == [key for key, end in members if end == "jpg"]
    for sample in samples:
        assert all(member.key == sample.key for member in sample.attached.values())
    num_attached = sum(len(sample.attached) for sample in samples)
    assert num_attached + sum(left_out.counts.values()) == sum(end != "jpg" for _, end in members)


@given(data=st.binary(max_size=40))
def test_hostile_json_is_kept_or_refused_with_its_name(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("json")
    tar = make_tar(folder / "x.tar", ("0.jpg", JPEG), ("0.json", data))
    try:
        build_index(tar, folder / "x.txt")
    except ArgumentError as error:
        assert "0.json" in str(error)  # noqa: PT017
    else:
        assert isinstance(json.loads(data), dict | list | str | int | float | None)
    with tarfile.open(tar) as opened:
        assert len(opened.getmembers()) == 2
