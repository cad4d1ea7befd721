"""The native modules are built where they can be, and damaged files never make them access foreign memory."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.golden.make_formats import FOLDER
from tests.support.value_files import png, value_files

PROJECT = Path(__file__).parents[2]


def has_headers() -> bool:
    return subprocess.run(
        ["gcc", "-fsyntax-only", "-x", "c", "-"], input="#include <stdio.h>\n#include <jpeglib.h>\n", text=True,
        stderr=subprocess.DEVNULL, check=False,
    ).returncode == 0  # fmt: skip


def has_deflate() -> bool:
    return subprocess.run(
        ["gcc", "-fsyntax-only", "-x", "c", "-"], input="#include <libdeflate.h>\n", text=True,
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


@pytest.mark.slow  # compiles everything
@pytest.mark.usefixtures("gcc")
def test_the_native_modules_are_built_if_a_compiler_is_available(tmp_path: Path) -> None:
    modules = build(tmp_path)
    assert [module.name.partition(".")[0] for module in modules] == [
        "_jpeg",
        *(["_masks"] if has_deflate() else []),
        "_transcode",
        "_lines",
        "_mixture",
        "_permutation",
        "_objects",
        "_files",
        "_ragged",
    ]
    folders = [str(module.parent) for module in modules]
    code = f"""import sys; sys.path[:0] = {folders!r}
import _files, _jpeg, _lines, _mixture, _permutation, _ragged, _transcode
_files.open_beneath(0, "")
print(_jpeg.LIBJPEG_TURBO_VERSION)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count(".") == 2


@pytest.mark.processes
def test_native_modules_are_left_out_if_they_cannot_be_built(tmp_path: Path) -> None:
    assert build(tmp_path, CC="false") == []


def compile_with_sanitizers(program: Path, sources: list[Path], *libraries: str) -> None:
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DOWN_MAIN"]
    built = subprocess.run(
        ["gcc", *flags, *sources, *libraries, "-lm", "-o", str(program)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    if "cannot find" in built.stderr:
        pytest.skip("gcc comes without its sanitizers here")
    assert built.returncode == 0, built.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("gcc")
def test_no_damaged_file_or_view_makes_the_native_decoder_access_foreign_memory(tmp_path: Path) -> None:
    fuzzer = tmp_path / "fuzz"
    images = PROJECT / "mpload" / "images"
    modules = {images / f"{name}.c" for name in ("_jpeg", "_jpeg_crops", "_transcode")} | {*images.glob("_mask*.c")}
    sources = [PROJECT / "tests" / "support" / "fuzz_native.c", *sorted({*images.glob("_*.c")} - modules)]
    compile_with_sanitizers(fuzzer, sources, "-ljpeg")
    seeds = sorted(FOLDER.glob("jpeg*"))
    done = subprocess.run([fuzzer, "3", "0", *seeds], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    num_inputs = int(done.stdout.split()[0])
    assert num_inputs > 500


@pytest.mark.processes
@pytest.mark.usefixtures("gcc")
def test_decoded_rows_are_never_aligned(tmp_path: Path) -> None:
    """libjpeg-turbo writes aligned rows past the caches, so reading them for the resize would take long."""
    (tmp_path / "main.c").write_text("""
        #include "_decoder.h"
        static int num_rows, num_aligned;
        static JDIMENSION read_checked(j_decompress_ptr info, JSAMPARRAY rows, JDIMENSION count) {
            for (JDIMENSION row = 0; row < count; row++, num_rows++) {
                num_aligned += (uintptr_t)rows[row] % 16 == 0;
            }
            return jpeg_read_scanlines(info, rows, count);
        }
        #define jpeg_read_scanlines read_checked
        #include "_scale.c"
        int main(int argc, char **argv) {
            static uint8_t data[1 << 20], out[3 * 10 * 10];
            FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
            size_t num_bytes = file == NULL ? 0 : fread(data, 1, sizeof data, file);
            for (int width = 1; width <= 56; width++) {
                Decoder *decoder = new_decoder(1);
                View view = {40, 56, 1, 0, 0, 40, width, 10, 10, 0, 0, 10, 10, 0, 0};
                if (decoder == NULL || !decode_view(decoder, data, num_bytes, &view, out)) {
                    return 2;
                }
                free_decoder(decoder);
            }
            printf("%d of %d rows are aligned", num_aligned, num_rows);
            return num_rows < 56 * 40;
        }
    """)
    images = PROJECT / "mpload" / "images"
    left_out = {images / f"{name}.c" for name in ("_jpeg", "_jpeg_crops", "_transcode", "_scale")}
    left_out |= {*images.glob("_mask*.c")}
    sources = [tmp_path / "main.c", *sorted({*images.glob("_*.c")} - left_out)]
    program = tmp_path / "rows"
    subprocess.run(["gcc", f"-I{images}", *sources, "-ljpeg", "-lm", "-o", program], check=True, timeout=100)
    done = subprocess.run([program, FOLDER / "jpeg_444.jpg"], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.startswith("0 of ")


@pytest.mark.processes
@pytest.mark.usefixtures("gcc")
def test_no_damaged_mask_or_list_of_boxes_makes_native_code_access_foreign_memory(tmp_path: Path) -> None:
    if not has_deflate():
        pytest.skip("libdeflate's headers are missing (apt install libdeflate-dev)")
    masks = (f"images/_mask_{part}.c" for part in ("png", "nearest", "avx512"))
    parts = (*masks, "samples/_scan.c", "samples/_clip.c")
    sources = [PROJECT / "tests" / "support" / "fuzz_values.c", *(PROJECT / "mpload" / part for part in parts)]
    compile_with_sanitizers(tmp_path / "fuzz", sources, "-ldeflate")
    files = {name: data for name, (data, _) in value_files(20, 30).items() if name.startswith("png")}
    files["filters"] = png(np.indices((40, 50)).sum(axis=0).astype(np.uint8) // 7, 8, 0, filters=[0, 1, 2, 3, 4])
    for number in range(8):
        item = {
            "bbox": [10 * number, 5, 40.25, 60],
            "category_id": number,
            "score": 1 / 3,
            "a": {"b": [[1, "x"], None]},
        }
        files[f"list{number}"] = json.dumps([item] * (number % 3 + 1)).encode()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    command = [str(tmp_path / "fuzz"), "2", "0", *(str(tmp_path / name) for name in files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 1000
