"""Photos that are read ahead are decoded in bulk: no byte is read twice, and the sample that hangs is known."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload import MPDataset, RandomResizedCrop, Topology
from mpload.storage.many_ahead import AheadReader
from mpload.storage.ranges import Span
from mpload.storage.read_ahead import ReadAhead
from tests.support.chunks import OneWorker
from tests.support.late_storages import FarFiles, LateMemory
from tests.support.native import needs_native
from tests.support.photos import encode, photo
from tests.support.storages import FILE

pytestmark = needs_native

NUM_PHOTOS = 16
UNUSUAL = (3, 9, 10)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of photos, of which the native call declines a few."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM_PHOTOS):
        is_unusual = number in UNUSUAL
        height = 40 if is_unusual else 400
        image = Image.fromarray(photo(height, 560, np.random.default_rng(number)))
        (folder / f"{number}.jpg").write_bytes(encode(image, "PNG" if is_unusual else "JPEG"))
    text = folder / "index.txt"
    lines = "".join(f"{number}.jpg\t{number}\n" for number in range(NUM_PHOTOS))
    text.write_text(f"#mpload 1\n#columns image:path label:int\n{lines}")
    return text


def far_worker(text: Path, **options: Any) -> OneWorker:
    chosen = MPDataset(
        text, decode=RandomResizedCrop(16), batch_size=NUM_PHOTOS, shuffle=False, topology=Topology(), on_error="skip"
    )
    return OneWorker(chosen, is_far=True, **options)


def test_photos_that_the_native_call_declines_are_not_read_again(text: Path) -> None:
    worker = far_worker(text)
    alone: list[Any] = []
    fill_one_by_one = worker.work._fill_one_by_one

    def watched(number: Any, arrays: Any, first: int, chunk: Any, left: Any, report: Any) -> None:
        alone.extend(left)
        fill_one_by_one(number, arrays, first, chunk, left, report)

    worker.work._fill_one_by_one = watched  # type: ignore[method-assign]
    (images, _), failures = worker.batch(0, chunk_samples=NUM_PHOTOS)
    assert not failures
    assert alone == list(UNUSUAL)
    assert sorted(int(Path(item.path).stem) for item in worker.far.reads) == list(range(NUM_PHOTOS))
    planned = worker.work.pipeline.ahead._planned
    assert (planned.held_bytes, planned.num_ahead, planned.pieces) == (0, 0, {})
    (same, _), _ = far_worker(text).without_bulk().batch(0, chunk_samples=5)
    np.testing.assert_array_equal(images, same)


def test_ranges_in_use_leave_three_quarters_of_the_limit_to_others_that_are_read_ahead() -> None:
    storage = LateMemory({"shard": FILE}, late=lambda _: False)
    ahead = ReadAhead(storage, max_bytes=40_000)
    wanted = {number: [Span("shard", 20_000 * (number % 5), 1000)] for number in range(30)}
    ahead.plan(wanted)
    reader = AheadReader(ahead, list(wanted), place=0, at=lambda _: None)
    area, taken = np.empty(1 << 20, np.uint8), 0
    while num_read := len(reader.read(area, first=taken).lengths):
        taken += num_read
    assert taken == 10
    ahead.release(range(7))
    assert len(reader.read(area, first=taken).lengths) > 0


def test_a_photo_that_hangs_is_the_one_that_the_worker_says_it_is_at(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there, found = threading.Event(), list[bool]()
    read_wanted = FarFiles.read_wanted

    def hanging(self: FarFiles, item: Any, is_wanted: Any) -> bytes:
        if item.path == "7.jpg":
            found.append(is_there.wait(10))
        return read_wanted(self, item, is_wanted)

    monkeypatch.setattr(FarFiles, "read_wanted", hanging)

    def at(sample: int) -> None:
        if sample == 7:
            is_there.set()

    assert not far_worker(text).fill(0, 0, NUM_PHOTOS, at=at).failures
    assert found == [True]
