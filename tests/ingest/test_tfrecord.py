"""TFRecord files as sources: those written by another library are read, and damaged or foreign ones are refused."""

import random
import struct
import sys
from pathlib import Path
from typing import Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import MPDataset, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, MploadError, MploadWarning, StorageError
from mpload.ingest.tfrecords import read_example

TFRecordWriter: Any = pytest.importorskip("tfrecord").TFRecordWriter

JPEG = b"\xff\xd8\xff\xe0"


def image(number: int) -> bytes:
    return JPEG + number.to_bytes(4, "little") * (number * 40 + 1)


def make_file(path: Path, *examples: dict[str, tuple[Any, str]]) -> Path:
    writer = TFRecordWriter(str(path))
    for example in examples:
        writer.write(example)
    writer.close()
    return path


def labelled(number: int) -> dict[str, tuple[Any, str]]:
    return {
        "image/encoded": (image(number), "byte"),
        "image/class/label": (number - 3, "int"),
        "image/height": (300, "int"),
        "image/format": (b"JPEG", "byte"),
        "image/object/bbox/xmin": ([0.25, 0.5], "float"),
    }


def samples(index: Path | tuple[Path, ...]) -> list[object]:
    assert isinstance(index, Path)
    return list(MPDataset(index, decode=RawBytes(), topology=Topology()))


def framed(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        crc = crc32c.crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


@pytest.mark.filterwarnings("ignore:left out of")
def test_the_index_locates_images_and_holds_labels(tmp_path: Path) -> None:
    a = make_file(tmp_path / "a.tfrecord", *map(labelled, range(20)))
    b = make_file(tmp_path / "train-00001-of-00002", *map(labelled, range(20, 25)))
    made = build_index([a, b], tmp_path / "x.txt")
    assert samples(made) == [(image(n), n - 3) for n in range(25)]
    cell = open_index(tmp_path / "x.txt")[7].cells[0]
    assert a.read_bytes()[cell.offset_bytes :][: cell.length_bytes] == image(7)


def test_examples_may_have_two_images_and_no_label(tmp_path: Path) -> None:
    make_file(tmp_path / "a.tfrecord", {"lr": (image(1), "byte"), "hr": (image(2), "byte"), "n": (5, "int")})
    with pytest.warns(MploadWarning, match="left out of .* 1 features of the first record .* such as n"):
        made = build_index(tmp_path / "a.tfrecord", tmp_path / "a.txt")
    assert samples(made) == [(image(2), image(1))]
    assert [column.name for column in open_index(tmp_path / "a.txt").columns] == ["hr", "lr"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"image/encoded": (image(1), "byte")}, r"record 1: feature image/class/label is not a single integer"),
        ({"image/class/label": (1, "int")}, r"record 1: feature image/encoded is missing"),
        ({"image/encoded": (b"no", "byte"), "image/class/label": (1, "int")}, r"image/encoded is not an image"),
        ({"image/encoded": (image(1), "byte"), "image/class/label": ([1, 2], "int")}, r"is not a single integer"),
    ],
)
def test_examples_with_different_features_are_errors(
    tmp_path: Path, second: dict[str, tuple[Any, str]], message: str
) -> None:
    make_file(tmp_path / "a.tfrecord", labelled(0), second)
    with pytest.raises(ArgumentError, match=message):
        build_index(tmp_path / "a.tfrecord", tmp_path / "a.txt")
    assert not (tmp_path / "a.txt").exists()


def test_the_error_of_a_file_without_images_lists_its_features(tmp_path: Path) -> None:
    make_file(tmp_path / "a.tfrecord", {"text": (b"abc", "byte"), "n": (1, "int")})
    with pytest.raises(ArgumentError, match=r"contains no image in its first record \(features n, text\)"):
        build_index(tmp_path / "a.tfrecord", tmp_path / "a.txt")
    (tmp_path / "empty.tfrecord").touch()
    with pytest.raises(ArgumentError, match=r"no record"):
        build_index(tmp_path / "empty.tfrecord", tmp_path / "a.txt")


