"""Rows are resized with the processor's SIMD instructions, and the pixels are the same as without them."""

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.images import backends
from mpload.images.backends import StoredView
from mpload.images.resize import Box
from tests.golden.make_formats import FOLDER
from tests.support.native import needs_native

PROJECT = Path(__file__).parents[2]
IMAGES = PROJECT / "mpload" / "images"
NATIVE: Any = backends.NATIVE
BASELINE = {"x86_64": "sse2", "aarch64": "neon"}.get(platform.machine(), "plain")
FILE = (FOLDER / "jpeg_444.jpg").read_bytes()
SIZE = (40, 56)

pytestmark = needs_native


def native_with(simd: str) -> ModuleType:
    """Return the native decoder a second time, with the environment variable that chooses its instructions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLOAD_SIMD", simd)
        module = importlib.util.module_from_spec(NATIVE.__spec__)
        NATIVE.__spec__.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def all_kinds() -> list[ModuleType]:
    return [native_with(simd) for simd in ("plain", BASELINE, "avx2", "avx512")]


def outcome(module: Any, view: StoredView, size: tuple[int, int]) -> bytes | str:
    out = np.zeros((*size, 3), np.uint8)
    cause: str | None = module.decode(FILE, view, out)
    return out.tobytes() if cause is None else cause


@st.composite
def views(draw: st.DrawFn) -> tuple[StoredView, tuple[int, int]]:
    """Any window of any box, resized to any size; some are shrunk so much that they are declined."""

    def spans(length: int, most: int) -> tuple[int, int, int, int, int]:
        shown = draw(st.integers(1, length))
        full = draw(st.integers(1, most))
        kept = draw(st.integers(1, full))
        start, corner = draw(st.integers(0, length - shown)), draw(st.integers(0, full - kept))
        return start, shown, full, corner, kept

    top, height, full_height, corner_top, rows = spans(SIZE[0], draw(st.sampled_from((8, 150))))
    left, width, full_width, corner_left, columns = spans(SIZE[1], draw(st.sampled_from((8, 150))))
    box = Box(top=top, left=left, height=height, width=width)
    full, corner = (full_height, full_width), (corner_top, corner_left)
    return StoredView(SIZE, 1, box, full, corner, draw(st.booleans()), draw(st.booleans())), (rows, columns)


@pytest.mark.slow
@settings(max_examples=500)
@given(view=views())
def test_pixels_do_not_depend_on_the_instructions(
    all_kinds: list[ModuleType], view: tuple[StoredView, tuple[int, int]]
) -> None:
    plain, *others = (outcome(module, *view) for module in all_kinds)
    assert all(other == plain for other in others)


def test_the_environment_chooses_the_instructions(all_kinds: list[ModuleType]) -> None:
    assert [module.SIMD for module in all_kinds[:2]] == ["plain", BASELINE]
    assert native_with("").SIMD == NATIVE.SIMD


def kinds_of_this_processor() -> list[str]:
    """Return the instructions that can be used here, the fastest last."""
    flags = Path("/proc/cpuinfo").read_text().split()
    kinds = [BASELINE]
    if BASELINE == "sse2" and "avx2" in flags:
        kinds.append("avx2")
    if "avx2" in kinds and {"avx512bw", "avx512vbmi"} <= set(flags):
        kinds.append("avx512")
    return kinds


def test_the_fastest_instructions_of_the_processor_are_used() -> None:
    *slower, fastest = kinds_of_this_processor()
    assert fastest == NATIVE.SIMD
    assert [native_with(simd).SIMD for simd in slower] == slower


@pytest.fixture
def gcc() -> str:
    if (path := shutil.which("gcc")) is None:
        pytest.skip("gcc is missing")
    return path


@pytest.mark.slow
@pytest.mark.processes
def test_rows_of_all_sizes_are_resized_alike_within_their_buffers(gcc: str, tmp_path: Path) -> None:
    program = tmp_path / "check"
    sources = [PROJECT / "tests" / "support" / "check_resize.c", *sorted(IMAGES.glob("_resize*.c"))]
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    built = subprocess.run(
        [gcc, *flags, *sources, "-lm", "-o", program], capture_output=True, text=True, check=False, timeout=100
    )
    if "cannot find" in built.stderr:
        pytest.skip("gcc comes without its sanitizers here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, "3000", "0"], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [kind for kind in kinds_of_this_processor() if kind != "plain"]
