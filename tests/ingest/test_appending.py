"""An index gains the new samples of its source at its end, keeps all that it had, and is never seen half written."""

import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import FolderOptions, Index, MPDataset, append_to_index, build_index, open_index
from mpload.errors import ArgumentError, IndexChangedError, IndexNotFoundError, MploadWarning
from mpload.index.growth import is_prefix
from mpload.index.text import format_line
from mpload.ingest import appending
from tests.support.programs import REPOSITORY, mpload

names = st.sets(st.sampled_from([f"{kind}/{name}.jpg" for kind in "abcd" for name in ("1", "2", "ü", "x\ty", "#")]))


def add(folder: Path, *files: str) -> Path:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def cells_of(index: Index) -> list[Any]:
    return [record["image"] for record in index]


def rows_of(path: Path) -> list[list[Any]]:
    index = open_index(path)
    return [[str(path), index.classes[label]] for path, label in zip(cells_of(index), index.labels[:], strict=True)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(names, min_size=2, max_size=4))
def test_lines_and_classes_stay_and_every_file_that_ever_was_there_is_listed_once(
    tmp_path: Path, steps: list[set[str]]
) -> None:
    folder, out = tmp_path / "data", tmp_path / "all.txt"
    add(folder, "a/0.jpg")
    for file in folder.glob("*/*"):
        file.unlink()
    add(folder, "a/0.jpg")
    for empty in folder.iterdir():
        if not any(empty.iterdir()):
            empty.rmdir()
    build_index(folder, out)
    listed = {"a/0.jpg"}
    for step in steps:
        old = open_index(out)
        before, classes = out.read_bytes(), old.classes
        body = before.partition(b"#classes")[2].partition(b"\n")[2]
        add(folder, *step)
        found = append_to_index(folder, out)
        now = open_index(out)
        new = step - listed
        listed |= step
        assert (found.num_new, found.num_samples, found.num_gone) == (len(new), len(listed), 0)
        assert now.classes[: len(classes)] == classes
        assert found.new_classes == now.classes[len(classes) :]
        assert rows_of(out) == rows_of(out)[: len(old)] + sorted([name, name[0]] for name in new)
        assert body in out.read_bytes()
        assert is_prefix(now, len(old), old.fingerprint)
        if not new:
            assert out.read_bytes() == before


def test_what_a_source_lost_or_changed_is_kept_and_mentioned(tmp_path: Path) -> None:
    folder, out = add(tmp_path / "data", "a/1.jpg", "a/2.jpg", "b/1.jpg"), tmp_path / "all.txt"
    build_index(folder, out)
    (folder / "a/2.jpg").unlink()
    out.write_text(out.read_text().replace("b/1.jpg\t1", "b/1.jpg\t0"))
    add(folder, "b/2.jpg")
    found = append_to_index(folder, out)
    assert (found.num_new, found.num_gone, found.gone) == (1, 1, "a/2.jpg")
    assert (found.num_changed, found.changed) == (1, "b/1.jpg")
    assert rows_of(out) == [["a/1.jpg", "a"], ["a/2.jpg", "a"], ["b/1.jpg", "a"], ["b/2.jpg", "b"]]


def test_sizes_are_completed_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = add(tmp_path / "data", "a/1.jpg", "a/22.jpg"), tmp_path / "all.txt"
    build_index(folder, out, with_sizes=True)
    (folder / "a/1.jpg").write_text("longer than before")
    add(folder, "a/333.jpg")
    append_to_index(folder, out)
    sizes = open_index(out).nbytes
    assert sizes is not None
    assert sizes[:].tolist() == [7, 8, 9]
    append_to_index(folder, out, with_sizes=True)
    sizes = open_index(out).nbytes
    assert sizes is not None
    assert sizes[:].tolist() == [7, 8, 9]


def list_of(folder: Path, number: int) -> Path:
    path = folder / "list.csv"
    path.write_text("path,label,text\n" + "".join(f'{n}.jpg,{n},"text ""{n}"" of it"\n' for n in range(number)))
    return path


def tars_of(folder: Path, number: int) -> list[Path]:
    for n in range(number):
        path = folder / f"{n}.tar"
        if not path.exists():
            add(folder, f"{n}.jpg", f"{n}.cls")
            (folder / f"{n}.cls").write_text(str(n))
            (folder / f"{n}.jpg").write_bytes(b"\xff\xd8\xff\xe0 photo")
            with tarfile.open(path, "w") as tar:
                tar.add(folder / f"{n}.jpg", f"{n}.jpg")
                tar.add(folder / f"{n}.cls", f"{n}.cls")
    return [folder / f"{n}.tar" for n in range(number)]


def tables_of(folder: Path, number: int) -> list[Path]:
    for n in range(number):
        table = pa.table({"image": pa.array([b"\xff\xd8\xff\xe0 1", b"\xff\xd8\xff\xe0 2"]), "label": pa.array([n, n])})
        pq.write_table(table, folder / f"{n}.parquet")
    return [folder / f"{n}.parquet" for n in range(number)]


