"""Whether this process can compile kernels for a device."""

import importlib.util
import os
import shutil

import torch

__all__ = ["can_compile"]


def can_compile(device: torch.device) -> bool:
    """Return whether Triton can compile kernels for `device`: it needs CUDA and, for its launcher, a C compiler."""
    has_compiler = bool(os.environ.get("CC")) or any(map(shutil.which, ("cc", "gcc", "clang")))
    return device.type == "cuda" and has_compiler and importlib.util.find_spec("triton") is not None
