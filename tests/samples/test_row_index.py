"""The row index: the same samples with and without it, even if its file is damaged."""

import json
import os
import pickle
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from mpload import (
    Balanced,
    ImageDecoder,
    MPDataset,
    MPLoader,
    PartialCache,
    RandomResizedCrop,
    ResizeCenterCrop,
    Topology,
)
from mpload.errors import ArgumentError, MploadWarning
from mpload.images.backends import can_note_rows
from mpload.images.decoders import jpeg_backend
from mpload.index.opening import open_index
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import BadSample, policy_of
from mpload.samples.row_index import RowIndex, find_row_index, make_row_index
from tests.support.caches import overwrite
from tests.support.photos import encode, make_special_photos, photo
from tests.support.row_indexes import NUM_PHOTOS, crops, pipeline, write_photos

pytestmark = pytest.mark.skipif(not can_note_rows(), reason=f"JPEGs are decoded by {jpeg_backend()}")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def filled(text: Path) -> RowIndex:
    """Return the row index of a text after an epoch has filled it."""
    index = open_index(text)
    rows = make_row_index(index)
    assert rows is not None
    crops(pipeline(index, rows), epoch=0)
    crops(pipeline(index, rows), epoch=0)  # tables of small photos are only noted when they come first
    return rows


def assert_same_crops(text: Path, rows: RowIndex | None, *, num_epochs: int = 3) -> None:
    index = open_index(text)
    with_rows, without = pipeline(index, rows), pipeline(index, None)
    for epoch in range(num_epochs):
        np.testing.assert_array_equal(crops(with_rows, epoch=epoch), crops(without, epoch=epoch))


def assert_same_crops_in_workers(text: Path, rows: RowIndex) -> None:
    for _ in range(2):
        assert_same_crops(text, pickle.loads(pickle.dumps(rows)))


def dataset(text: Path, **options: Any) -> MPDataset:
    decode = options.pop("decode", RandomResizedCrop(24))
    return MPDataset(text, decode=decode, batch_size=4, shuffle=True, topology=Topology(), **options)


def rows_of(of: MPDataset) -> RowIndex | None:
    return of._run.pipeline.row_index


def epoch_of(batches: MPDataset | MPLoader) -> list[list[Any]]:
    return [[column.tolist() for column in batch] for batch in batches]


def test_an_epoch_notes_every_photo_and_later_ones_only_read(text: Path) -> None:
    rows = filled(text)
    assert rows.num_entries() == NUM_PHOTOS
    before = rows.path.read_bytes()
    assert_same_crops(text, rows)
    assert rows.path.read_bytes() == before
    assert rows.used_bytes() < 0.01 * sum(path.stat().st_size for path in (text.parent / "data").iterdir()) + 8192


@pytest.mark.slow
@pytest.mark.parametrize("action", ["skip", "substitute"])
@pytest.mark.parametrize("decode", [RandomResizedCrop(24), ResizeCenterCrop(24, antialias=True)])
def test_files_of_all_kinds_give_the_same_samples_and_the_same_bad_ones(
    tmp_path: Path, action: Literal["skip", "substitute"], decode: RandomResizedCrop | ResizeCenterCrop
) -> None:
    photos = make_special_photos(tmp_path / "data")
    text = tmp_path / "all.txt"
    text.write_text("".join(f"data/{path.name} {number}\n" for number, path in enumerate(photos.values())))
    index = open_index(text)
    policy = policy_of(action)
    found = []
    for rows in (None, make_row_index(index)):
        made_by = Pipeline(index=index, decode=decode, policy=policy, row_index=rows)
        for epoch in range(3):
            bad: list[BadSample] = []
            made = [made_by.sample(record, seed=0, epoch=epoch, on_bad=bad.append) for record in index[:]]
            samples = [None if each is None else (each[0], each[1][0].tolist()) for each in made]
            found.append((samples, [(each.sample_id, each.cause) for each in bad]))
    assert found[:3] == found[3:]
    assert found[0][1]


def test_both_photos_of_a_pair_have_entries_of_their_own(text: Path) -> None:
    pairs = text.with_name("pairs.txt")
    lines = (f"data/{number}.jpg\tdata/{(number * 7 + 1) % NUM_PHOTOS}.jpg\n" for number in range(NUM_PHOTOS))
    pairs.write_text("#mpload 1\n#columns left:path right:path\n" + "".join(lines))
    with_rows, without = dataset(pairs, row_index=True), dataset(pairs, row_index=False)
    for _ in range(3):
        assert epoch_of(with_rows) == epoch_of(without)
    rows = rows_of(with_rows)
    assert rows is not None
    assert rows.num_entries() == rows.num_photos == 2 * NUM_PHOTOS


