"""An accelerator for tests: it uses torch's own dispatcher, streams and events, but its work is done by threads."""

import subprocess
import tempfile
from pathlib import Path

import torch
from torch.utils.backend_registration import rename_privateuse1_backend
from torch.utils.cpp_extension import include_paths, library_paths

from tests.support.late_device import module

__all__ = ["install"]

_SOURCE = Path(__file__).with_name("late.cpp")


def install() -> None:
    """Make two devices of type "late" torch's accelerators for the rest of the process. Compiling them takes 10 s."""
    rename_privateuse1_backend("late")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "late.so"
        _compile(library)
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    torch._register_device_module("late", module)  # type: ignore[no-untyped-call]


def _compile(library: Path) -> None:
    command = ["g++", "-shared", "-fPIC", "-O1", "-std=c++20", "-w", str(_SOURCE), "-o", str(library)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={torch.compiled_with_cxx11_abi():d}"]
    command += [f"-isystem{path}" for path in include_paths()]
    command += [f"-L{path}" for path in library_paths()]
    subprocess.run([*command, "-ltorch_cpu", "-lc10"], check=True)