def folder_of(folder: Path, number: int) -> Path:
    return add(folder / "flat", *(f"{n}.jpg" for n in range(number)))


@pytest.mark.parametrize("source_of", [list_of, tars_of, tables_of, folder_of])
def test_sources_of_other_kinds_grow_too(tmp_path: Path, source_of: Any) -> None:
    out, whole = tmp_path / "out.txt", tmp_path / "whole.txt"
    build_index(source_of(tmp_path, 2), out)
    num_before = len(open_index(out))
    source = source_of(tmp_path, 5)
    found = append_to_index(source, out)
    build_index(source, whole)
    assert out.read_bytes() == whole.read_bytes()
    assert found.num_new == len(open_index(whole)) - num_before > 0
    assert append_to_index(source, out).num_new == 0


def test_a_list_of_texts_grows_by_lines_that_are_new(tmp_path: Path) -> None:
    source, out = tmp_path / "texts.tsv", tmp_path / "out.txt"
    source.write_text("one\t1\ntwo\t2\n")
    build_index(source, out, columns="text:str label:int")
    source.write_text("two\t2\nthree\t3\n")
    found = append_to_index(source, out, columns="text:str label:int")
    assert (found.num_new, found.num_gone, found.gone) == (1, 1, "one, 1")
    assert [list(record.cells) for record in open_index(out)] == [["one", 1], ["two", 2], ["three", 3]]


@pytest.mark.parametrize("names", [["dog", "cat"], ["10", "9"], ["010", "2"]])
def test_a_list_that_names_its_classes_grows_and_they_keep_their_numbers(tmp_path: Path, names: list[str]) -> None:
    source, out = tmp_path / "list.csv", tmp_path / "out.txt"
    lines = [f"{number}.jpg,{name}\n" for number, name in enumerate(names)]
    source.write_text("image,species\n" + "".join(lines))
    build_index(source, out, classes_from="species")
    source.write_text("image,species\n" + "".join([*lines, f"5.jpg,{names[1]}\n"]))
    found = append_to_index(source, out, classes_from="species")
    assert (found.num_new, found.num_changed, found.new_classes) == (1, 0, ())
    index = open_index(out)
    assert index.classes == tuple(sorted(names))
    assert [index.classes[int(str(record["label"]))] for record in index] == [*names, names[1]]


@pytest.mark.processes
def test_the_command_line_appends_with_the_option_that_names_the_classes(tmp_path: Path) -> None:
    source, out = tmp_path / "list.csv", tmp_path / "out.txt"
    source.write_text("image,label\n1.jpg,dog\n")
    assert mpload("index", source, "-o", out, "--classes-from", "label").returncode == 0
    source.write_text("image,label\n1.jpg,dog\n2.jpg,dog\n")
    ran = mpload("index", source, "-o", out, "--classes-from", "label", "--append")
    assert "appended 1 sample, now 2 samples" in ran.stdout, ran.stderr


def test_a_class_that_the_index_lacks_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    source, out, plain = tmp_path / "list.csv", tmp_path / "out.txt", tmp_path / "plain.txt"
    source.write_text("image,species\n1.jpg,dog\n2.jpg,cat\n")
    build_index(source, out, classes_from="species")
    build_index(source, plain)
    with pytest.raises(
        ArgumentError, match=r"plain\.txt: has no classes, so it was made without classes_from='species'"
    ):
        append_to_index(source, plain, classes_from="species")
    source.write_text("image,species\n1.jpg,dog\n2.jpg,cat\n3.jpg,dgo\n")
    before = out.read_bytes()
    message = r"column 'species' of the source names the class 'dgo', which is not among the 2 classes of the index"
    with pytest.raises(ArgumentError, match=message):
        append_to_index(source, out, classes_from="species")
    assert out.read_bytes() == before


def refused(tmp_path: Path) -> dict[str, Any]:
    """Return calls that are refused, by the message."""
    folder, out = add(tmp_path / "data", "a/1.jpg", "b/1.jpg"), tmp_path / "all.txt"
    build_index(folder, out)
    plain, coco = tmp_path / "plain.txt", tmp_path / "coco.json"
    plain.write_text("data/a/1.jpg 0\n")
    coco.write_text('{"images": [], "annotations": [], "categories": []}')
    flat = add(tmp_path / "flat", "1.jpg")
    build_index(flat, tmp_path / "flat.txt")
    other = add(tmp_path / "other" / "data", "a/7.jpg")
    return {
        "columns 'image:path label:int', but the source has 'image:path'. Give the same": (flat, out),
        "has the root .*/data, but the source has .*/other/data": (other, out),
        "is a plain list, not an index": (folder, plain),
        "annotations of COCO cannot be appended": (coco, out),
        "There is no index at": (folder, tmp_path / "none.txt"),
        "is the source itself": (out, out),
    }


