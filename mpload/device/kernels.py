"""Whether this process can compile kernels for a device."""

import importlib.util
import os
import shutil

import torch

from mpload.errors import warn

__all__ = ["can_compile"]


def can_compile(device: torch.device) -> bool:
    """Return whether Triton compiles and runs a small kernel on `device`; warn if it is installed, but fails.

    It needs CUDA and, for its launcher, a C compiler.
    """
    has_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))  # where Triton looks for one
    if device.type != "cuda" or not has_compiler or importlib.util.find_spec("triton") is None:
        return False
    try:
        _try_kernel(device)
    except Exception as error:  # noqa: BLE001  compiler, headers, driver, cache folder: each raises another type
        warn(
            f"Triton does not work on {device}, so slower kernels of torch are used: {error!r:.300}. "
            "Run pip uninstall triton if you do not need it"
        )
        return False
    return True


def _try_kernel(device: torch.device) -> None:
    from mpload.device.convert_kernel import convert  # noqa: PLC0415  needs the optional package triton

    with torch.cuda.device(device):
        pixels = torch.zeros(1, 3, 4, 4, dtype=torch.uint8, device=device)
        numbers = torch.zeros(3, 1, 1, device=device)
        convert(pixels, numbers, numbers, torch.empty(1, 3, 4, 4, device=device))
