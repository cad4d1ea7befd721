"""JPEGs rewritten as baseline JPEGs with common Huffman tables: all kinds keep their pixels."""

import importlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from mpload.errors import DecodeError
from mpload.images.baseline import HuffmanTables, code_lengths, tables_for
from mpload.images.image import open_image
from mpload.images.jpeg_header import is_progressive
from tests.support.fuzz_seeds import write_seeds
from tests.support.jpegs import without_last_scan
from tests.support.native import needs_native
from tests.support.photos import encode, make_special_photos, photo

pytestmark = needs_native

KEPT = {
    "end_inside",
    "empty_table",
    "no_codes",
    "three_scans_no_table",
    "no_end",
    "twelve_bits",
    "jpeg_truncated",
    "truncated",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("jpegs")
    paths = [*write_seeds(folder / "seeds"), *make_special_photos(folder / "special").values()]
    found = {path.stem: path.read_bytes() for path in paths}
    return {name: data for name, data in found.items() if data[:3] == b"\xff\xd8\xff"}


@pytest.fixture(scope="module")
def tables(files: dict[str, bytes]) -> HuffmanTables:
    return tables_for(files.values())


def shown(data: bytes) -> NDArray[np.uint8] | str:
    try:
        return np.array(open_image(data).pixels())
    except DecodeError as error:
        return str(error)


def segments(data: bytes) -> list[tuple[int, bytes]]:
    """Return the marker and the contents of each segment of the header."""
    found, position = [], 2
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        found.append((data[position + 1], data[position + 4 : end]))
        position = end
    return found


def test_all_kinds_of_jpegs_keep_their_pixels_and_damaged_ones_stay_as_they_are(
    files: dict[str, bytes], tables: HuffmanTables
) -> None:
    for name, data in files.items():
        rewritten = tables.rewrite(data)
        assert np.array_equal(shown(rewritten), shown(data)), name
        assert (rewritten == data) == (name in KEPT), name


def test_progressive_jpegs_are_told_from_others_by_their_frame_not_by_that_of_a_thumbnail(
    files: dict[str, bytes],
) -> None:
    progressive = {"progressive", "jpeg_progressive"}
    assert {name for name, data in files.items() if is_progressive(data)} == progressive
    plain, thumbnail = files["420_90"], files["progressive"]
    marker = b"\xff\xe1" + (len(thumbnail) + 8).to_bytes(2, "big") + b"Exif\0\0" + thumbnail
    assert not is_progressive(plain[:2] + marker + plain[2:])


@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    mode=st.sampled_from(["RGB", "L", "CMYK"]),
    seed=st.integers(0, 99),
    options=st.fixed_dictionaries(
        {
            "quality": st.integers(1, 100),
            "subsampling": st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
            "progressive": st.booleans(),
            "optimize": st.booleans(),
            "restart_marker_blocks": st.sampled_from([0, 1, 5]),
        }
    ),
)
def test_photos_of_any_size_keep_their_pixels_with_tables_of_another_photo(
    size: tuple[int, int], mode: str, seed: int, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    data = encode(Image.fromarray(photo(*size, rng)).convert(mode), "JPEG", **options)
    other = encode(Image.fromarray(photo(16, 16, rng)), "JPEG")
    rewritten = tables_for([other]).rewrite(data)
    assert rewritten != data
    assert np.array_equal(shown(rewritten), shown(data))
    assert {marker for marker, _ in segments(rewritten)}.isdisjoint({0xC2, 0xDD})  # progressive frame, restarts


def test_all_files_have_the_same_tables(files: dict[str, bytes], tables: HuffmanTables) -> None:
    found = set()
    for name, data in files.items():
        if name not in KEPT:
            found |= {contents for marker, contents in segments(tables.rewrite(data)) if marker == 0xC4}
    assert len(found) == 4
    assert all(contents in tables.segment for contents in found)


def test_exif_data_colour_profiles_and_comments_are_kept_in_their_order() -> None:
    image = Image.fromarray(photo(40, 60, np.random.default_rng(0)))
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = bytes(range(256)) * 400  # several segments
    data = encode(image, "JPEG", progressive=True, exif=exif, icc_profile=profile, comment=b"mine", dpi=(30, 40))
    rewritten = tables_for([data]).rewrite(data)
    kept = [(marker, contents) for marker, contents in segments(rewritten) if marker >= 0xE0]
    assert kept == [(marker, contents) for marker, contents in segments(data) if marker >= 0xE0]
    assert len(kept) == 5
    assert shown(rewritten) is not None
    assert np.array_equal(shown(rewritten), shown(data))


def test_markers_behind_the_first_scan_do_not_turn_the_image() -> None:
    image = Image.fromarray(photo(40, 60, np.random.default_rng(0)))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned, plain = encode(image, "JPEG", exif=exif), encode(image, "JPEG", progressive=True)
    marker = next(contents for marker, contents in segments(turned) if marker == 0xE1)
    second_scan = plain.index(b"\xff\xc4", plain.index(b"\xff\xda"))
    data = plain[:second_scan] + b"\xff\xe1" + (len(marker) + 2).to_bytes(2, "big") + marker + plain[second_scan:]
    rewritten = tables_for([data]).rewrite(data)
    assert rewritten != data
    assert np.array_equal(shown(rewritten), shown(data))


def test_a_progressive_photo_without_its_last_scan_stays_as_it_is() -> None:
    data = encode(Image.fromarray(photo(40, 60, np.random.default_rng(0))), "JPEG", progressive=True)
    cut = without_last_scan(data)
    assert tables_for([data]).rewrite(data) != data
    assert tables_for([cut]).rewrite(cut) == cut


def test_a_jpeg_with_more_scans_or_pixels_than_the_limits_stays_as_it_is(tables: HuffmanTables) -> None:
    data = encode(Image.fromarray(photo(16, 16, np.random.default_rng(0))), "JPEG", progressive=True)
    first_scan = data.index(b"\xff\xda")
    second_scan = data.index(b"\xff\xda", first_scan + 2)
    scan = data[first_scan : data.index(b"\xff\xc4", first_scan)]
    many = data[:first_scan] + 70 * scan + data[first_scan:second_scan] + data[second_scan:]
    frame = data.index(b"\xff\xc2")
    large = data[: frame + 5] + b"\xff\xff\xff\xff" + data[frame + 9 :]
    for bomb in (many, large):
        assert tables.rewrite(bomb) == bomb


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"text"])
def test_what_is_no_jpeg_stays_as_it_is(data: bytes, tables: HuffmanTables) -> None:
    assert tables.rewrite(data) == data


