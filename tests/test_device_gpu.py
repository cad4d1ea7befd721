"""DevicePrefetcher on a GPU: what only real streams, drivers and kernels can show."""

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpload import (
    DevicePrefetcher,
    GpuDecode,
    MPDataset,
    MPLoader,
    PerSample,
    RandomResizedCrop,
    ResizeCenterCrop,
    Topology,
    build_index,
)
from mpload.device.unpacking import device_decoder
from tests.photos import make_special_photos
from tests.test_device import Batches
from tests.test_normalise import DTYPES, MEAN, STD, every_pixel, reference
from tests.test_seeding import flip, noisy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.accelerator.is_available() and not torch.cuda.is_available(), reason="the accelerator is no CUDA device"
    ),
]
NORMALISED: dict[str, Any] = {"device": "cuda", "mean": MEAN, "std": STD}
SHAPE = (32, 3, 224, 224)


def large(number: int) -> torch.Tensor:
    """Batch `number`, 4.8 MB: uint8 SHAPE, channels_last."""
    pixels = np.random.default_rng(number).integers(0, 256, (SHAPE[0], *SHAPE[2:], SHAPE[1]), np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


class LargeBatches:
    def __init__(self, num: int = 8, *, pinned: bool = False) -> None:
        pairs = [(large(number), torch.full((SHAPE[0],), number)) for number in range(num)]
        self.pairs = [(images.pin_memory(), labels.pin_memory()) for images, labels in pairs] if pinned else pairs

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pairs)


def keep_busy() -> None:
    """Occupy the current stream for some 10 ms, in which copies of the next batches would be done."""
    torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]


def close(found: torch.Tensor, images: torch.Tensor) -> None:
    """Check values against float64: float32 arithmetic, then one rounding to the dtype."""
    eps = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double().cpu(), reference(images), rtol=0.51 * eps + 1e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("comes_channels_last", [True, False])
def test_values_are_those_of_float64_but_for_rounding(
    dtype: torch.dtype, channels_last: bool, comes_channels_last: bool
) -> None:
    images = every_pixel() if comes_channels_last else every_pixel().contiguous()
    loader = DevicePrefetcher([(images, torch.arange(2))], dtype=dtype, channels_last=channels_last, **NORMALISED)
    ((found, labels),) = loader
    assert (found.device.type, found.dtype, labels.device.type) == ("cuda", dtype, "cuda")
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    close(found, images)
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("stable_addresses", [True, False])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_slow_consumer_sees_the_right_batches(depth: int, stable_addresses: bool, pinned: bool) -> None:
    loader = DevicePrefetcher(LargeBatches(pinned=pinned), depth=depth, stable_addresses=stable_addresses, **NORMALISED)
    seen = []
    for images, labels in itertools.chain(loader, loader):
        keep_busy()
        seen.append((images.clone(), labels.clone()))
    assert len(seen) == 16
    for number, (images, labels) in enumerate(seen):
        close(images, large(number % 8))
        assert labels.unique().tolist() == [number % 8]


def test_a_hoarding_consumer_never_sees_a_batch_change() -> None:
    held = list(DevicePrefetcher(LargeBatches(), **NORMALISED))
    for number, (images, _) in enumerate(held):
        close(images, large(number))


def test_batches_may_be_used_on_any_stream_that_is_current_when_they_are_asked_for() -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    loader = DevicePrefetcher(LargeBatches(pinned=True), **NORMALISED)
    seen = []
    with torch.cuda.stream(stream):
        for images, _ in loader:
            keep_busy()
            seen.append(images.clone())
        stream.synchronize()
    for number, images in enumerate(seen):
        close(images, large(number))


def test_device_memory_is_what_stats_say_and_release_gives_it_back() -> None:
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    loader = DevicePrefetcher(LargeBatches(pinned=True), dtype=torch.bfloat16, depth=3, **NORMALISED)
    for images, labels in loader:  # noqa: B007
        pass
    del images, labels
    stats = loader.stats()
    batch_bytes = 2 * np.prod(SHAPE) + 256
    assert stats.batch_bytes == 3 * batch_bytes
    assert stats.conversion_bytes == np.prod(SHAPE) + 256
    assert stats.pinned_bytes == 0
    # The table of the conversion, and the allocator's rounding to 512 bytes.
    assert 0 <= torch.cuda.memory_allocated() - before - stats.device_bytes < 8192
    loader.release()
    assert torch.cuda.memory_allocated() - before < 8192


def test_pageable_batches_take_two_pinned_ones_on_the_host() -> None:
    loader = DevicePrefetcher(LargeBatches(), **NORMALISED)
    for _ in loader:
        pass
    assert loader.stats().pinned_bytes == 2 * (np.prod(SHAPE) + 256)


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("gpu.txt"))


def dataset(photos: Path, decode: Any) -> MPDataset:
    return MPDataset(photos, decode=decode, batch_size=5, shuffle=True, topology=Topology())


