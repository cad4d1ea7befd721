"""Images that a GPU decodes: drawn by one kernel, in memory that nobody else writes to."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpload import (
    DevicePrefetcher,
    GpuDecode,
    ImageDecoder,
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    Topology,
    build_index,
)
from mpload.device.jpeg_decoders import device_decoder
from mpload.device.unpacking import Unpacker
from tests.support.device_decoders import WholeImages
from tests.support.large_batches import DEVICE, keep_busy

pytestmark = pytest.mark.gpu


def late_decoder() -> Any:
    """Return a decoder that behaves like torchvision's: it writes, on its own stream, to memory of the current one."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    keys: dict[bytes, int] = {}

    def decode(files: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        sizes = [ImageDecoder()(file.numpy().tobytes()).shape[:2] for file in files]
        images = [torch.empty((3, *size), dtype=torch.uint8, device=DEVICE) for size in sizes]
        with torch.cuda.stream(stream):
            for image, file in zip(images, files, strict=True):
                image.fill_(keys.setdefault(file.numpy().tobytes(), len(keys) % 251))
            done = stream.record_event()
        torch.cuda.current_stream().wait_event(done)
        return images

    return decode


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs CUDA")
def test_images_are_not_overwritten_while_a_slow_consumer_delays_their_batch(photo_tree: Path) -> None:
    files = [path.read_bytes() for path in sorted(photo_tree.rglob("*.JPEG"))]
    decode = GpuDecode(RandomResizedCrop(224))
    samples = [
        decode(data + bytes([0, number]) + b"\xff\xd9", np.random.default_rng(number))
        for number in range(24)
        for data in files[:1]
    ]
    batches = [samples[first : first + 4] for first in range(0, 24, 4)] * 3
    loader = DevicePrefetcher(batches, device=DEVICE, dtype=None)
    loader._unpack = Unpacker(loader.device, find_decoder=lambda _: WholeImages(late_decoder()))
    seen = []
    for images in loader:
        keep_busy()
        with loader._unpack._stream.entered():
            keep_busy()  # so that the images of the next batch are drawn late
        seen.append(images.clone())
    colors = [[int(image.unique().item()) for image in images] for images in seen]
    assert colors == [list(range(first, first + 4)) for first in range(0, 24, 4)] * 3


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs CUDA")
def test_a_slow_consumer_gets_the_images_that_a_fast_one_gets(photo_tree: Path) -> None:
    if device_decoder(DEVICE) is None:
        pytest.skip("torchvision with nvJPEG cannot be imported")
    index = build_index(photo_tree, photo_tree.with_name("decoded.txt"))

    def run(share: float, *, is_slow: bool) -> list[torch.Tensor]:
        decode = GpuDecode(RandomResizedCrop(96), share=share)
        dataset = MPDataset(index, decode=decode, batch_size=6, shuffle=True, topology=Topology())
        seen = []
        with MPLoader(dataset, num_workers=2) as inner:
            for images, _ in DevicePrefetcher(inner, device=DEVICE, dtype=None):
                if is_slow:
                    keep_busy()
                seen.append(images.clone())
        return seen

    for share in (1.0, 0.5):
        fast, slow = run(share, is_slow=False), run(share, is_slow=True)
        assert all(torch.equal(one, other) for one, other in zip(fast, slow, strict=True))
        assert not any(torch.equal(one, other) for one, other in pairwise(fast) if one.shape == other.shape)


@pytest.mark.filterwarnings("ignore:no JPEG decoder")
def test_a_loader_may_fill_the_same_tensor_again(photo_tree: Path) -> None:
    decode, numbers = GpuDecode(RandomResizedCrop(32)), torch.zeros(64)
    data = next(photo_tree.rglob("*.JPEG")).read_bytes()

    def batches() -> Iterator[Any]:
        for number in range(6):
            numbers.fill_(number)
            yield [decode(data, np.random.default_rng(number))], numbers

    found = [received.unique().tolist() for _, received in DevicePrefetcher(batches(), device=DEVICE, dtype=None)]
    assert found == [[number] for number in range(6)]


@pytest.mark.filterwarnings("ignore:no JPEG decoder")
def test_the_thread_that_decodes_uses_no_other_device(photo_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = torch.accelerator.device_count() - 1
    decode, data = GpuDecode(RandomResizedCrop(32)), next(photo_tree.rglob("*.JPEG")).read_bytes()
    batch = [decode(data, np.random.default_rng(0))]
    module = torch.get_device_module(DEVICE)
    set_device, seen = module.set_device, []

    def spy(index: int) -> None:
        seen.append((threading.current_thread().name.startswith("mpload-decode"), index))
        set_device(index)

    monkeypatch.setattr(module, "set_device", spy)
    for images in DevicePrefetcher([batch] * 3, device=torch.device(DEVICE.type, last), dtype=None):
        assert images.device.index == last
    assert not [index for is_decoding, index in seen if is_decoding and index != last]


@pytest.mark.filterwarnings("ignore:no JPEG decoder")
def test_files_stay_files_in_pinned_batches(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("pinned.txt"))
    dataset = MPDataset(index, decode=GpuDecode(RandomResizedCrop(32)), batch_size=8, topology=Topology())
    found = []
    for pin_memory in (False, True):
        options: Any = {"pin_memory": pin_memory}
        with MPLoader(dataset, num_workers=1, **options) as inner:
            dataset.set_epoch(0)
            for images, labels in DevicePrefetcher(inner, device=DEVICE, dtype=None):
                found.append((images.cpu(), labels.cpu()))
    half = len(found) // 2
    for one, other in zip(found[:half], found[half:], strict=True):
        assert all(map(torch.equal, one, other))


def test_files_may_change_as_soon_as_a_batch_is_decoded(photo_tree: Path) -> None:
    data = next(photo_tree.rglob("*.JPEG")).read_bytes()
    sample = GpuDecode(RandomResizedCrop(32))(data, np.random.default_rng(0))
    encoded = torch.frombuffer(bytearray(sample), dtype=torch.uint8).pin_memory()
    height, width = ImageDecoder()(data).shape[:2]

    def decode(files: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        keep_busy()  # so that the files are read late
        return [file[:1].to(DEVICE, non_blocking=True).expand(3, height, width) for file in files]

    unpack = Unpacker(DEVICE, find_decoder=lambda _: WholeImages(decode))
    begun = unpack.begin([memoryview(encoded.numpy())])  # type: ignore[arg-type]
    unpack.wait(begun)
    encoded.zero_()
    assert unpack.finish(begun).unique().tolist() == [255]  # the first byte of a JPEG
