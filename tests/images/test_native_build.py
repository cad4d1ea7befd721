"""The native modules are built where they can be, and damaged files never make the decoder access foreign memory."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.make_formats import FOLDER

PROJECT = Path(__file__).parents[2]


def has_headers() -> bool:
    return subprocess.run(
        ["gcc", "-fsyntax-only", "-x", "c", "-"], input="#include <stdio.h>\n#include <jpeglib.h>\n", text=True,
        stderr=subprocess.DEVNULL, check=False,
    ).returncode == 0  # fmt: skip


@pytest.fixture(scope="module")
def gcc() -> None:
    if shutil.which("gcc") is None or not has_headers():
        pytest.skip("gcc or libjpeg-turbo's headers are missing (apt install gcc libjpeg62-turbo-dev)")


def build(folder: Path, **environment: str) -> list[Path]:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", f"--build-temp={folder}", f"--build-lib={folder}"]
    environment = {"PATH": "/usr/bin:/bin", **environment}
    subprocess.run(command, cwd=PROJECT, env=environment, check=True, capture_output=True, timeout=100)
    return sorted(folder.rglob("*.so"))


@pytest.mark.processes
@pytest.mark.usefixtures("gcc")
def test_the_native_modules_are_built_if_a_compiler_is_available(tmp_path: Path) -> None:
    modules = build(tmp_path)
    assert [module.name.partition(".")[0] for module in modules] == ["_jpeg", "_files"]
    folders = [str(module.parent) for module in modules]
    code = f"""import sys; sys.path[:0] = {folders!r}
import _files, _jpeg; _files.open_beneath(0, ""); print(_jpeg.LIBJPEG_TURBO_VERSION)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count(".") == 2


@pytest.mark.processes
def test_native_modules_are_left_out_if_they_cannot_be_built(tmp_path: Path) -> None:
    assert build(tmp_path, CC="false") == []


@pytest.mark.processes
@pytest.mark.usefixtures("gcc")
def test_no_damaged_file_or_view_makes_the_native_decoder_access_foreign_memory(tmp_path: Path) -> None:
    fuzzer = tmp_path / "fuzz"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DOWN_MAIN"]
    images = PROJECT / "mpload" / "images"
    sources = [PROJECT / "tests" / "support" / "fuzz_native.c", *sorted({*images.glob("_*.c")} - {images / "_jpeg.c"})]
    built = subprocess.run(
        ["gcc", *flags, *sources, "-ljpeg", "-lm", "-o", str(fuzzer)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    if "cannot find" in built.stderr:
        pytest.skip("gcc comes without its sanitizers here")
    assert built.returncode == 0, built.stderr
    seeds = sorted(FOLDER.glob("jpeg*"))
    done = subprocess.run([fuzzer, "3", "0", *seeds], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    num_inputs = int(done.stdout.split()[0])
    assert num_inputs > 1000