def test_a_photo_that_changes_is_noted_again(text: Path) -> None:
    rows = filled(text)
    first, second = (text.parent / "data" / f"{number}.jpg" for number in (0, 1))
    for changed in (second.read_bytes(), first.read_bytes()[:-2] + b"\0\xff\xd9"):
        times = first.stat()
        first.write_bytes(changed)
        os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
        before = rows.read(0)
        assert_same_crops(text, rows)
        assert rows.read(0) != before


@pytest.mark.parametrize("what", ["bytes", "resized"])
def test_photos_in_a_cache_are_noted_as_the_cache_keeps_them(
    text: Path, tmp_path: Path, what: Literal["bytes", "resized"]
) -> None:
    image = Image.fromarray(photo(500, 400, np.random.default_rng(0)))
    (text.parent / "data" / "0.jpg").write_bytes(encode(image, "JPEG", quality=95))
    with_rows, without = (
        dataset(text, row_index=row_index, cache=PartialCache(tmp_path / "cache", fraction=0.6, what=what))
        for row_index in (True, False)
    )
    for _ in range(3):
        assert epoch_of(with_rows) == epoch_of(without)
    rows = rows_of(with_rows)
    assert rows is not None
    before = rows.path.read_bytes()
    assert epoch_of(with_rows) == epoch_of(without)
    assert rows.path.read_bytes() == before


def test_photos_that_differ_each_time_they_are_read_do_not_fill_the_disk(text: Path) -> None:
    rows = filled(text)
    path = text.parent / "data" / "0.jpg"
    data = path.read_bytes()
    for number in range(30):
        path.write_bytes(data + bytes([number]))
        assert_same_crops(text, rows, num_epochs=1)
        if number == 10:
            num_bytes = rows.path.stat().st_size
    assert rows.path.stat().st_size == num_bytes
    assert rows.read(0) is None


def test_a_replaced_index_text_begins_a_new_file(text: Path) -> None:
    running = filled(text)
    text.write_text("".join(f"data/{number}.jpg {number}\n" for number in reversed(range(NUM_PHOTOS - 1))))
    assert find_row_index(open_index(text)) is None
    rows = make_row_index(open_index(text))
    assert rows is not None
    assert rows.num_entries() == 0
    assert_same_crops(text, rows)
    running.write(0, b"of another text")  # by a job that still runs with the text of before
    assert running.read(0) == b"of another text"
    assert rows.read(0) != b"of another text"


@pytest.mark.parametrize("content", [b"", b"mprows00".ljust(8192, b"\0"), b"mprows01".ljust(20_000, b"\xff")])
def test_a_file_of_another_version_is_ignored_and_replaced_on_demand(text: Path, content: bytes) -> None:
    path = Path(f"{text}.mpr")
    path.write_bytes(content)
    assert rows_of(dataset(text)) is None
    assert path.read_bytes() == content
    rows = rows_of(dataset(text, row_index=True))
    assert rows is not None
    assert rows.path == path
    assert_same_crops(text, rows)


def test_a_file_that_was_cut_off_is_replaced(text: Path) -> None:
    rows = filled(text)
    os.truncate(rows.path, 4100)
    assert rows.num_entries() == 0
    assert_same_crops(text, rows)  # by a job that has it open
    os.truncate(rows.path, 4100)
    made = make_row_index(open_index(text))
    assert made is not None
    assert made.num_entries() == 0


def test_entries_that_were_cut_off_are_not_asked_for_where_they_cannot_be_written(text: Path) -> None:
    rows = filled(text)
    os.truncate(rows.path, 4096 + 8 * NUM_PHOTOS)
    found = find_row_index(open_index(text))
    assert found is not None
    assert found.read(0) is None
    assert rows.read(0) == b""  # it is to be made again
    assert_same_crops(text, found)


def test_a_cache_folder_behind_a_circle_of_links_is_one_that_cannot_be_used(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "loop" / "cache"))
    assert rows_of(dataset(text)) is None
    rows = rows_of(dataset(text, row_index=True))
    assert rows is not None
    assert rows.path.parent == text.parent


def test_a_job_writes_nothing_to_the_file_of_an_index_that_replaced_its_own(text: Path) -> None:
    index = open_index(text)
    rows = make_row_index(index)
    assert rows is not None
    other = text.with_name("other.txt")
    other.write_text(text.read_text().replace("data/1.jpg 1\n", ""))
    other.replace(text)  # an open index goes on with the text that it has opened
    newer = filled(text)
    before = newer.path.read_bytes()
    copy = pickle.loads(pickle.dumps(rows))  # as in a process that is started now
    np.testing.assert_array_equal(crops(pipeline(index, copy), epoch=1), crops(pipeline(index, None), epoch=1))
    assert newer.path.read_bytes() == before


def test_a_file_that_was_deleted_costs_only_time(text: Path) -> None:
    rows = filled(text)
    rows.path.unlink()
    assert_same_crops(text, rows)  # by a job that has it open
    assert_same_crops(text, pickle.loads(pickle.dumps(rows)))
    assert not rows.path.exists()


