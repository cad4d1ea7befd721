"""The kernel that normalises pixels, in Triton's interpreter and on a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpload.device.kernels import can_compile
from mpload.device.normalise import Normaliser
from tests.support.device_batches import DTYPES, MEAN, STD
from tests.support.large_batches import DEVICE, large

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import torch
from tests.support.conversions import check_all
print(check_all(torch.device("cpu"), roundings=1.0))  # the interpreter cuts off the low bits of a bfloat16
"""


@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernel_computes_the_values_of_float64_for_all_layouts_and_dtypes() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "84\n"), found.stderr


def needs_compiler() -> None:
    if not can_compile(DEVICE):
        pytest.skip("needs CUDA, Triton and a C compiler")


@pytest.mark.gpu
def test_the_compiled_kernel_computes_the_values_of_float64_for_all_layouts_and_dtypes() -> None:
    needs_compiler()
    from tests.support.conversions import check_all  # imports Triton

    assert check_all(DEVICE, roundings=0.501) == 84


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_large_batches_are_converted_by_the_kernel_to_what_torch_computes(
    dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    needs_compiler()
    images = large(0).to(DEVICE)
    outs = [torch.empty(images.shape, dtype=dtype, device=DEVICE, memory_format=memory_format) for _ in range(2)]
    normaliser = Normaliser(dtype=dtype, mean=MEAN, std=STD)
    normaliser.write(images, outs[0])
    assert normaliser._kernel is not None
    assert normaliser._kernel.takes(images, outs[0])
    assert not normaliser._kernel.takes(images[:, :, ::2], outs[0][:, :, ::2])
    normaliser._kernel = None
    normaliser.write(images, outs[1])
    # float32 sums in another order, then one rounding
    torch.testing.assert_close(outs[0], outs[1], rtol=torch.finfo(dtype).eps, atol=2e-6)
