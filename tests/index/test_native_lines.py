"""No damaged text or sidecar makes the native reader of lines access foreign memory."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing (apt install gcc)")
def test_no_damaged_text_or_sidecar_makes_the_native_reader_access_foreign_memory(tmp_path: Path) -> None:
    fuzzer = tmp_path / "fuzz"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    sources = [PROJECT / "tests/support/fuzz_lines.c", *sorted((PROJECT / "mpload/index").glob("_line_*.c"))]
    built = subprocess.run(
        ["gcc", *flags, *sources, "-o", str(fuzzer)], capture_output=True, text=True, check=False, timeout=100
    )
    if "cannot find" in built.stderr:
        pytest.skip("gcc comes without its sanitizers here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([fuzzer, "3", "0"], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    num_inputs, _, num_read, _ = done.stdout.split()
    assert int(num_read) > int(num_inputs) / 10 > 100
