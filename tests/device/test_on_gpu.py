"""DevicePrefetcher on an accelerator: what can be tested only with real streams, drivers and kernels.

MPLOAD_REQUIRE_GPU=1 pytest -m gpu -n 0         # on a GPU
MPLOAD_TEST_DEVICE=late pytest -m gpu -n 0      # without a GPU: an emulated device with threads as streams
"""

import gc
import itertools
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
from mpload.device.jpeg_decoders import device_decoder
from mpload.device.streams import AcceleratorStream
from mpload.errors import MploadWarning
from tests.support.device_batches import (
    DTYPES,
    MEAN,
    STD,
    VIEWS,
    Batches,
    check_that_it_keeps_its_batch,
    every_pixel,
    flip,
    noisy,
    reference,
)
from tests.support.large_batches import DEVICE, SHAPE, LargeBatches, keep_busy, large, memory_allocated
from tests.support.photos import make_special_photos
from tests.support.streams import on_stream

pytestmark = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(
    torch.accelerator.is_available() and not torch.cuda.is_available(), reason="the accelerator is not a CUDA device"
)
needs_driver = pytest.mark.skipif(
    torch.accelerator.is_available() and not hasattr(torch.get_device_module(), "cudart"),
    reason="the driver of the accelerator cannot register memory",
)
NORMALISED: dict[str, Any] = {"device": DEVICE, "mean": MEAN, "std": STD}


def close(found: torch.Tensor, images: torch.Tensor) -> None:
    """Compare with float64, allowing for float32 arithmetic and one rounding to the dtype."""
    eps = torch.finfo(found.dtype).eps
    place = found.device if found.device.type == "cuda" else "cpu"  # much faster than the host, and has float64
    torch.testing.assert_close(found.double().to(place), reference(images.to(place)), rtol=0.51 * eps + 1e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("comes_channels_last", [True, False])
def test_values_equal_those_of_float64_up_to_rounding(
    dtype: torch.dtype, channels_last: bool, comes_channels_last: bool
) -> None:
    images = every_pixel() if comes_channels_last else every_pixel().contiguous()
    loader = DevicePrefetcher([(images, torch.arange(2))], dtype=dtype, channels_last=channels_last, **NORMALISED)
    ((found, labels),) = loader
    assert (found.device.type, found.dtype, labels.device.type) == (DEVICE.type, dtype, DEVICE.type)
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


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_consumer_waits_for_slow_copies(depth: int, pinned: bool) -> None:
    consumer = torch.accelerator.current_stream()
    stream = AcceleratorStream(torch.device(DEVICE.type, 0))
    batches = iter(on_stream(stream, LargeBatches(pinned=pinned), depth=depth, **NORMALISED))
    seen = []
    for _ in range(8):
        with stream.entered():
            keep_busy()
        images, labels = next(batches)
        assert torch.accelerator.current_stream() == consumer
        seen.append((images.clone(), labels.clone()))
        del images, labels
    for number, (images, labels) in enumerate(seen):
        close(images, large(number))
        assert labels.unique().tolist() == [number]


def test_a_hoarding_consumer_never_sees_a_batch_change() -> None:
    held = list(DevicePrefetcher(LargeBatches(), **NORMALISED))
    for number, (images, _) in enumerate(held):
        close(images, large(number))


@pytest.mark.parametrize("kind", sorted(VIEWS.keys() - {"numpy"}))
def test_any_view_of_a_batch_keeps_its_values(kind: str) -> None:
    check_that_it_keeps_its_batch(kind, **NORMALISED)


def test_batches_may_be_used_on_the_stream_that_is_current_when_they_are_requested() -> None:
    stream = AcceleratorStream(torch.device(DEVICE.type, 0))
    loader = DevicePrefetcher(LargeBatches(pinned=True), **NORMALISED)
    seen = []
    with stream.entered():
        for images, _ in loader:
            keep_busy()
            seen.append(images.clone())
    torch.accelerator.synchronize()
    for number, images in enumerate(seen):
        close(images, large(number))


def test_device_memory_matches_the_stats_and_is_freed_with_the_batches() -> None:
    gc.collect()
    torch.accelerator.synchronize()
    before = memory_allocated()
    loader = DevicePrefetcher(LargeBatches(pinned=True), dtype=torch.bfloat16, depth=3, **NORMALISED)
    batches = iter(loader)
    held = [next(batches) for _ in range(3)]
    stats = loader.stats()
    assert stats.batch_bytes == 3 * (2 * np.prod(SHAPE) + 256)
    assert stats.conversion_bytes == np.prod(SHAPE) + 256
    assert stats.pinned_bytes == 0
    # The constants of the conversion, and rounding to 512 bytes by the allocator.
    assert 0 <= memory_allocated() - before - stats.device_bytes < 8192
    del held
    stats = loader.stats()
    assert stats.batch_bytes == 0
    assert 0 <= memory_allocated() - before - stats.device_bytes < 8192
    del batches
    loader.release()
    assert memory_allocated() - before < 8192


def test_pageable_batches_need_two_pinned_batches_on_the_host() -> None:
    loader = DevicePrefetcher(LargeBatches(), **NORMALISED)
    for _ in loader:
        pass
    assert loader.stats().pinned_bytes == 2 * (np.prod(SHAPE) + 256)


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("gpu.txt"))