def test_the_slots_of_an_mploader_are_pinned_once_and_copied_from_directly(photos: Path) -> None:
    crop = RandomResizedCrop(64)
    alone = dataset(photos, crop)
    expected = [list(alone) for _ in range(3)]
    with MPLoader(dataset(photos, crop), num_workers=2) as inner:
        loader = DevicePrefetcher(inner, **NORMALISED)
        for epoch, batches in enumerate(expected):
            for (images, labels), (pixels, numbers) in zip(loader, batches, strict=True):
                close(images, pixels)
                assert labels.tolist() == numbers.tolist()
            assert loader.stats().pinned_bytes == 0
            if epoch == 1:
                inner.release()  # the next epoch's slots are others
        assert next(iter(inner))[0].is_pinned()
        loader.release()
        assert not next(iter(inner))[0].is_pinned()


def test_the_short_form_brings_batches_to_the_device_too(photos: Path) -> None:
    expected = list(dataset(photos, RandomResizedCrop(64)))
    with MPLoader(dataset(photos, RandomResizedCrop(64)), num_workers=2, device="cuda") as loader:
        for (images, _), (pixels, _) in zip(loader, expected, strict=True):
            torch.testing.assert_close(images.cpu(), pixels.float() / 255)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cuda_graph_for_each_set_of_addresses_can_be_replayed(depth: int) -> None:
    weight = torch.rand(SHAPE[1], device="cuda")[:, None, None]
    loader = DevicePrefetcher(LargeBatches(pinned=True), depth=depth, stable_addresses=True, **NORMALISED)
    graphs: dict[int, Any] = {}
    sums = []
    for images, _ in loader:
        if images.data_ptr() not in graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = (images * weight).sum((1, 2, 3))
            graphs[images.data_ptr()] = graph, out
        graph, out = graphs[images.data_ptr()]
        graph.replay()
        sums.append(out.clone())
    assert len(graphs) == depth
    for number, found in enumerate(sums):
        expected = (reference(large(number)) * weight.double().cpu()).sum((1, 2, 3))
        torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-4, atol=1.0)


@pytest.mark.parametrize("transform", [noisy, PerSample(flip)])
def test_a_device_transform_draws_the_same_numbers_again_and_leaves_others_alone(transform: Any) -> None:
    def run() -> list[torch.Tensor]:
        return [images for images, _ in DevicePrefetcher(Batches(), device_transform=on_device, **NORMALISED)]

    on_device = transform
    if transform is noisy:

        def on_device(batch: Any) -> Any:
            return batch[0] + torch.randn(len(batch[0]), 1, 1, 1, device="cuda"), batch[1]

    before = torch.cuda.get_rng_state()
    first, again = run(), run()
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert all(itertools.starmap(torch.equal, zip(first, again, strict=True)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device only")
def test_several_devices_are_served_in_one_process() -> None:
    loaders = [
        DevicePrefetcher(LargeBatches(pinned=True), device=f"cuda:{number}", mean=MEAN, std=STD) for number in (0, 1)
    ]
    for number, batches in enumerate(zip(*loaders, strict=True)):
        for device, (images, _) in enumerate(batches):
            assert images.device == torch.device("cuda", device)
            close(images, large(number))
    assert torch.cuda.current_device() == 0


def needs_nvjpeg() -> None:
    if device_decoder(torch.device("cuda")) is None:
        pytest.skip("torchvision with nvJPEG cannot be imported")


@pytest.mark.parametrize("crop", [RandomResizedCrop(64), ResizeCenterCrop(64, resize=80)])
def test_the_device_decodes_what_workers_leave_to_it(photos: Path, crop: Any) -> None:
    needs_nvjpeg()
    expected = list(dataset(photos, crop))
    with MPLoader(dataset(photos, GpuDecode(crop)), num_workers=2) as inner:
        for (images, labels), (pixels, numbers) in zip(
            DevicePrefetcher(inner, device="cuda", dtype=None), expected, strict=True
        ):
            assert images.device.type == "cuda"
            assert labels.tolist() == numbers.tolist()
            # Another decoder, and where the CPU decodes at a smaller scale another resize: alike, not equal.
            assert (images.cpu().float() - pixels.float()).abs().mean() < 12


def test_files_that_the_device_refuses_are_decoded_by_the_cpu(tmp_path: Path) -> None:
    needs_nvjpeg()
    files = make_special_photos(tmp_path)
    crop = ResizeCenterCrop(64, resize=80)
    kinds = ["jpeg_420", "cmyk", "exif_6", "png_rgb", "grayscale", "progressive"]
    batch = [GpuDecode(crop)(files[kind].read_bytes(), np.random.default_rng(0)) for kind in kinds]
    (images,) = DevicePrefetcher([batch], device="cuda", dtype=None)
    for kind, image in zip(kinds, images, strict=True):
        expected = torch.from_numpy(crop(files[kind].read_bytes())).permute(2, 0, 1)
        assert (image.cpu().float() - expected.float()).abs().mean() < 12, kind
