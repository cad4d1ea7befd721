"""DevicePrefetcher on an accelerator, with a user, loader or decoder that has its own streams and device tensors."""

import gc
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpload import DevicePrefetcher, GpuDecode, ImageDecoder, RandomResizedCrop
from mpload.device.streams import AcceleratorStream
from mpload.device.unpacking import Unpacker
from tests.support.device_decoders import WholeImages
from tests.support.large_batches import DEVICE, LargeBatches, keep_busy, large, memory_allocated
from tests.support.streams import on_stream

pytestmark = pytest.mark.gpu
RAW: dict[str, Any] = {"device": DEVICE, "dtype": None}


def new_stream() -> AcceleratorStream:
    return AcceleratorStream(torch.device(DEVICE.type, 0))


def check(seen: list[torch.Tensor], *, scale: int = 1) -> None:
    """Check that `seen` are the images of the batches, in order."""
    torch.accelerator.synchronize()
    wrong = [number for number, images in enumerate(seen) if not torch.equal(images.cpu(), large(number) * scale)]
    assert not wrong


class OnDevice:
    """A loader that creates its batches on the device when they are requested."""

    def __init__(self, num: int = 8) -> None:
        self.batches = [large(number).pin_memory() for number in range(num)]

    def __iter__(self) -> Iterator[Any]:
        for images in self.batches:
            keep_busy()
            yield images.to(DEVICE, non_blocking=True)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_loader_whose_batches_are_on_the_device_is_not_read_too_early(depth: int) -> None:
    seen = [images.clone() for images in DevicePrefetcher(OnDevice(), depth=depth, **RAW)]
    assert len(seen) == 8
    check(seen)


def decode_here(files: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.from_numpy(ImageDecoder()(file.numpy().tobytes())).permute(2, 0, 1) for file in files]