def test_tables_that_lack_a_code_for_a_photo_leave_it_as_it_is() -> None:
    image = Image.fromarray(photo(40, 60, np.random.default_rng(0)))
    rich, flat = encode(image, "JPEG", quality=100), encode(Image.new("RGB", (40, 60), "gray"), "JPEG")
    few = b"".join(bytes([name, 2, *[0] * 15, 0, 1]) for name in (0x00, 0x10, 0x01, 0x11))  # two codes a table
    assert HuffmanTables(segment=few).rewrite(rich) == rich
    assert HuffmanTables(segment=few.replace(b"\2\0", b"\1\0").replace(b"\0\1", b"\0")).rewrite(rich) == rich
    assert tables_for([flat]).rewrite(rich) != rich


@pytest.mark.parametrize(
    "segment",
    [b"", bytes(68), bytes([0, *[255] * 16]), bytes([0, 1, *[0] * 15]), bytes([0, 1, *[0] * 15, 12])],
    ids=["empty", "unnamed", "too many symbols", "truncated", "too large a symbol"],
)
def test_tables_that_are_no_tables_are_refused(segment: bytes, files: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match="contents of a DHT segment with four tables"):
        HuffmanTables(segment=segment).rewrite(files["420_90"])


@pytest.mark.parametrize("counts", [np.zeros(1023, np.int64), np.zeros((4, 256), np.uint8)])
def test_counts_of_another_size_are_refused(counts: NDArray[Any], files: dict[str, bytes]) -> None:
    native: Any = importlib.import_module("mpload.images._transcode")
    with pytest.raises(ValueError, match="counts must be int64"):
        native.count(files["420_90"], counts)


