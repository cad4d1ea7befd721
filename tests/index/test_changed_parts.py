"""Parts that change: missing, other, longer and newer ones, and tables that were lost or damaged."""

import pickle
import shutil
from pathlib import Path

import pytest

from mpload import Index, list_parts, merge_indexes, open_index
from mpload.errors import IndexChangedError, IndexNotFoundError, StorageError
from mpload.index import growth, parts_index
from mpload.index.blocks import blocks_of
from mpload.index.growth import is_prefix
from mpload.index.parts import parts_of
from mpload.ingest.checking import check_index
from tests.support.growing import HEAD
from tests.support.index_parts import write_part, write_parts

CUTS = [0, 3, 3, 4, 20, 30]


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_missing_part_is_named(tmp_path: Path, is_listed: bool) -> None:
    path = write_parts(tmp_path, [0, 3, 5])
    if is_listed:
        list_parts([path], tmp_path / "list.txt")
        path = tmp_path / "list.txt"
    index = open_index(path)
    (tmp_path / "part-1.txt").unlink()
    with pytest.raises(IndexNotFoundError, match=f"{path.name}:4: part part-1.txt does not exist"):
        open_index(path)
    index[0]
    with pytest.raises(IndexNotFoundError, match=r"its part .*part-1.txt is gone"):
        pickle.loads(pickle.dumps(index))[4]


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("#mpload 1\n#parts\n/proc/self/mem\n")  # reading it is an input/output error
    with pytest.raises(StorageError, match=r"list.txt:3: part /proc/self/mem: cannot be read: Input/output error"):
        open_index(path)


def test_a_changed_part_is_named_if_the_list_says_what_it_was(tmp_path: Path) -> None:
    loose = write_parts(tmp_path, [0, 3, 5])
    strict = list_parts([loose], tmp_path / "list.txt")
    before, index = open_index(loose).fingerprint, open_index(strict)
    write_part(tmp_path / "part-1.txt", 13, 15)
    with pytest.raises(IndexChangedError, match=r"list.txt:4: part part-1.txt: does not begin with the 2 samples"):
        open_index(strict)
    with pytest.raises(IndexChangedError, match=r"its part .*part-1.txt does not begin with the 2 samples"):
        pickle.loads(pickle.dumps(index))[4]
    now = open_index(loose)
    assert now.fingerprint != before
    assert now[4]["id"] == 14


def test_lines_appended_to_a_part_do_not_count_until_it_is_listed_again(tmp_path: Path) -> None:
    path = list_parts([write_parts(tmp_path, [0, 3, 5])], tmp_path / "list.txt")
    before = open_index(path)
    running = pickle.dumps(before)
    write_part(tmp_path / "part-0.txt", 0, 4)
    write_part(tmp_path / "part-1.txt", 3, 9)
    for _ in range(2):
        after = open_index(path)
        assert ([record["id"] for record in after], after.fingerprint) == ([0, 1, 2, 3, 4], before.fingerprint)
        assert after.labels[:].tolist() == [0, 1, 2, 0, 1]
        assert [block.numbers("id").tolist() for block in blocks_of(after)] == [[0, 1, 2], [3, 4]]
        assert list(check_index(after)) == []
    assert list(pickle.loads(running)) == list(before)
    assert list(open_index(merge_indexes([path], tmp_path / "merged.txt"))) == list(before)
    again = open_index(list_parts([path], tmp_path / "again.txt"))
    assert [record["id"] for record in again] == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]


def test_the_lines_of_a_part_that_has_grown_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_index(list_parts([write_parts(tmp_path, [0, 3, 5])], tmp_path / "list.txt"))
    monkeypatch.setattr(parts_index, "_num_open", lambda: 1)
    compared: list[str] = []

    def noted(part: Index, num_samples: int, fingerprint: str) -> bool:
        compared.append(part.path.name)
        return is_prefix(part, num_samples, fingerprint)

    monkeypatch.setattr(growth, "is_prefix", noted)
    write_part(tmp_path / "part-0.txt", 0, 4, head=HEAD.replace("#columns", "#root .\n#columns"))
    write_part(tmp_path / "part-1.txt", 3, 9)
    for sample_id in [0, 4, 1, 3, 2]:
        assert index[sample_id]["id"] == sample_id
    assert compared == ["part-0.txt", "part-1.txt"]
    assert [index.where(0), index.where(4)] == [f"{tmp_path}/part-0.txt:4", f"{tmp_path}/part-1.txt:4"]
    write_part(tmp_path / "part-0.txt", 0, 5)
    assert [index[4]["id"], index[2]["id"]] == [4, 2]
    assert compared[2:] == ["part-0.txt"]


def test_a_table_that_was_lost_or_damaged_is_made_again(tmp_path: Path) -> None:
    folder, other = tmp_path / "one", tmp_path / "other"
    folder.mkdir()
    path, table = write_parts(folder, CUTS), folder / "parts.txt.mpx"
    expected = list(open_index(path))
    whole = table.read_bytes()
    damaged = [b"", b"{}\n", b"[1]\n", whole[:-7], whole.replace(b'"num_samples":3', b'"num_samples":2'), b"\xff" * 99]
    for data in damaged:
        table.write_bytes(data)
        assert list(open_index(path)) == expected
        assert table.read_bytes() == whole
    (folder / "part-3.txt.mpx").unlink()
    assert list(open_index(path)) == expected
    shutil.copytree(folder, other)
    assert {str(part.path.parent) for _, part in parts_of(open_index(other / "parts.txt"))} == {str(other)}


def test_a_list_that_was_an_index_is_opened_as_what_it_is_now(tmp_path: Path) -> None:
    path = write_part(tmp_path / "train.txt", 0, 7)
    assert len(open_index(path)) == 7
    write_parts(tmp_path, CUTS, name="train.txt")
    assert len(open_index(path)) == 30
    write_part(path, 0, 7)
    assert len(open_index(path)) == 7


def test_a_process_that_was_given_an_older_list_does_not_read_the_newer_one(tmp_path: Path) -> None:
    path = write_parts(tmp_path, [0, 3, 5])
    running = pickle.dumps(open_index(path))
    write_parts(tmp_path, [0, 2, 4, 9])
    open_index(path)
    with pytest.raises(IndexChangedError, match=r"parts.txt: changed after it was opened"):
        pickle.loads(running)[0]