def test_an_index_in_a_linked_folder_has_its_file_beside_it(text: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(text.parent)
    epoch_of(dataset(link / text.name, row_index=True))
    rows = find_row_index(open_index(text))
    assert rows is not None
    assert rows.num_entries() == NUM_PHOTOS


@pytest.mark.parametrize("seed", range(8))
def test_no_damage_to_the_file_changes_a_pixel(text: Path, seed: int) -> None:
    rows = filled(text)
    overwrite(rows.path, random.Random(seed))
    with_damage = rows_of(dataset(text, row_index=True))
    assert_same_crops(text, rows, num_epochs=2)
    assert_same_crops(text, with_damage, num_epochs=2)


def test_only_row_index_true_makes_a_file_and_none_uses_it(text: Path) -> None:
    path = Path(f"{text}.mpr")
    assert rows_of(dataset(text)) is None
    assert rows_of(dataset(text, row_index=False)) is None
    with pytest.raises(
        ArgumentError, match=r"row_index=True is for RandomResizedCrop .* as the only decoder, .* got decode="
    ):
        dataset(text, row_index=True, decode=ImageDecoder())
    assert not path.exists()
    epoch_of(dataset(text, row_index=True))
    before = path.read_bytes()
    used = dataset(text)
    assert epoch_of(used) == epoch_of(dataset(text, row_index=False))
    assert rows_of(used) is not None
    assert rows_of(dataset(text, row_index=False)) is None
    (text.parent / "data" / "0.jpg").write_bytes((text.parent / "data" / "1.jpg").read_bytes())
    assert epoch_of(used)
    assert path.read_bytes() == before


def test_an_index_that_was_never_filled_takes_no_space(tmp_path: Path) -> None:
    rows = RowIndex(tmp_path / "rows", num_samples=10**9, num_sources=1, key=0, is_filled=True)
    rows.create()
    assert rows.fits()
    assert rows.used_bytes() <= 64 << 10
    rows.write(10**9 - 1, b"entry")
    assert rows.read(10**9 - 1) == b"entry"


def test_where_the_folder_refuses_it_the_file_is_in_the_cache_folder(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(f"{text}.mpr").mkdir()  # root may write to any folder, so permissions would not refuse it here
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = rows_of(dataset(text, row_index=True))
    assert rows is not None
    assert tmp_path / "cache" in rows.path.parents
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(MploadWarning, match=r"no row index can be made .*all\.txt\.mpr: .*Not a directory") as caught:
        assert rows_of(dataset(text, row_index=True)) is None
    assert Path(caught[0].filename) == Path(__file__)


def test_a_full_disk_ends_filling_with_one_warning_for_all_workers(text: Path) -> None:
    rows = make_row_index(open_index(text))
    assert rows is not None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (rows.path.stat().st_size + 1000, before[1]))
    try:
        with pytest.warns(MploadWarning, match="The row index is not filled any further") as caught:
            assert_same_crops_in_workers(text, rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(caught) == 1
    assert 0 < rows.num_entries() < NUM_PHOTOS
    assert_same_crops(text, rows)


@pytest.mark.processes
def test_workers_fill_one_file_together(text: Path) -> None:
    plain = dataset(text, row_index=False)
    with MPLoader(dataset(text, row_index=True), num_workers=3) as loader:
        for _ in range(3):
            assert epoch_of(loader) == epoch_of(plain)
    rows = find_row_index(open_index(text))
    assert rows is not None
    assert rows.num_entries() == NUM_PHOTOS
    before = rows.path.read_bytes()
    assert_same_crops(text, make_row_index(open_index(text)))
    assert rows.path.read_bytes() == before, "an entry of a worker was overwritten by another"


@pytest.mark.processes
@pytest.mark.parametrize("num_kills", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_processes_killed_while_filling_it_leave_no_wrong_pixel(tmp_path: Path, num_kills: int) -> None:
    command = [sys.executable, "-m", "tests.support.row_indexes", str(tmp_path / "photos"), str(num_kills)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(ran.stdout) == {"exited": 0, "same": True, "num_entries": NUM_PHOTOS}


@pytest.mark.processes
def test_samples_that_are_drawn_again_share_an_entry_and_what_a_cache_keeps(text: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shuffle": Balanced(), "epoch_samples": 4 * NUM_PHOTOS, "batch_size": 4}

    def drawn(**further: Any) -> MPDataset:
        return MPDataset(text, decode=RandomResizedCrop(24), topology=Topology(), **options, **further)

    plain = drawn(row_index=False)
    expected = [epoch_of(plain) for _ in range(2)]
    cached = PartialCache(tmp_path / "cache", fraction=0.6)
    for others in (drawn(row_index=True), drawn(row_index=True, cache=cached)):
        with MPLoader(others, num_workers=2) as loader:
            assert [epoch_of(loader) for _ in range(2)] == expected
        rows = rows_of(others)
        assert rows is not None
        assert rows.num_entries() == NUM_PHOTOS
