"""Photos decoded chunk by chunk with a row index: the same pixels, and entries are made and replaced as one by one."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import MPDataset, RandomResizedCrop, ResizeCenterCrop, Topology
from mpload.images.backends import can_note_rows
from mpload.images.decoders import jpeg_backend
from mpload.samples.row_index import RowIndex, find_row_index, make_row_index
from tests.support.chunks import OneWorker
from tests.support.row_indexes import NUM_PHOTOS, write_photos

pytestmark = pytest.mark.skipif(not can_note_rows(), reason=f"JPEGs are decoded by {jpeg_backend()}")

RANDOM = RandomResizedCrop(24)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    text = write_photos(tmp_path / "photos")
    text.write_text("#mpload 1\n#columns image:path label:int\n" + text.read_text().replace(" ", "\t"))
    return text


def worker(text: Path, *, row_index: bool | None, decode: Any = RANDOM) -> OneWorker:
    chosen = MPDataset(
        text, decode=decode, batch_size=NUM_PHOTOS, shuffle=True, row_index=row_index, topology=Topology()
    )
    return OneWorker(chosen)


def pixels(by: OneWorker, *, chunk_samples: int = 11) -> Any:
    columns, failures = by.batch(0, chunk_samples=chunk_samples)
    assert not failures
    return np.array(columns[0])


def filled(text: Path) -> OneWorker:
    """Return a worker after it has made the entries of all photos."""
    made_by = worker(text, row_index=True)
    for _ in range(2):  # tables of small photos are only noted when they come first
        pixels(made_by)
    assert rows_of(made_by).num_entries() == NUM_PHOTOS
    return made_by


def rows_of(made_by: OneWorker) -> RowIndex:
    rows = made_by.work.pipeline.row_index
    assert rows is not None
    return rows


def never_one_by_one(made_by: OneWorker) -> OneWorker:
    made_by.work._fill_one_by_one = None  # type: ignore[method-assign,assignment]
    return made_by


@pytest.mark.parametrize("decode", [RANDOM, ResizeCenterCrop((20, 30), antialias=True)])
@pytest.mark.parametrize("row_index", [True, None])
def test_photos_with_entries_are_made_in_bulk_with_the_same_pixels(
    text: Path, row_index: bool | None, decode: Any
) -> None:
    filled(text)
    with_rows = never_one_by_one(worker(text, row_index=row_index, decode=decode))
    before = rows_of(with_rows).path.read_bytes()
    expected = pixels(worker(text, row_index=False, decode=decode).without_bulk())
    np.testing.assert_array_equal(pixels(with_rows), expected)
    assert rows_of(with_rows).path.read_bytes() == before


def test_photos_without_entries_get_some(text: Path) -> None:
    made_by = filled(text)
    rows = rows_of(made_by)
    data = bytearray(rows.path.read_bytes())
    data[4096 : 4096 + 8 * 7] = bytes(8 * 7)  # the places of seven entries
    rows.path.write_bytes(data)
    assert rows.num_entries() == NUM_PHOTOS - 7
    expected = pixels(worker(text, row_index=False))
    for _ in range(2):
        np.testing.assert_array_equal(pixels(made_by), expected)
    assert rows.num_entries() == NUM_PHOTOS
    np.testing.assert_array_equal(pixels(never_one_by_one(made_by)), expected)


def test_damaged_entries_change_no_pixel_and_are_replaced(text: Path) -> None:
    made_by = filled(text)
    rows, chance = rows_of(made_by), random.Random(0)
    expected = pixels(worker(text, row_index=False))
    entries = [rows.read(number) for number in range(NUM_PHOTOS)]
    for number, entry in enumerate(entries):
        assert entry
        damaged = bytearray(entries[number - 1] or b"") if number % 2 else bytearray(entry)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        rows.write(number, bytes(damaged))
    read_only = find_row_index(made_by.work.pipeline.index)
    assert read_only is not None
    np.testing.assert_array_equal(pixels(never_one_by_one(worker(text, row_index=None))), expected)
    for _ in range(2):
        np.testing.assert_array_equal(pixels(made_by), expected)
    assert [rows.read(number) for number in range(NUM_PHOTOS)] == entries
    np.testing.assert_array_equal(pixels(never_one_by_one(made_by)), expected)


def test_the_row_index_of_other_photos_changes_no_pixel(text: Path) -> None:
    rows = rows_of(filled(text))
    entries = [rows.read(number) for number in range(NUM_PHOTOS)]
    for number in range(NUM_PHOTOS):
        rows.write(number, entries[(number + 1) % NUM_PHOTOS] or b"")
    again = make_row_index(worker(text, row_index=None).work.pipeline.index)
    assert again is not None
    assert again.read(0) == entries[1]
    expected = pixels(worker(text, row_index=False))
    for row_index in (None, True):
        np.testing.assert_array_equal(pixels(worker(text, row_index=row_index)), expected)
