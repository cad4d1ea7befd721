"""mpload's own Huffman decoder: the same pixels, errors and words as libjpeg-turbo's, only faster."""

import ctypes
import importlib.util
import mmap
import platform
import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images import backends
from mpload.images.backends import StoredView
from mpload.images.decoders import ImageDecoder, ResizeCenterCrop, jpeg_backend
from mpload.images.image import open_image
from mpload.images.jpeg import Jpeg
from mpload.images.limits import Limits
from mpload.images.resize import Box
from mpload.images.shrink import shrunk_by
from tests.support.fuzz_seeds import write_seeds
from tests.support.jpegs import NATIVE, VARIETIES, in_three_scans, make, view_of_all, views

PROJECT = Path(__file__).parents[2]
PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native decoder is not built")


@pytest.fixture(scope="module")
def plain() -> Iterator[ModuleType]:
    """The native decoder a second time, with the environment variable that switches its Huffman decoder off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLOAD_LIBJPEG_HUFFMAN", "1")
        module = importlib.util.module_from_spec(NATIVE.__spec__)
        NATIVE.__spec__.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in write_seeds(tmp_path_factory.mktemp("seeds"))}


def outcome(module: Any, data: bytes | memoryview, view: StoredView, size: tuple[int, int]) -> str | bytes:
    """Return the pixels, or why they were declined."""
    out = np.zeros((*size, 3), np.uint8)
    cause: str | None = module.decode(data, view, out)
    return out.tobytes() if cause is None else cause


def test_the_self_test_passes_with_the_installed_libjpeg_turbo() -> None:
    assert NATIVE.WITH_HUFFMAN


@pytest.mark.slow
@pytest.mark.parametrize("variety", VARIETIES)
@settings(max_examples=60)
@given(data=st.data())
def test_any_crop_has_the_pixels_that_libjpeg_turbo_alone_gives_it(
    plain: ModuleType, variety: str, data: st.DataObject
) -> None:
    height, width = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 150))
    seed, quality = data.draw(st.integers(0, 5)), data.draw(st.sampled_from((20, 75, 92, 100)))
    file = make(variety, height, width, seed=seed, quality=quality)
    for _ in range(3):
        view, size = data.draw(views(height, width))
        expected = outcome(plain, file, view, size)
        assert outcome(NATIVE, file, view, size) == expected  # perhaps by libjpeg-turbo: new tables are only noted
        assert outcome(NATIVE, file, view, size) == expected


@settings(max_examples=400)
@given(data=st.data())
def test_damage_has_the_same_outcome_in_the_same_words(
    plain: ModuleType, seeds: dict[str, bytes], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(seeds)))
    file = bytearray(seeds[name])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(file) - 1))
        put = data.draw(st.sampled_from((b"\xff", b"\x00", b"\xff\xd0", b"\xff\xd9", b"\xff\xff", b"\x7f")))
        file[at : at + len(put)] = put
    file = file[: data.draw(st.sampled_from((len(file), len(file), len(file) * 2 // 3)))]
    try:
        image = open_image(bytes(file), limits=Limits(max_pixels=100_000))
    except DecodeError:
        return
    if isinstance(image, Jpeg):
        view, size = data.draw(views(*image.stored_size))
        expected = outcome(plain, bytes(file), view, size)
        for _ in range(2):
            assert outcome(NATIVE, bytes(file), view, size) == expected


@pytest.mark.parametrize("variety", ["420", "restarts", "gray"])
def test_no_byte_behind_a_file_is_read_wherever_it_breaks_off(plain: ModuleType, variety: str) -> None:
    file = make(variety, 40, 50, seed=3, quality=90)
    view, size = view_of_all(40, 50)
    outcome(NATIVE, file, view, size)  # its tables are noted, so that they are used from now on
    num_pages = -(-len(file) // PAGE)
    pages = mmap.mmap(-1, (num_pages + 1) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + num_pages * PAGE), PAGE, 0) == 0  # a read there is a SIGSEGV
    end = num_pages * PAGE
    for length in range(file.index(b"\xff\xda"), len(file) + 1):
        pages[end - length : end] = file[:length]
        with memoryview(pages)[end - length : end] as data:
            assert outcome(NATIVE, data, view, size) == outcome(plain, data, view, size)


@pytest.mark.parametrize("variety", VARIETIES)
def test_whole_pictures_are_those_of_simplejpeg(variety: str) -> None:
    for seed, (height, width) in enumerate(((1, 1), (37, 90), (200, 131))):
        file = make(variety, height, width, seed=seed, quality=90)
        for denominator in (1, 2, 4, 8):
            view, size = view_of_all(height, width, denominator)
            least = {"min_height": size[0], "min_width": size[1], "min_factor": denominator}
            pixels = simplejpeg.decode_jpeg(file, "RGB", **least)
            for _ in range(2):
                assert outcome(NATIVE, file, view, size) == pixels.tobytes()
        np.testing.assert_array_equal(ImageDecoder()(file), simplejpeg.decode_jpeg(file, "RGB"))


@pytest.mark.parametrize("factors", [(0x42, 0x11, 0x11), (0x24, 0x11, 0x11), (0x22, 0x41, 0x12)])
@pytest.mark.parametrize("denominator", [1, 2, 4, 8])
def test_crops_are_parts_of_the_whole_picture_at_rare_samplings(
    plain: ModuleType, factors: tuple[int, ...], denominator: int
) -> None:
    """No encoder here writes these: the blocks of a gray picture of 80 x 160 get another header."""
    gray = make("gray", 80, 160, seed=0, quality=90)
    frame, scan = gray.index(b"\xff\xc0"), gray.index(b"\xff\xda")
    components = b"".join(bytes([number, factor, 0]) for number, factor in enumerate(factors, 1))
    header = b"\xff\xc0\0\x11\x08\0\x40\0\xa0\x03" + components  # 64 x 160 pixels
    start = b"\xff\xda\0\x0c\x03\1\0\2\0\3\0\0\x3f\0"
    file = gray[:frame] + header + gray[frame + 13 : scan] + start + gray[scan + 10 :]
    view, (height, width) = view_of_all(64, 160, denominator)
    whole = np.zeros((height, width, 3), np.uint8)
    assert plain.decode(file, view, whole) is None
    for left, columns in ((0, 1), (1, 1), (1, width - 2), (width // 3, width // 2), (width - 2, 2)):
        box = Box(top=1, left=left, height=height - 1, width=columns)
        crop = view._replace(box=box, full=(box.height, box.width))
        for module in (plain, NATIVE, NATIVE):
            assert outcome(module, file, crop, crop.full) == box.of(whole).tobytes()


def test_whole_pictures_are_decoded_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    file = make("420", 60, 80, seed=0, quality=90)
    expected = ImageDecoder()(file)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    np.testing.assert_array_equal(ImageDecoder()(file), expected)


def test_no_photo_depends_on_the_one_before(seeds: dict[str, bytes]) -> None:
    """libjpeg keeps tables for files that come without; those of another photo make noise."""

    def middle(name: str) -> NDArray[np.uint8]:
        return ResizeCenterCrop(32)(seeds[name])

    alone = ResizeCenterCrop(32, backend="simplejpeg")(seeds["no_tables.jpg"])
    for name in ("optimised.jpg", "gray.jpg", "noise.jpg"):
        middle(name)
        np.testing.assert_array_equal(middle("no_tables.jpg"), alone)


def test_no_later_scan_has_tables_of_the_photo_before(plain: ModuleType) -> None:
    gray = make("gray", 40, 50, seed=0, quality=90)
    view, size = view_of_all(40, 50)
    whole = outcome(plain, in_three_scans(gray), view, size)
    assert isinstance(whole, bytes)
    quantization = gray.index(b"\xff\xdb\0\x43\0") + 4
    kinds = [gray.index(bytes([0xFF, 0xC4])) + 4, gray.index(b"\xff\xc4", gray.index(b"\xff\xc4") + 1) + 4]
    others = bytearray(gray)  # the photo before, with all its tables in the last places
    for place in (quantization, *kinds):
        others[place] |= 3
    others[gray.index(b"\xff\xc0") + 12] = 3
    others[gray.index(b"\xff\xda") + 6] = 0x33
    for file in (in_three_scans(gray, table=3), in_three_scans(gray, quantization=3)):
        for module in (plain, NATIVE):
            before = outcome(module, file, view, size)
            assert isinstance(before, str)
            assert isinstance(outcome(module, bytes(others), view, size), bytes)
            assert outcome(module, file, view, size) == before


def test_tables_that_change_from_photo_to_photo_are_never_mixed_up(plain: ModuleType) -> None:
    files = [make("optimised", 80 + seed, 90, seed=seed, quality=60 + 10 * seed) for seed in range(4)]
    standard = make("420", 100, 120, seed=0, quality=50)
    symbols = standard.index(b"\x10", standard.index(b"\xff\xc4\x00\xb5")) + 17  # of the first AC table
    first, second = standard.index(0x01, symbols), standard.index(0x11, symbols)
    swapped = bytearray(standard)  # another file whose codes have the same lengths
    swapped[first], swapped[second] = standard[second], standard[first]
    files += [standard, standard, bytes(swapped), bytes(swapped)]
    files += [make("gray", 80, 90, seed=0, quality=100), make("444", 300, 300, seed=1, quality=98)]
    for file in chain(files, files[::-1], files[:2] * 3, files):
        view, size = view_of_all(*simplejpeg.decode_jpeg_header(file)[:2])
        assert outcome(NATIVE, file, view, size) == outcome(plain, file, view, size)


def test_the_backend_says_where_libjpeg_turbo_decodes_huffman_codes(
    plain: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not plain.WITH_HUFFMAN
    assert "Huffman" not in jpeg_backend()
    assert jpeg_backend() in shrunk_by()
    monkeypatch.setattr(backends, "NATIVE", plain)
    version = NATIVE.LIBJPEG_TURBO_VERSION
    assert jpeg_backend() == f"native (libjpeg-turbo {version}, slower: without mpload's Huffman decoder)"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("take_over", "agrees"),
    [
        ("return take_over_indeed(huffman, info, left, right);", True),
        ("return 0;", False),
        ("return take_over_indeed(huffman, info, left + 40, right);", False),
        ("int taken = take_over_indeed(huffman, info, left, right); huffman->predictors[0]++; return taken;", False),
    ],
)
def test_the_self_test_finds_a_decoder_that_is_not_used_or_wrong(tmp_path: Path, take_over: str, agrees: bool) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing")
    images = PROJECT / "mpload" / "images"
    (tmp_path / "main.c").write_text(f"""
        #define take_over take_over_indeed
        #include "_huffman_scan.c"
        #undef take_over
        int take_over(Huffman *huffman, j_decompress_ptr info, JDIMENSION left, JDIMENSION right) {{ {take_over} }}
        int main(void) {{ return huffman_agrees(); }}
    """)
    left_out = {images / f"{name}.c" for name in ("_jpeg", "_jpeg_crops", "_transcode", "_huffman_scan")}
    left_out |= {*images.glob("_mask*.c")}
    sources = [tmp_path / "main.c", *sorted({*images.glob("_*.c")} - left_out)]
    program = tmp_path / "self_test"
    subprocess.run(["gcc", f"-I{images}", *sources, "-ljpeg", "-lm", "-o", program], check=True, timeout=100)
    assert subprocess.run([program], check=False, timeout=100).returncode == agrees


@pytest.mark.slow
@pytest.mark.processes
def test_the_self_test_survives_any_allocation_that_fails(tmp_path: Path) -> None:
    if shutil.which("gcc") is None or platform.libc_ver()[0] != "glibc":
        pytest.skip("gcc or glibc is missing")
    images = PROJECT / "mpload" / "images"
    (tmp_path / "main.c").write_text("""
        #include <stdlib.h>
        #include "_huffman.h"
        void *__libc_malloc(size_t bytes);
        static int until_failure = -1;  /* never */
        void *malloc(size_t bytes) { return until_failure-- == 0 ? NULL : __libc_malloc(bytes); }
        int main(void) {
            for (int number = 0; number < 200; number++) {
                until_failure = number;
                huffman_agrees();
            }
            until_failure = -1;
            return huffman_agrees();
        }
    """)
    modules = {images / f"{name}.c" for name in ("_jpeg", "_jpeg_crops", "_transcode")} | {*images.glob("_mask*.c")}
    sources = [tmp_path / "main.c", *sorted({*images.glob("_*.c")} - modules)]
    program = tmp_path / "self_test"
    subprocess.run(["gcc", f"-I{images}", *sources, "-ljpeg", "-lm", "-o", program], check=True, timeout=100)
    assert subprocess.run([program], check=False, timeout=100).returncode == 1