class DecodeLate:
    """Replaces the decoder of a device. Its images are complete only when the current stream has reached them."""

    def __init__(self) -> None:
        self.decoded: list[torch.Tensor] = []

    def __call__(self, files: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        keep_busy()
        images = [image.pin_memory() for image in decode_here(files)]
        self.decoded += images  # kept alive for the delayed copies
        return [image.to(DEVICE, non_blocking=True) for image in images]


def test_images_decoded_on_the_device_are_complete_beside_unpinned_tensors(photo_tree: Path) -> None:
    crop = GpuDecode(RandomResizedCrop(64))
    decode = DecodeLate()
    files = [path.read_bytes() for path in sorted(photo_tree.rglob("*.JPEG"))[:4]]
    encoded = [[crop(file, np.random.default_rng(seed)) for file in files] for seed in range(6)]
    loader = DevicePrefetcher([(samples, torch.arange(4)) for samples in encoded], **RAW)
    loader._unpack = Unpacker(loader.device, find_decoder=lambda _: WholeImages(decode))
    expected = [
        Unpacker(torch.device("cpu"), find_decoder=lambda _: WholeImages(decode_here))(samples) for samples in encoded
    ]
    for (images, numbers), pixels in zip(loader, expected, strict=True):
        assert (images.cpu().int() - pixels.int()).abs().max() <= 1  # a device may sum in another order
        assert numbers.tolist() == [0, 1, 2, 3]


def test_only_tensors_that_are_not_pinned_are_copied_on_the_host() -> None:
    class Mixed:
        def __iter__(self) -> Iterator[Any]:
            for number in range(8):
                yield large(number).pin_memory(), torch.full((32,), number), torch.ones(2, device=DEVICE)

    loader = DevicePrefetcher(Mixed(), **RAW)
    seen = []
    for images, numbers, ones in loader:
        seen.append(images.clone())
        assert numbers.unique().tolist() == [len(seen) - 1]
        assert ones.tolist() == [1, 1]
    check(seen)
    assert loader.stats().pinned_bytes == 2 * 256  # only the numbers, padded to the alignment


def doubled(batch: Any) -> Any:
    return batch[0] * 2, batch[1]


def unchanged(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("transform", [None, doubled, unchanged])
def test_record_stream_keeps_a_batch_until_another_stream_is_done_with_it(depth: int, transform: Any) -> None:
    other, seen = new_stream(), []
    for images, _ in DevicePrefetcher(LargeBatches(), depth=depth, device_transform=transform, **RAW):
        other.follow_consumer()
        with other.entered():
            keep_busy()
            seen.append(images.clone())
            images.record_stream(torch.accelerator.current_stream())
        del images, _
    check(seen, scale=2 if transform is doubled else 1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("transform", [None, doubled])
def test_batches_may_be_requested_on_alternating_streams(depth: int, transform: Any) -> None:
    streams = [new_stream(), new_stream()]
    batches = iter(DevicePrefetcher(LargeBatches(), depth=depth, device_transform=transform, **RAW))
    seen = []
    for number in range(8):
        with streams[number % 2].entered():
            images, _ = next(batches)
            for _busy in range(1 + 4 * (number % 2)):
                keep_busy()
            seen.append(images.clone())
            del images, _
    check(seen, scale=1 if transform is None else 2)


def test_a_stream_that_the_consumer_waits_for_may_use_stable_addresses() -> None:
    other, seen = new_stream(), []
    for images, _ in DevicePrefetcher(LargeBatches(), stable_addresses=True, **RAW):
        other.follow_consumer()
        with other.entered():
            keep_busy()
            seen.append(images.clone())
        other.lead_consumer(other.mark())
    check(seen)


@pytest.mark.parametrize("depth", [2, 4])
def test_an_abandoned_iteration_does_not_write_to_memory_of_other_tensors(depth: int) -> None:
    stream = new_stream()
    for _ in range(8):
        batches = iter(on_stream(stream, LargeBatches(pinned=True), depth=depth, **RAW))
        next(batches)
        with stream.entered():
            keep_busy()
        images, _ = next(batches)
        batches.close()  # type: ignore[attr-defined]
        mine = [torch.full(images.shape, 7, dtype=images.dtype, device=DEVICE) for _ in range(depth)]
        torch.accelerator.synchronize()
        assert all((each == 7).all().item() for each in mine)


def test_collected_labels_do_not_hold_images() -> None:
    gc.collect()
    torch.accelerator.synchronize()
    before = memory_allocated()
    loader = DevicePrefetcher(LargeBatches(), **RAW)
    labels = [numbers for _, numbers in loader]
    assert loader.stats().num_extra_batches == 0
    loader.release()
    assert memory_allocated() - before < large(0).nbytes
    assert [each.unique().tolist() for each in labels] == [[number] for number in range(8)]


def test_the_default_device_may_be_the_accelerator() -> None:
    torch.set_default_device(DEVICE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader = DevicePrefetcher(LargeBatches(2), mean=(0.0,) * 3, device_transform=doubled)
            seen = [images.clone() for images, _ in loader]
    finally:
        torch.set_default_device(None)
    for number, images in enumerate(seen):
        torch.testing.assert_close(images.cpu(), large(number).float() / 255 * 2)


@pytest.mark.parametrize("transform", [None, unchanged])
def test_released_memory_is_not_overwritten_before_the_consumer_is_done_with_it(transform: Any) -> None:
    loader = DevicePrefetcher(LargeBatches(), stable_addresses=True, device_transform=transform, **RAW)
    seen = []
    for _ in range(8):
        batches = iter(loader)
        images, _ = next(batches)
        keep_busy()
        seen.append(images.clone())
        del images, _, batches
        loader.release()
    torch.accelerator.synchronize()
    assert all(torch.equal(images.cpu(), large(0)) for images in seen)


def test_nested_tensors_keep_their_memory_until_the_consumer_is_done_with_them() -> None:
    offsets = torch.tensor([0, 10_000, 40_000])
    batches = [
        torch.nested.nested_tensor_from_jagged(torch.full((40_000,), number), offsets=offsets) for number in range(8)
    ]
    seen = []
    for nested in DevicePrefetcher(batches, device_transform=unchanged, depth=1, **RAW):
        keep_busy()
        seen.append(nested.values().clone())
        del nested
    torch.accelerator.synchronize()
    assert [values.cpu().unique().tolist() for values in seen] == [[number] for number in range(8)]


class Marked(torch.Tensor):
    """A tensor subclass, like the tv_tensors of torchvision."""


def test_tensor_subclasses_keep_their_class() -> None:
    batches = [(large(number), torch.full((4,), number).as_subclass(Marked)) for number in range(4)]
    loader = DevicePrefetcher(batches, device_transform=unchanged, **RAW)
    seen = []
    for number, (images, marked) in enumerate(loader):
        keep_busy()
        seen.append(images.clone())
        assert (type(marked), marked.device.type, marked.tolist()) == (Marked, DEVICE.type, [number] * 4)
    check(seen)
