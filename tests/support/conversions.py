"""Images of many shapes, and memory formats for them, converted by the kernel and compared with float64."""

import itertools

import torch

from mpload.device.convert_kernel import convert
from tests.support.device_batches import DTYPES, reference

SHAPES = [(2, 3, 16, 16), (0, 3, 4, 4), (5, 3, 7, 11), (3, 1, 5, 5), (1, 4, 40, 40), (2, 5, 1, 1), (3, 3, 97, 101)]
FORMATS = [torch.contiguous_format, torch.channels_last]


def check_all(device: torch.device, *, roundings: float = 0.5) -> int:
    """Check all shapes, dtypes and formats, and return their number.

    Args:
        device: where to convert.
        roundings: allowed error of the last rounding, in units of the last place.
    """
    generator = torch.Generator().manual_seed(0)
    cases = list(itertools.product(SHAPES, DTYPES, FORMATS, FORMATS))
    for shape, dtype, source_format, out_format in cases:
        channels = shape[1]
        mean, std = [0.3 + 0.1 * n for n in range(channels)], [0.2 + 0.05 * n for n in range(channels)]
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        images = images.to(device).contiguous(memory_format=source_format)
        means, stds = (torch.tensor(each, dtype=torch.float64)[:, None, None] for each in (mean, std))
        # Values around `out` must not change.
        memory = torch.full((images.numel() + 64,), 7.0, dtype=dtype, device=device)
        like = torch.empty(shape).contiguous(memory_format=out_format)
        out = memory[32:].as_strided(shape, like.stride())
        convert(images, (1 / (255 * stds)).float().to(device), (-means / stds).float().to(device), out)
        expected = reference(images, mean, std)
        # The bound in the docstring of `Normaliser`, then the rounding to the dtype.
        largest = expected.abs().max().item() if expected.numel() else 0.0
        bound = 2e-7 * (1 + (means / stds).max().item()) * largest
        rounding = roundings * torch.finfo(dtype).eps
        error = (out.double() - expected).abs() - bound * (1 + rounding) - rounding * expected.abs()
        case = f"{shape} {dtype} {source_format} {out_format}"
        assert not error.numel() or error.max().item() <= 0, case
        assert bool((memory[:32] == 7).all() & (memory[32 + images.numel() :] == 7).all()), case
    return len(cases)
