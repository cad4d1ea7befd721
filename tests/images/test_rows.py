"""Entries with the starts of a JPEG's rows: they save time and change no pixel, even if they are damaged."""

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from xxhash import xxh64_intdigest

from mpload.images.backends import StoredView
from mpload.images.resize import Box
from tests.support.jpegs import NATIVE, VARIETIES, make, view_of_all, views
from tests.support.photos import encode, photo

pytestmark = pytest.mark.skipif(NATIVE is None or not NATIVE.WITH_HUFFMAN, reason="the native decoder is not built")

HIDDEN = StoredView((400, 300), 1, Box(top=200, left=90, height=40, width=50), (40, 50), (0, 0), False, False)
"""A view of 400 x 300 pixels with rows above and columns on both sides that it does not show."""


def draw(
    file: bytes, view: StoredView, size: tuple[int, int], entry: bytes | None = None
) -> tuple[bytes | str, bytes | None]:
    """Return the pixels, or why they were declined; and the entry that was made."""
    out = np.zeros((*size, 3), np.uint8)
    result = NATIVE.decode(file, view, out, entry)
    return (result, None) if isinstance(result, str) else (out.tobytes(), result)


def entry_of(file: bytes, view: StoredView, size: tuple[int, int]) -> bytes:
    draw(file, view, size)  # new tables are only noted
    entry = draw(file, view, size, b"")[1]
    assert entry is not None
    return entry


def forged(entry: bytes, file: bytes, numbers: bytes) -> bytes:
    """Return an entry with other `numbers` and the right checksum."""
    assert entry[:8] == xxh64_intdigest(entry[8:], xxh64_intdigest(file)).to_bytes(8, "little")
    return xxh64_intdigest(numbers, xxh64_intdigest(file)).to_bytes(8, "little") + numbers


@pytest.mark.slow
@pytest.mark.parametrize("variety", VARIETIES)
@settings(max_examples=60)
@given(data=st.data())
def test_any_crop_has_the_same_pixels_with_an_entry(variety: str, data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 150))
    seed, quality = data.draw(st.integers(0, 5)), data.draw(st.sampled_from((20, 75, 92, 100)))
    file = make(variety, height, width, seed=seed, quality=quality)
    entry = entry_of(file, *data.draw(views(height, width)))
    for _ in range(4):
        view, size = data.draw(views(height, width))
        expected = draw(file, view, size)[0]
        assert draw(file, view, size, b"") == (expected, entry)  # the same one, whichever view it was made with
        assert draw(file, view, size, entry) == (expected, None)


@pytest.mark.parametrize("blocks", [1, 2, 7, 19, 20, 400])
def test_rows_are_found_at_any_restart_interval(blocks: int) -> None:
    file = encode(
        Image.fromarray(photo(170, 300, np.random.default_rng(0))), "JPEG", quality=90, restart_marker_blocks=blocks
    )
    entry = entry_of(file, *view_of_all(170, 300))
    for top in range(0, 160, 8):
        view = StoredView((170, 300), 1, Box(top=top, left=30, height=10, width=20), (10, 20), (0, 0), False, False)
        assert draw(file, view, (10, 20), entry) == (draw(file, view, (10, 20))[0], None)


@pytest.mark.slow
@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_entry_changes_no_pixel_and_is_made_again(data: st.DataObject) -> None:
    file = make("420", 400, 300, seed=0, quality=90)
    entry = entry_of(file, HIDDEN, (40, 50))
    damaged = bytearray(entry)
    for at in data.draw(st.lists(st.integers(0, len(entry) - 1), max_size=4)):
        damaged[at] ^= data.draw(st.integers(1, 255))
    damaged = damaged[: data.draw(st.integers(0, len(entry)))]
    expected = draw(file, HIDDEN, (40, 50))[0]
    assert draw(file, HIDDEN, (40, 50), bytes(damaged)) == (expected, None if damaged == entry else entry)


def test_an_entry_is_used_only_for_the_photo_that_it_was_made_of() -> None:
    first = make("420", 400, 300, seed=0, quality=90)
    entry = entry_of(first, HIDDEN, (40, 50))
    changed = bytearray(first)
    changed[first.index(b"\xff\xda") + 5_000] ^= 0x10
    for other in (make("420", 400, 300, seed=1, quality=90), bytes(changed), first + b"\0"):
        draw(other, HIDDEN, (40, 50))
        expected = draw(other, HIDDEN, (40, 50))[0], draw(other, HIDDEN, (40, 50), b"")[1]
        assert draw(other, HIDDEN, (40, 50), entry) == expected


def test_rows_begin_where_the_entry_says() -> None:
    """The law of equal pixels would hold if entries were never used. By this forged one, all rows are the first."""
    file = make("gray", 400, 300, seed=0, quality=90)
    numbers = entry_of(file, HIDDEN, (40, 50))[8:10] + bytes(2 * 49)
    first = draw(file, HIDDEN._replace(box=Box(top=0, left=90, height=8, width=50), full=(8, 50)), (8, 50))[0]
    entry = forged(entry_of(file, HIDDEN, (40, 50)), file, numbers)
    assert draw(file, HIDDEN, (40, 50), entry) == (5 * first, None)


def test_a_photo_that_is_damaged_below_the_crop_has_no_entry() -> None:
    file = make("420", 400, 300, seed=0, quality=90)
    at = len(file) - 500
    damaged = file[:at] + b"\xff\xd3" + file[at:]
    top = HIDDEN._replace(box=Box(top=0, left=90, height=40, width=50))
    assert draw(damaged, top, (40, 50), b"") == (draw(file, top, (40, 50))[0], None)
    assert draw(damaged, HIDDEN._replace(box=Box(top=390, left=0, height=10, width=50)), (40, 50), b"")[1] is None


def test_progressive_photos_have_no_entry() -> None:
    pixels = photo(400, 300, np.random.default_rng(0))
    progressive = encode(Image.fromarray(pixels), "JPEG", quality=90, progressive=True)
    for _ in range(2):  # new tables are only noted
        assert draw(progressive, HIDDEN, (40, 50), b"") == (draw(progressive, HIDDEN, (40, 50))[0], None)


@settings(max_examples=300)
@given(data=st.data(), numbers=st.binary(min_size=1, max_size=200))
def test_forged_entries_give_pixels_or_the_usual_reason(data: st.DataObject, numbers: bytes) -> None:
    file = make("restarts", 90, 120, seed=0, quality=90)
    view, size = data.draw(views(90, 120))
    entry = entry_of(file, view, size)
    rows = data.draw(st.sampled_from((b"", entry[8:10], entry[8:15])))
    result = draw(file, view, size, forged(entry, file, rows + numbers))[0]
    assert isinstance(result, bytes)


def test_an_entry_takes_half_a_percent_of_a_photo() -> None:
    for height, width in ((375, 500), (1000, 1500)):
        file = simplejpeg.encode_jpeg(
            photo(height, width, np.random.default_rng(0)), quality=90, colorsubsampling="420"
        )
        assert len(entry_of(file, *view_of_all(height, width))) < 0.005 * len(file)