def test_counts_and_tables_do_not_depend_on_the_form_of_a_jpeg(files: dict[str, bytes]) -> None:
    image = Image.fromarray(photo(61, 83, np.random.default_rng(0)))
    plain = encode(image, "JPEG")
    for option in ("progressive", "restart_marker_rows", "optimize"):
        assert tables_for([encode(image, "JPEG", **{option: True})]) == tables_for([plain])


@pytest.mark.parametrize("options", [{}, {"keep_rgb": True}, {"subsampling": "4:4:4"}, {"quality": 5}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_all_symbols_of_a_scan_are_counted_and_for_the_right_table(mode: str, options: dict[str, Any]) -> None:
    data = encode(Image.fromarray(photo(96, 64, np.random.default_rng(0))).convert(mode), "JPEG", **options)
    counts = np.zeros((4, 256), np.int64)
    native: Any = importlib.import_module("mpload.images._transcode")
    assert native.count(data, counts)
    tables = {contents[0]: contents for marker, contents in segments(data) if marker == 0xC4}
    num_bits = 0
    for name, found in zip((0x00, 0x10, 0x01, 0x11), counts.tolist(), strict=True):
        if name in tables:
            lengths = (bits for bits, number in enumerate(tables[name][1:17], start=1) for _ in range(number))
            num_bits += sum(
                found[symbol] * (bits + symbol % 16) for bits, symbol in zip(lengths, tables[name][17:], strict=True)
            )
        else:
            assert sum(found) == 0
    start = data.index(b"\xff\xda")
    scan = data[start + 2 + data[start + 3] : -2].replace(b"\xff\0", b"\xff")
    assert 0 <= 8 * len(scan) - num_bits < 8


def test_tables_made_for_a_photo_make_it_smaller_than_the_standard_ones() -> None:
    for seed in range(5):
        image = Image.fromarray(photo(200, 300, np.random.default_rng(seed)))
        data, optimised = encode(image, "JPEG"), encode(image, "JPEG", optimize=True)
        num_spare_bytes = 4 * 162  # of codes for symbols that do not occur in the photo
        assert len(tables_for([data]).rewrite(data)) < min(len(data), len(optimised) + num_spare_bytes)


@given(st.lists(st.integers(1, 1 << 40), min_size=2, max_size=256))
@example([1] * 256)
@example([round(1.7**power) for power in range(60)])  # so that an unlimited code would have 60 bits
def test_codes_have_at_most_16_bits_and_none_consists_of_ones_only(counts: list[int]) -> None:
    lengths = code_lengths(counts)
    assert len(lengths) == 16
    assert sum(lengths) == len(counts)
    assert min(lengths) >= 0
    assert sum(Fraction(number, 2 << place) for place, number in enumerate(lengths)) < 1


@given(st.lists(st.integers(1, 100), min_size=2, max_size=6))
def test_codes_are_optimal(counts: list[int]) -> None:
    counts.sort(reverse=True)
    lengths = [bits for bits, number in enumerate(code_lengths(counts), start=1) for _ in range(number)]
    assert cost(lengths, counts) == min(cost(tried, counts) for tried in legal_lengths(len(counts), 0, 1))


def cost(lengths: list[int], counts: list[int]) -> int:
    return sum(length * count for length, count in zip(lengths, counts, strict=True))


def legal_lengths(num_codes: int, used: Fraction | int, shortest: int) -> list[list[int]]:
    """Return all ascending code lengths up to 7 bits that leave room for one more code."""
    if num_codes == 0:
        return [[]]
    return [
        [bits, *others]
        for bits in range(shortest, 8)
        if used + Fraction(1, 1 << bits) < 1
        for others in legal_lengths(num_codes - 1, used + Fraction(1, 1 << bits), bits)
    ]