@pytest.mark.filterwarnings("ignore:left out of")
def test_a_file_truncated_within_a_record_is_an_error_and_between_records_is_shorter(tmp_path: Path) -> None:
    whole = make_file(tmp_path / "whole.tfrecord", *map(labelled, range(3))).read_bytes()
    ends = [len(framed(b"")) * 0]
    while ends[-1] < len(whole):
        ends.append(ends[-1] + 16 + int.from_bytes(whole[ends[-1] :][:8], "little"))
    cut = tmp_path / "cut.tfrecord"
    for num_bytes in sorted({*range(1, len(whole), 37), *(end + d for end in ends[1:-1] for d in (-1, 0, 1, 12))}):
        cut.write_bytes(whole[:num_bytes])
        if num_bytes in ends:
            assert len(samples(build_index(cut, tmp_path / "x.txt"))) == ends.index(num_bytes)
            continue
        with pytest.raises(StorageError, match=r"cut\.tfrecord: ends within the record at byte \d+.*copy"):
            build_index(cut, tmp_path / "y.txt")


def test_a_flipped_bit_anywhere_is_detected(tmp_path: Path) -> None:
    whole = make_file(tmp_path / "whole.tfrecord", labelled(0), labelled(1)).read_bytes()
    flipped = tmp_path / "flipped.tfrecord"
    chance = random.Random(0)
    for place in chance.sample(range(len(whole)), 60):
        data = bytearray(whole)
        data[place] ^= 1 << chance.randrange(8)
        flipped.write_bytes(data)
        with pytest.raises(StorageError, match=r"checksum of the record"):
            build_index(flipped, tmp_path / "x.txt")


def test_records_that_are_not_examples_are_errors(tmp_path: Path) -> None:
    chance = random.Random(0)
    for number in range(100):
        file = tmp_path / f"{number}.tfrecord"
        file.write_bytes(framed(chance.randbytes(chance.randrange(1, 60))))
        with pytest.raises(MploadError, match=rf"{number}\.tfrecord: (record 0 is not|contains no image)"):
            build_index(file, tmp_path / "x.txt")


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


names = st.text(max_size=20)


@given(st.dictionaries(names, st.binary(max_size=50)), st.dictionaries(names, st.integers(-(2**63), 2**63 - 1)))
def test_every_feature_is_parsed_whether_packed_or_not(blobs: dict[str, bytes], numbers: dict[str, int]) -> None:
    entries = []
    for name, blob in blobs.items():
        entries.append(message(1, name.encode()) + message(2, message(1, message(1, blob))))
    for place, (name, number) in enumerate(numbers.items()):
        packed = message(1, varint(number)) if place % 2 else varint(1 << 3) + varint(number)
        entries.append(message(1, name.encode()) + message(2, message(3, packed)))
    data = message(1, b"".join(message(1, entry) for entry in entries))
    example = read_example(data)
    assert example.integers == numbers
    only = {name: blob for name, blob in blobs.items() if name not in numbers}  # the last entry with a name counts
    assert {name: data[start:end] for name, (start, end) in example.spans.items()} == only


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.lists(st.integers(0, 255).map(lambda n: n % 32), max_size=100).map(bytes))
def test_any_bytes_parse_to_an_example_or_raise_value_error(data: bytes) -> None:
    try:
        example = read_example(data)
    except ValueError:
        return
    assert all(0 <= start <= end <= len(data) for start, end in example.spans.values())


def test_without_crc32c_the_error_names_the_extra_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_file(tmp_path / "a.tfrecord", labelled(0))
    monkeypatch.setitem(sys.modules, "crc32c", None)
    with pytest.raises(ArgumentError, match=r"pip install 'mpload\[tfrecord\]'"):
        build_index(file, tmp_path / "x.txt")