@pytest.mark.parametrize("number", range(6))
def test_what_cannot_be_appended_is_refused_and_changes_nothing(tmp_path: Path, number: int) -> None:
    message, (source, out) = [*refused(tmp_path).items()][number]
    before = {path: path.read_bytes() for path in tmp_path.glob("*.txt")}
    with pytest.raises((ArgumentError, IndexNotFoundError), match=message):
        append_to_index(source, out)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.txt")} == before


def test_an_index_of_other_files_below_the_same_root_is_refused(tmp_path: Path) -> None:
    folder, out = add(tmp_path / "data", "a/1.jpg"), tmp_path / "all.txt"
    build_index(folder, out, root=tmp_path)
    with pytest.raises(ArgumentError, match="contains no file of this source, so it was made of another one"):
        append_to_index(add(tmp_path / "else", "a/1.jpg"), out, root=tmp_path)
    add(folder, "a/2.jpg")
    assert append_to_index(folder, out, root=tmp_path).num_new == 1


def test_an_index_that_another_program_changes_meanwhile_stays_as_that_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = add(tmp_path / "data", "a/1.jpg"), tmp_path / "all.txt"
    build_index(folder, out)

    def slow(cells: Any) -> bytes:
        out.write_text(out.read_text() + "a/9.jpg\t0\n")
        return format_line(cells)

    monkeypatch.setattr(appending, "format_line", slow)
    add(folder, "a/2.jpg")
    with pytest.raises(IndexChangedError, match="was changed by another program in the meantime"):
        append_to_index(folder, out)
    assert [row[0] for row in rows_of(out)] == ["a/1.jpg", "a/9.jpg", "a/9.jpg"]


def test_appends_at_the_same_time_list_every_file_once(tmp_path: Path) -> None:
    folder, out = add(tmp_path / "data", "a/0.jpg"), tmp_path / "all.txt"
    build_index(folder, out)
    add(folder, *(f"a/{number}.jpg" for number in range(20)))
    threads = [threading.Thread(target=append_to_index, args=(folder, out)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row[0] for row in rows_of(out)) == sorted(f"a/{number}.jpg" for number in range(20))


def test_a_link_to_an_index_stays_a_link_and_permissions_stay(tmp_path: Path) -> None:
    folder, out, link = add(tmp_path / "data", "a/1.jpg"), tmp_path / "real" / "all.txt", tmp_path / "link.txt"
    out.parent.mkdir()
    build_index(folder, out)
    link.symlink_to(out)
    out.chmod(0o600)
    add(folder, "a/2.jpg")
    assert append_to_index(folder, link).num_samples == 2
    assert link.is_symlink()
    assert len(open_index(out)) == 2
    assert out.stat().st_mode & 0o777 == 0o600


def test_sizes_that_cannot_be_measured_are_refused_before_the_source_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = add(tmp_path / "data", "a/1.jpg"), tmp_path / "all.txt"
    build_index(folder, out, root="s3://bucket")
    monkeypatch.setattr(appending, "open_source", lambda *_, **__: pytest.fail("the source is read"))
    with pytest.raises(ArgumentError, match="sizes of files at s3://bucket cannot be measured"):
        append_to_index(folder, out, root="s3://bucket", with_sizes=True)


def test_an_index_at_a_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"^s3://bucket/all\.txt: is a URL\. Append to a copy"):
        append_to_index(add(tmp_path / "data", "a/1.jpg"), "s3://bucket/all.txt")


def test_what_is_left_out_is_told_and_options_are_those_of_the_index(tmp_path: Path) -> None:
    folder, out = add(tmp_path / "data", "a/1.jpg", "a/1.tif2"), tmp_path / "all.txt"
    with pytest.warns(MploadWarning, match="1 files with other extensions"):
        build_index(folder, out)
    add(folder, "a/2.jpg")
    with pytest.warns(MploadWarning, match="1 files with other extensions"):
        assert append_to_index(folder, out).num_new == 1
    options = FolderOptions(extensions=(".jpg", ".tif2"))
    assert append_to_index(folder, out, folder=options).num_new == 1


@pytest.mark.slow
@pytest.mark.processes
def test_an_append_killed_at_any_step_leaves_the_old_index_or_the_new_one_and_readers_see_no_other(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.support.append_kills", str(tmp_path), "25"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=REPOSITORY, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["old"] > 0
    assert found["new"] > 0
    assert found["reader"] == 0, ran.stderr


def test_a_job_that_reads_the_index_goes_on_while_it_grows(tmp_path: Path) -> None:
    folder, out = add(tmp_path / "data", *(f"a/{number}.jpg" for number in range(8))), tmp_path / "all.txt"
    build_index(folder, out)
    dataset: Any = MPDataset(out, decode=lambda data: data, batch_size=2, shuffle=True)
    batches = iter(dataset)
    got = next(batches)[0]
    add(folder, *(f"a/{number}.jpg" for number in range(20)))
    append_to_index(folder, out)
    for files, _ in batches:
        got += files
    assert sorted(got) == [f"a/{number}.jpg".encode() for number in range(8)]
    assert dataset.refresh() == 20
    assert len([file for files, _ in dataset for file in files]) == 20