def dataset(photos: Path, decode: Any) -> MPDataset:
    return MPDataset(photos, decode=decode, batch_size=5, shuffle=True, topology=Topology())


@needs_driver
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
                inner.release()  # the next epoch uses new slots
        assert any(images.is_pinned() for images, _ in inner)
        loader.release()
        assert not any(images.is_pinned() for images, _ in inner)


@needs_driver
def test_images_in_slots_with_ragged_columns_are_copied_directly_too(photo_tree: Path) -> None:
    index = photo_tree.with_name("ragged.txt")
    lines = [
        f"{path.relative_to(photo_tree)}\t{number}\t{'x' * number}\n"
        for number, path in enumerate(sorted(photo_tree.rglob("*.JPEG")))
    ]
    index.write_text(f"#mpload 1\n#root {photo_tree}\n#columns image:path label:int text:str\n{''.join(lines)}")
    crop = RandomResizedCrop(64)
    expected = list(dataset(index, crop))
    with MPLoader(dataset(index, crop), num_workers=2) as inner:
        loader = DevicePrefetcher(inner, device=DEVICE, dtype=None)
        for (images, labels, texts), (pixels, numbers, words) in zip(loader, expected, strict=True):
            assert torch.equal(images.cpu(), pixels)
            assert labels.tolist() == numbers.tolist()
            assert texts == words
        assert loader.stats().pinned_bytes == 0


@needs_driver
def test_two_prefetchers_of_one_loader_share_the_pinned_memory(photos: Path) -> None:
    crop = RandomResizedCrop(64)
    alone = dataset(photos, crop)
    expected = [list(alone) for _ in range(4)]
    with MPLoader(dataset(photos, crop), num_workers=2) as inner:
        loaders = [DevicePrefetcher(inner, device=DEVICE, dtype=None) for _ in range(2)]
        for epoch, batches in enumerate(expected):
            loader = loaders[epoch % 2]
            for (images, _), (pixels, _) in zip(loader, batches, strict=True):
                assert torch.equal(images.cpu(), pixels)
                loaders[1 - epoch % 2].release()  # while copies from slots that it has pinned may be in flight
            assert loader.stats().pinned_bytes == 0


def test_a_loader_with_a_device_copies_batches_to_the_device(photos: Path) -> None:
    expected = list(dataset(photos, RandomResizedCrop(64)))
    with MPLoader(dataset(photos, RandomResizedCrop(64)), num_workers=2, device=DEVICE) as loader:
        for (images, _), (pixels, _) in zip(loader, expected, strict=True):
            torch.testing.assert_close(images.cpu(), pixels.float() / 255)


@needs_cuda
@pytest.mark.parametrize("depth", [1, 2])
def test_a_cuda_graph_for_each_set_of_addresses_can_be_replayed(depth: int) -> None:
    weight = torch.rand(SHAPE[1], device="cuda")[:, None, None]
    loader = DevicePrefetcher(LargeBatches(pinned=True), depth=depth, stable_addresses=True, **NORMALISED)
    graphs: dict[int, Any] = {}
    sums = []
    (large(0).to("cuda").float() * weight).sum((1, 2, 3))  # loads the kernels, which a capture may not
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
def test_a_device_transform_draws_reproducible_numbers_and_does_not_affect_others(transform: Any) -> None:
    def run() -> list[torch.Tensor]:
        return [images for images, _ in DevicePrefetcher(Batches(), device_transform=on_device, **NORMALISED)]

    on_device = transform
    if transform is noisy:

        def on_device(batch: Any) -> Any:
            return batch[0] + torch.randn(len(batch[0]), 1, 1, 1, device=DEVICE), batch[1]

    generators = torch.get_device_module(DEVICE)
    before = generators.get_rng_state(0)
    first, again = run(), run()
    assert torch.equal(generators.get_rng_state(0), before)
    assert all(itertools.starmap(torch.equal, zip(first, again, strict=True)))


