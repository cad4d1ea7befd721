"""The kernel that draws views, in Triton's interpreter and on a GPU; and what happens where Triton does not work."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mpload.device import kernels
from mpload.device.drawing import draw_each, find_draw_views
from mpload.errors import MploadWarning
from tests.support.large_batches import DEVICE

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import warnings, torch
from tests.support.drawings import check_drawing
warnings.simplefilter("ignore")  # of NumPy, for pixels outside the image
check_drawing(torch.device("cpu"), num_views=20, largest=60)
"""


@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_interpreted_kernel_draws_the_pixels_that_torch_draws() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.gpu
def test_the_compiled_kernel_draws_the_pixels_that_torch_draws() -> None:
    if find_draw_views(DEVICE) is draw_each:
        pytest.skip("needs CUDA, Triton and a C compiler")
    from tests.support.drawings import check_drawing  # imports Triton

    check_drawing(DEVICE, num_views=60, largest=900)


@pytest.mark.gpu
def test_a_picture_of_many_pixels_is_drawn() -> None:
    if find_draw_views(DEVICE) is draw_each:
        pytest.skip("needs CUDA, Triton and a C compiler")
    from mpload.images.resize import Box, View

    part = torch.full((3, 5, 5), 9, dtype=torch.uint8, device=DEVICE)
    out = torch.zeros((1, 4200, 4200, 3), dtype=torch.uint8, device=DEVICE)
    find_draw_views(DEVICE)([part], [View(box=Box(0, 0, 5, 5), full=(4200, 4200))], out, [0])
    assert bool((out == 9).all())


def test_a_triton_that_does_not_work_is_left_alone_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.device) -> None:
        raise OSError("the cache folder cannot be written")

    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    monkeypatch.setattr(kernels, "_try_kernel", fail)
    with pytest.warns(MploadWarning, match="Triton does not work on cuda, so slower kernels .*the cache folder"):
        draw: Any = find_draw_views(torch.device("cuda"))
    assert draw is draw_each
