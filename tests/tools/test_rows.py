"""`note_rows`, behind `mpload index --jpeg`: fills the row index before the first epoch."""

import os
from pathlib import Path

import numpy as np
import pytest

from mpload.errors import ArgumentError, StorageError
from mpload.images import backends
from mpload.images.backends import can_note_rows
from mpload.index.opening import open_index
from mpload.samples.row_index import find_row_index
from mpload.tools.rows import note_rows
from tests.support.photos import make_special_photos
from tests.support.programs import mpload, told
from tests.support.row_indexes import NUM_PHOTOS, crops, pipeline, write_photos

needs_rows = pytest.mark.skipif(not can_note_rows(), reason="the native decoder is not built")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


@needs_rows
@pytest.mark.parametrize("num_workers", [1, 8])
def test_the_first_epoch_finds_every_entry(text: Path, num_workers: int) -> None:
    index = open_index(text)
    done: list[int] = []
    assert note_rows(index, num_workers=num_workers, progress=done.append).num_entries() == NUM_PHOTOS
    assert done == list(range(1, NUM_PHOTOS + 1))
    rows = find_row_index(index)
    assert rows is not None
    before = rows.path.read_bytes()
    np.testing.assert_array_equal(crops(pipeline(index, rows), epoch=1), crops(pipeline(index, None), epoch=1))
    note_rows(index)
    assert rows.path.read_bytes() == before, "valid entries were made again"
    assert all(rows.read(number) for number in range(NUM_PHOTOS))


@needs_rows
def test_files_that_are_no_plain_jpegs_are_left_out(tmp_path: Path) -> None:
    photos = make_special_photos(tmp_path / "photos")
    (tmp_path / "all.txt").write_text("".join(f"photos/{path.name} 0\n" for path in photos.values()))
    index = open_index(tmp_path / "all.txt")
    photos["jpeg_422"].unlink()
    rows = note_rows(index)
    noted = {Path(str(record.cells[0])).stem for record in index if rows.read(record.sample_id)}
    assert noted == {"jpeg_420", "jpeg_444", "grayscale", "jpeg_named", *(f"exif_{number}" for number in range(1, 9))}


@needs_rows
def test_a_folder_that_refuses_the_file_is_an_error(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"{text}.mpr").mkdir()  # root may write to any folder, so permissions would not refuse it here
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    with pytest.raises(StorageError, match=r"all\.txt\.mpr: Is a directory.*Make the folder of the index writable"):
        note_rows(open_index(text))


def test_an_index_without_files_is_an_error_and_gets_no_row_index(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("#mpload 1\n#columns text:str label:int\na\t1\n")
    with pytest.raises(ArgumentError, match="a row index is for files, but the columns 'text:str label:int' contain"):
        note_rows(open_index(path))
    assert not list(tmp_path.glob("*.mpr"))


def test_it_needs_the_native_decoder(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "NATIVE", None)
    with pytest.raises(ArgumentError, match=r"needs mpload's native decoder.*apt install gcc"):
        note_rows(open_index(text))


@needs_rows
@pytest.mark.processes
def test_the_command_notes_every_part_and_inspect_shows_it(text: Path) -> None:
    out = text.with_name("new.txt")
    made = told(mpload("index", text.parent / "data", "-o", out, "--jpeg", "--split", "0.5,0.5", "--json"))
    assert sum(part["row_index"]["num_entries"] for part in made["indexes"]) == NUM_PHOTOS
    part = made["indexes"][0]
    assert told(mpload("inspect", part["path"], "--json"))["row_index"] == part["row_index"]
    num_photos = part["num_samples"]
    assert f"knows the rows of {num_photos} of {num_photos} images" in mpload("inspect", part["path"]).stdout
    assert told(mpload("inspect", text, "--json"))["row_index"] is None
