"""Records and columns, looked up through a sidecar: right for any ids, with few reads and in constant memory."""

import os
import pickle
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import Index, open_index
from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.index import sidecar_of
from mpload.index.lookup import BATCH_ROWS
from mpload.units import KIB, MIB
from tests.support.index_texts import HEAD, expected, make_text


def test_records_are_right_at_the_boundaries_of_record_batches(large: Index) -> None:
    ids = [0, 1, BATCH_ROWS - 1, BATCH_ROWS, 2 * BATCH_ROWS - 1, 2 * BATCH_ROWS, len(large) - 1]
    assert [record.cells for record in large.records(ids)] == [expected(i) for i in ids]
    assert large[-1].cells == expected(len(large) - 1)
    assert [record.cells for record in large[BATCH_ROWS - 2 : BATCH_ROWS + 2]] == [
        expected(i) for i in range(BATCH_ROWS - 2, BATCH_ROWS + 2)
    ]


@settings(max_examples=50)
@given(st.data())
def test_any_ids_in_any_order_return_their_records(large: Index, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(large) - 1), max_size=50))
    assert [record.cells for record in large.records(np.array(ids, np.int64))] == [expected(i) for i in ids]
    assert [record.sample_id for record in large.records(ids)] == ids
    assert large.labels[np.array(ids, np.int64)].tolist() == [i % 1000 for i in ids]


def test_labels_can_be_read_in_parts_and_as_a_whole(large: Index) -> None:
    labels = large.labels
    assert (labels.shape, labels.dtype.name, len(labels)) == ((len(large),), "int64", len(large))
    np.testing.assert_array_equal(np.asarray(labels), np.arange(len(large)) % 1000)
    np.testing.assert_array_equal(labels[5:-5:1000], (np.arange(len(large)) % 1000)[5:-5:1000])
    assert labels[-1] == (len(large) - 1) % 1000
    assert sum(block.size for block in labels.blocks()) == len(large)
    with pytest.raises(IndexError):
        labels[len(large)]


bounds = st.none() | st.integers(-3 * BATCH_ROWS, 3 * BATCH_ROWS)


@settings(max_examples=20)
@given(bounds, bounds, st.none() | st.sampled_from([1, -1, 7, 100_003, -100_003]))
def test_a_column_is_sliced_like_an_array(large: Index, start: int | None, stop: int | None, step: int | None) -> None:
    part = slice(start, stop, step)
    np.testing.assert_array_equal(large.labels[part], (np.arange(len(large)) % 1000)[part])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u8"])
def test_ids_may_have_any_integer_type(large: Index, dtype: str) -> None:
    assert large.labels[np.array([5, 127], dtype)].tolist() == [5, 127]
    if dtype.startswith("i"):
        assert large.labels[np.array([-1], dtype)].tolist() == [(len(large) - 1) % 1000]


@pytest.mark.parametrize("key", [1.5, [0.0], float("nan"), "a", None, True, [True, False], 1j], ids=repr)
def test_a_key_that_is_neither_ids_nor_a_full_mask_is_refused(large: Index, key: object) -> None:
    with pytest.raises(IndexError, match="is not a row, slice, array of rows, or mask of"):
        large.labels[key]


def test_a_full_mask_selects_rows_and_an_empty_list_selects_none(large: Index) -> None:
    mask = np.zeros(len(large), np.bool_)
    mask[[3, BATCH_ROWS]] = True
    assert large.labels[mask].tolist() == [3, BATCH_ROWS % 1000]
    assert large.labels[[]].tolist() == []


def num_bytes_read() -> int:
    """Return the number of bytes that this process has read by system calls, including those from the page cache."""
    return int(Path("/proc/self/io").read_text().partition("rchar: ")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_iterating_over_a_column_reads_it_once(large: Index) -> None:
    before = num_bytes_read()
    assert sum(islice(large.labels, 10_000)) == 10 * sum(range(1000))
    assert num_bytes_read() - before < 2 * MIB


def test_a_pickled_column_can_be_read_after_unpickling(large: Index) -> None:
    pickled = pickle.dumps(large.labels)
    assert len(pickled) < 2000
    assert pickle.loads(pickled)[[-1, 5]].tolist() == [(len(large) - 1) % 1000, 5]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_a_cold_lookup_reads_only_the_pages_it_needs(large: Index, tmp_path: Path) -> None:
    index = open_index(shutil.copy(large.path, tmp_path / "train.txt"))
    for path in (index.path, sidecar_of(index).path):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ids = np.random.default_rng(0).integers(0, len(index), 256)

    def num_read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().partition("read_bytes: ")[2].split()[0])

    before = num_read_bytes()
    index.records(ids)
    if num_read_bytes() == before:
        pytest.skip("this file system does not count reads from a device")
    assert num_read_bytes() - before < len(ids) * 16 * KIB  # a page of the sidecar, one or two of the text


def test_ids_out_of_range_are_refused(large: Index) -> None:
    for ids in ([-1], [len(large)], [0, 1 << 60]):
        with pytest.raises(ArgumentError, match=r"sample_ids must be in \[0, "):
            large.records(ids)
    with pytest.raises(IndexError):
        large[len(large)]


@pytest.mark.processes
def test_a_pickled_index_needs_no_pyarrow(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 100)
    (tmp_path / "index.pickle").write_bytes(pickle.dumps(open_index(text)))
    code = (
        "import pickle, sys; index = pickle.load(open(sys.argv[1], 'rb'));"
        "print(index[99], [module for module in sys.modules if module in ('pyarrow', 'torch')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "index.pickle"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "Record(99: image='d/99.jpg', label=99) []"


def test_asking_for_labels_that_do_not_exist_raises(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg\nb.jpg\n")
    with pytest.raises(IndexFormatError, match="has no column of labels, only image:path"):
        _ = open_index(tmp_path / "list.txt").labels


@pytest.mark.processes
def test_private_memory_of_a_reader_does_not_grow_with_the_index(large: Index, tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, mpload\n"
        "from mpload.memory.usage import process_memory\n"
        "index = mpload.open_index(sys.argv[1])\n"
        "def read():\n"
        "    for start in range(0, len(index) - 4096, 4096): index.records(np.arange(start, start + 4096, 37))\n"
        "index.records(np.arange(1000))\n"
        "before = process_memory().rss_bytes\n"
        "read()\n"
        "rng = np.random.default_rng(0)\n"
        "for _ in range(50): index.records(rng.integers(0, len(index), 1000))\n"
        "print(process_memory().rss_bytes - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, large.path], capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) < 8 * 2**20  # the sidecar has 34 MB, the text 38 MB


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_building_a_sidecar_with_many_classes_does_not_read_it_back(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 600_000)
    classes = "\t".join(f"class_number_{number}" for number in range(20_000)).encode()
    num_bytes = []
    for head in (HEAD, HEAD + b"#classes " + classes + b"\n"):
        text.write_bytes(text.read_bytes().replace(HEAD, head))
        before = num_bytes_read()
        index = open_index(text)
        num_bytes.append(num_bytes_read() - before)
    assert num_bytes[1] - num_bytes[0] < sidecar_of(index).file_bytes // 2