@pytest.mark.parametrize("is_consumer_slow", [True, False])
def test_memory_of_transform_results_is_not_reused_too_early(is_consumer_slow: bool) -> None:
    def doubled(batch: Any) -> Any:
        return batch[0].clone().mul_(2), batch[1]

    stream = AcceleratorStream(torch.device(DEVICE.type, 0))
    loader = on_stream(stream, LargeBatches(pinned=True), device_transform=doubled, **NORMALISED)
    batches = iter(loader)
    seen = []
    for _ in range(8):
        if not is_consumer_slow:
            with stream.entered():
                keep_busy()
        images, _labels = next(batches)
        if is_consumer_slow:
            keep_busy()
        seen.append(images.clone())
        del images, _labels
    for number, images in enumerate(seen):
        close(images / 2, large(number))


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="one device only")
def test_several_devices_are_served_in_one_process() -> None:
    loaders = [
        DevicePrefetcher(LargeBatches(pinned=True), device=f"{DEVICE.type}:{number}", mean=MEAN, std=STD)
        for number in (0, 1)
    ]
    for number, batches in enumerate(zip(*loaders, strict=True)):
        for device, (images, _) in enumerate(batches):
            assert images.device == torch.device(DEVICE.type, device)
            close(images, large(number))
    assert torch.accelerator.current_device_index() == 0


def needs_nvjpeg() -> None:
    if device_decoder(DEVICE) is None:
        pytest.skip("torchvision with nvJPEG cannot be imported")


@pytest.mark.parametrize("crop", [RandomResizedCrop(64), ResizeCenterCrop(64, resize=80)])
def test_the_device_decodes_images_left_by_the_workers(photos: Path, crop: Any) -> None:
    needs_nvjpeg()
    expected = list(dataset(photos, crop))
    with MPLoader(dataset(photos, GpuDecode(crop)), num_workers=2) as inner:
        for (images, labels), (pixels, numbers) in zip(
            DevicePrefetcher(inner, device=DEVICE, dtype=None), expected, strict=True
        ):
            assert images.device.type == DEVICE.type
            assert labels.tolist() == numbers.tolist()
            # A different decoder, and a different resize if the CPU decodes at a smaller scale: similar, not equal.
            assert (images.cpu().float() - pixels.float()).abs().mean() < 12


def test_this_process_decodes_if_the_device_cannot(photos: Path) -> None:
    if device_decoder(DEVICE) is not None:
        pytest.skip("this device decodes")
    crop = RandomResizedCrop(64)
    expected = list(dataset(photos, crop))
    with MPLoader(dataset(photos, GpuDecode(crop)), num_workers=2) as inner:
        loader = DevicePrefetcher(inner, device=DEVICE, dtype=None)
        with pytest.warns(MploadWarning, match=f"no JPEG decoder for {DEVICE.type}:0: this process decodes on the CPU"):
            batches = list(loader)
    for (images, _), (pixels, _) in zip(batches, expected, strict=True):
        assert torch.equal(images.cpu(), pixels)


def test_files_that_the_device_refuses_are_decoded_by_the_cpu(tmp_path: Path) -> None:
    needs_nvjpeg()
    files = make_special_photos(tmp_path)
    crop = ResizeCenterCrop(64, resize=80)
    kinds = ["jpeg_420", "cmyk", "exif_6", "png_rgb", "grayscale", "progressive"]
    batch = [GpuDecode(crop)(files[kind].read_bytes(), np.random.default_rng(0)) for kind in kinds]
    (images,) = DevicePrefetcher([batch], device=DEVICE, dtype=None)
    for kind, image in zip(kinds, images, strict=True):
        expected = torch.from_numpy(crop(files[kind].read_bytes())).permute(2, 0, 1)
        assert (image.cpu().float() - expected.float()).abs().mean() < 12, kind
